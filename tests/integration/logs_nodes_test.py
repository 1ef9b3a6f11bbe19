"""Output of workers on other nodes than the driver's, and their end: with two nodes on one host, and on two hosts."""

import pytest
from launching.two_nodes import DRIVER, KINDS, pid_of, two_nodes

SPEAKER = """
@shoal.remote(num_cpus=0)
class Speaker:
    def say(self, text):
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)
        return os.getpid()

    def say_there(self, text):
        return shoal.get(Speaker.options(label_selector={"host": "b"}).remote().say.remote(text))

def speaker(host):
    return Speaker.options(label_selector={"host": host}).remote()

(ip,) = {n["host"] for n in shoal.nodes() if n["labels"]["host"] == "b"}
"""


@pytest.fixture(scope="module", params=KINDS)
def nodes(request):
    yield from two_nodes(request.param)


def run(nodes, body):
    driver = nodes.a.driver("import sys\n" + DRIVER + SPEAKER + body, HEAD=nodes.address)
    assert driver.code() == 0, driver.err
    return driver.out, driver.err


def test_a_driver_shows_its_workers_output_from_all_nodes(nodes):
    out, err = run(
        nodes,
        """
here, there = speaker("a"), speaker("b")
print("expected", ip, *shoal.get([here.say.remote("from here"), there.say.remote("from there"), here.say_there.remote("from a child")]))
""",
    )
    ip, here, there, child = next(line.split()[1:] for line in out.splitlines() if line.startswith("expected"))
    at = f", ip={ip}" if nodes.hosts else ""
    for text in (out, err):
        assert f"(Speaker pid={here}) from here\n" in text
        assert f"(Speaker pid={there}{at}) from there\n" in text
        assert f"(Speaker pid={child}{at}) from a child\n" in text
        assert text.count("from there") == 1


def test_a_driver_shows_no_output_of_other_jobs(nodes):
    for text, other in (("from one job", "from another"), ("from another", "from one job")):
        said = "".join(run(nodes, f"shoal.get(speaker('b').say.remote({text!r}))"))
        assert text in said
        assert other not in said


def test_log_to_driver_false_shows_nothing(nodes):
    said = run(
        nodes,
        """
shoal.shutdown()
shoal.init(address=os.environ["HEAD"], log_to_driver=False)
shoal.get(speaker("b").say.remote("from there"))
""",
    )
    assert "from there" not in "".join(said)


FILES = """
from shoal.util import state

there = speaker("b")
shoal.get(there.say.remote("to be read"))
(node,) = [n for n in shoal.nodes() if n["labels"]["host"] == "b"]
row = state.get_actor(there._actor_id)
mine = f"worker-{row.worker_id}.out"
end = time.monotonic() + 60
while "".join(state.get_log(filename=mine, node_id=node["id"])) != "to be read\\n":  # it is on its way from the worker to the file
    assert time.monotonic() < end
    time.sleep(0.05)
"""


def test_log_files_are_listed_and_read_on_every_node(nodes):
    run(
        nodes,
        "import time\n"
        + FILES
        + """
for where in ({"node_id": node["id"]}, {"node_ip": node["host"]}):
    listed = state.list_logs(**where)
    assert mine in listed["worker_out"], listed
    assert any(name.startswith("node") for name in listed["node"]), listed
    assert state.list_logs(glob_filter=mine, **where) == {"worker_out": [mine]}
    log = f"node-{node['pid']}.log"
    assert state.list_logs(glob_filter="node-*.log", **where)["node"].count(log) == 1
    assert "".join(state.get_log(filename=log, tail=1, **where)).count("\\n") == 1
    assert "".join(state.get_log(filename="none.log", **where)) == ""
assert "".join(state.get_log(actor_id=there._actor_id, tail=1)) == "to be read\\n"
assert "".join(state.get_log(pid=row.pid, node_id=node["id"], suffix="err")) == "to be read\\n"
for bad in ("../token", "/etc/hostname", ".."):
    try:
        state.get_log(filename=bad, node_id=node["id"])
        raise AssertionError(bad)
    except ValueError as error:
        assert "no file of the session" in str(error)
""",
    )


def test_the_command_lists_and_reads_log_files_of_every_node(nodes):
    names = nodes.a.json("logs", "cluster", "--node-id", nodes.node)["files"]
    (log,) = [n for n in names if n == f"node-{pid_of(nodes, nodes.node)}.log"]
    done = nodes.a("logs", log, "--node-id", nodes.node[:12], "--tail", "1")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done
    assert nodes.a("logs", "cluster", "--node-id", "5f5f").returncode == 3
    assert nodes.a("logs", "cluster", "../token", "--node-id", nodes.node).stdout == ""


def test_logs_of_another_host_are_not_followed(nodes):
    if not nodes.hosts:
        pytest.skip("all nodes are here")
    run(
        nodes,
        "import time\n"
        + FILES
        + """
try:
    state.get_log(actor_id=there._actor_id, follow=True)
    raise AssertionError("it is followed")
except shoal.exceptions.Unimplemented as error:
    assert f"shoal logs worker --id {row.worker_id} -f" in str(error)
""",
    )
