"""Metrics of users, nodes and the head, as Prometheus reads them."""

import json
import os
import signal
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from exposition import parse
from internals.core import FunctionPool
from launching.leftovers import wait_until

import shoal
from shoal.util.metrics import Counter, Gauge, Histogram

GUARD_S = 90


@shoal.remote(num_cpus=1)
class Meter:
    def __init__(self):
        self.steps = Counter("steps", "Steps that were made.", ("stage",))
        self.loss = Gauge("loss", "The last one.")
        self.seconds = Histogram("step_seconds", "Of a step.", [0.1, 1.0], ("stage",))

    def measure(self, steps, loss, seconds=()):
        self.steps.inc(steps, {"stage": "train"})
        self.loss.set(loss)
        for s in seconds:
            self.seconds.observe(s, {"stage": "train"})
        return os.getpid()


@pytest.fixture
def cluster(shoal_command):
    """A cluster of two nodes, "a" and "b": the command, the head's address and the session folder."""
    head = shoal_command.json("start", "--head", "--num-cpus", "4", "--port", "0", "--dashboard-port", "0", "--label", "host=a")
    joined = shoal_command.json("start", "--address", head["address"], "--num-cpus", "4", "--label", "host=b")
    shoal.init(address=head["address"])
    (a,) = (n["id"] for n in shoal_command.rows("nodes") if n["labels"].get("host") == "a")
    yield SimpleNamespace(command=shoal_command, address=head["address"], session=head["session"], a=a, b=joined["node"])
    shoal.shutdown()
    shoal_command.json("stop")


def get(cluster, path="/metrics", method="GET", token=None):
    """Returns (status, content type, text)."""
    with open(f"{cluster.session}/info.json") as file:
        url = json.load(file)["http"]
    if token is None:
        with open(f"{cluster.session}/http-token") as file:
            token = file.read().strip()
    request = urllib.request.Request(url + path, method=method, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=GUARD_S) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def scrape(cluster):
    status, kind, text = get(cluster)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), text
    return parse(text)


def until(cluster, condition, what):
    """Scrapes until the condition holds, and returns that scrape. A scrape may lack processes that got no CPU time for a moment."""

    def holds():
        families = scrape(cluster)
        return families if condition(families) else None

    return wait_until(holds, GUARD_S, what)


def values(families, family, series="", /, **labels):
    return families[family].values(series, **labels) if family in families else []


def on(host):
    return Meter.options(label_selector={"host": host}).remote()


def only_counters(families):
    return values(families, "shoal_user_steps_total") and not values(families, "shoal_user_loss")


def gone(pid):
    return lambda: not os.path.exists(f"/proc/{pid}")


def test_user_metrics_arrive_with_their_labels(cluster):
    meters = [on("a"), on("a"), on("b")]
    pids = shoal.get([m.measure.remote(i + 1, 10 * i, [0.1, 0.5 + i, 7]) for i, m in enumerate(meters)])
    families = until(cluster, lambda f: len(values(f, "shoal_user_loss")) == 3, "three gauges")
    job = shoal.get_runtime_context().get_job_id()
    steps = families["shoal_user_steps_total"]
    assert (steps.type, steps.help) == ("counter", "Steps that were made.")
    ours = {"job_id": job, "role": "actor Meter", "stage": "train"}
    assert steps.values(node=cluster.a, **ours) == [1 + 2]
    assert steps.values(node=cluster.b, **ours) == [3]
    assert {labels["host"] for _, labels, _ in steps.samples} == {"127.0.0.1"}
    by_pid = {labels["pid"]: (labels["node"], value) for _, labels, value in families["shoal_user_loss"].samples}
    assert by_pid == {str(pids[0]): (cluster.a, 0), str(pids[1]): (cluster.a, 10), str(pids[2]): (cluster.b, 20)}
    seconds = families["shoal_user_step_seconds"]
    assert seconds.values("_bucket", node=cluster.a, le="0.1") == [2]
    assert seconds.values("_bucket", node=cluster.a, le="1") == [3]
    assert seconds.values("_count", node=cluster.a) == [6]
    assert seconds.values("_sum", node=cluster.b) == pytest.approx([0.1 + 2.5 + 7])
    ended = {"name": "measure", "state": "FINISHED"}
    families = until(cluster, lambda f: sum(values(f, "shoal_tasks_ended_total", **ended)) == 3, "three calls that ended")
    assert sum(values(families, "shoal_tasks_ended_total", name="measure", state="FAILED")) == 0


def test_a_driver_exports_metrics_as_its_actors_do(cluster):
    counter = Counter("of_the_driver")
    counter.inc(2.5)
    Gauge("now_of_the_driver").set(7)
    families = until(cluster, lambda f: "shoal_user_of_the_driver_total" in f, "the driver's counter")
    assert values(families, "shoal_user_of_the_driver_total", role="driver") == [2.5]
    assert values(families, "shoal_user_now_of_the_driver", role="driver") == [7]
    counter.inc(1)
    shoal.shutdown()
    families = until(cluster, lambda f: "shoal_user_now_of_the_driver" not in f, "no gauge of the driver, whose process lives")
    assert values(families, "shoal_user_of_the_driver_total", role="driver") == [3.5]


def test_a_job_may_change_the_boundaries_of_an_earlier_one(cluster):
    @shoal.remote
    class Lap:
        def observe(self, boundaries, value):
            Histogram("lap", boundaries=boundaries).observe(value)

    jobs = []
    for boundaries in ([1.0], [2.0, 3.0]):
        shoal.init(address=cluster.address, ignore_reinit_error=True)
        jobs.append(shoal.get_runtime_context().get_job_id())
        lap = Lap.remote()
        shoal.get(lap.observe.remote(boundaries, 2.5))
        until(cluster, lambda f: values(f, "shoal_user_lap", "_count", job_id=jobs[-1]) == [1], "the job's observation")
        shoal.shutdown()
    families = scrape(cluster)
    assert values(families, "shoal_user_lap", "_bucket", job_id=jobs[0], le="1") == [0]
    assert values(families, "shoal_user_lap", "_bucket", job_id=jobs[1], le="3") == [1]


def test_counts_survive_the_end_of_their_process(cluster):
    """No scrape comes before the end: a process reports its counters to its node when it ends."""
    meter = on("a")
    pid = shoal.get(meter.measure.remote(5, 1, [3]))
    del meter
    wait_until(gone(pid), GUARD_S, "the end of the actor")
    families = until(cluster, only_counters, "no gauge")
    assert values(families, "shoal_user_steps_total") == [5]
    assert values(families, "shoal_user_step_seconds", "_count") == [1]

    other = on("a")
    pid = shoal.get(other.measure.remote(2, 1))
    until(cluster, lambda f: values(f, "shoal_user_steps_total") == [7], "both")
    shoal.kill(other)
    wait_until(gone(pid), GUARD_S, "the end of the other")
    families = until(cluster, only_counters, "no gauge")
    assert values(families, "shoal_user_steps_total") == [7]


def test_counts_of_functions_survive_the_end_of_idle_workers(cluster, monkeypatch):
    monkeypatch.setattr(FunctionPool, "HAND_OVER_S", float(GUARD_S))

    @shoal.remote
    def work():
        Counter("units").inc(4)
        return os.getpid()

    pid = shoal.get(work.remote())
    wait_until(gone(pid), GUARD_S, "the end of the worker")
    families = until(cluster, lambda f: "shoal_user_units_total" in f, "the counter")
    assert values(families, "shoal_user_units_total") == [4]


def test_processes_without_an_answer_are_left_out_and_counted(cluster):
    meters = {host: on(host) for host in "ab"}
    pids = {host: shoal.get(m.measure.remote(1, 1)) for host, m in meters.items()}
    until(cluster, lambda f: len(values(f, "shoal_user_loss")) == 2, "both gauges")
    os.kill(pids["b"], signal.SIGSTOP)
    try:

        def silent(f):
            others = values(f, "shoal_user_loss", node=cluster.a) and values(f, "shoal_node_load1", node=cluster.b)
            return others and values(f, "shoal_node_silent_processes", node=cluster.b) == [1]

        families = until(cluster, silent, "b's silence")
        assert values(families, "shoal_user_loss", node=cluster.b) == []
        assert values(families, "shoal_user_steps_total", node=cluster.b) == [1]
    finally:
        os.kill(pids["b"], signal.SIGCONT)
    until(cluster, lambda f: values(f, "shoal_user_loss", node=cluster.b) == [1], "b's gauge again")


def test_head_and_nodes_export_their_metrics(cluster):
    meter = on("b")
    shoal.get(meter.measure.remote(1, 1))
    waits = Meter.options(num_cpus=3, label_selector={"host": "none"}).remote()

    def complete(f):
        return len(values(f, "shoal_node_load1")) == 2 and values(f, "shoal_pending_demands") == [1]

    families = until(cluster, complete, "both nodes")
    assert len(values(families, "shoal_node_processes")) == 2
    assert values(families, "shoal_nodes", state="ALIVE") == [2]
    assert values(families, "shoal_actors", state="ALIVE") == [1]
    assert values(families, "shoal_actors", state="PENDING") == [1]
    assert values(families, "shoal_jobs", state="RUNNING") == [1]
    assert values(families, "shoal_placement_groups", state="CREATED") == [0]
    assert values(families, "shoal_heads", role="leader") == [1]
    assert values(families, "shoal_resources", resource="CPU") == [4, 4]
    assert values(families, "shoal_resources_used", resource="CPU", node=cluster.b) == [1]
    for name in (
        "shoal_node_memory_total_bytes",
        "shoal_node_memory_available_bytes",
        "shoal_node_disk_total_bytes",
        "shoal_object_store_limit_bytes",
    ):
        assert len(values(families, name)) == 2, name
        assert min(values(families, name)) > 0, name
    assert len(values(families, "shoal_node_cpu_seconds_total", mode="user")) == 2
    assert len(values(families, "process_cpu_seconds_total")) == 1
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"):
        (value,) = values(families, name)
        assert value > 0, name
    assert values(families, "shoal_scrape_silent_nodes") == [0]
    shoal.kill(waits)


def test_reading_metrics_needs_the_token(cluster):
    assert get(cluster, token="")[0] == 401
    assert get(cluster, token="0" * 64)[0] == 401
    assert get(cluster, method="POST")[0] == 405


def test_the_command_prints_metrics_and_the_discovery_file(cluster):
    meter = on("a")
    shoal.get(meter.measure.remote(1, 1))

    def printed():
        done = cluster.command("metrics")
        families = parse(done.stdout)
        return families if values(families, "shoal_user_steps_total") else None

    families = wait_until(printed, GUARD_S, "the counter")
    assert values(families, "shoal_user_steps_total") == [1]
    assert values(families, "shoal_nodes", state="ALIVE") == [2]

    told = cluster.command.json("metrics")
    assert told["schema"] == "shoal.metrics/1"
    (nodes,) = (f for f in told["families"] if f["name"] == "shoal_nodes")
    assert nodes["type"] == "gauge"
    assert {"labels": {"state": "ALIVE"}, "value": 2} in nodes["samples"]

    config = cluster.command.json("metrics", "--scrape-config")
    with open(config["targets_file"]) as file:
        (target,) = json.load(file)
    assert config["url"] == f"http://{target['targets'][0]}{target['labels']['__metrics_path__']}"
    assert os.path.basename(config["targets_file"]) == "prom_metrics_service_discovery.json"
    text = cluster.command("metrics", "--scrape-config").stdout
    assert f'credentials_file: "{config["token_file"]}"' in text
    assert f'- files: ["{config["targets_file"]}"]' in text
