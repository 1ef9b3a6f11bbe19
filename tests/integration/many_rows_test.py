"""Readers of a cluster's state, in one with 20,000 actors and 10,000 jobs that wait, and 10,000 nodes that are gone."""

import http.client
import json
import signal
import urllib.parse
from pathlib import Path

import pytest
from launching.commands import Command
from launching.filled import ACTORS, JOBS, NODES, filled

import shoal
from shoal.job_submission import JobSubmissionClient
from shoal.util import state

FILL = Path(__file__).parents[2] / "scheduler/state/fill_store"
HTTP_ROWS = 10_000  # the largest page


@pytest.fixture(scope="module")
def many(module_home):
    """(command, cluster) of a head that has been restarted with a filled store."""
    command = Command(module_home)
    cluster, driver = filled(command, FILL)
    yield command, cluster
    driver.signal(signal.SIGKILL)
    assert command("stop").returncode == 0
    command.end()


def get(cluster, path):
    netloc = urllib.parse.urlsplit(json.loads((cluster.session / "info.json").read_text())["http"]).netloc
    connection = http.client.HTTPConnection(netloc, timeout=120)
    connection.request("GET", path, headers={"Authorization": "Bearer " + (cluster.session / "http-token").read_text().strip()})
    with connection.getresponse() as response:
        text = response.read().decode()
    connection.close()
    assert response.status == 200, text
    return text


def test_the_command_sums_rows_and_counts_those_it_leaves_out(many):
    command, _ = many
    status = command.json("status")
    assert (status["actors"], status["num_pending"], status["nodes"]) == (ACTORS, ACTORS + JOBS - 1, 1)
    assert status["pending"][0].startswith("actor Trainer: can never start")
    assert status["pending"][0].endswith(f"({ACTORS - 200} alike)")
    assert len(status["pending"]) == 101
    assert len(command.json("status", "-v")["node_rows"]) == NODES
    assert "absent" in command("status", "-v").stdout
    for what, number in (("actors", ACTORS), ("jobs", JOBS), ("nodes", NODES)):
        some = command("list", what, "--limit", "5")
        assert (some.returncode, some.stdout.count("\n")) == (0, 6)
        assert f"{number - 5} rows more" in some.stderr
        assert len(command.rows(what)) == number
        assert command.json("summary", what)["total"] == number
    assert command.json("summary", "actors")["summary"]["Trainer"] == {"PENDING": ACTORS - 200}
    metrics = command("metrics").stdout
    assert 'shoal_actors{state="PENDING"} 20000\n' in metrics
    assert 'shoal_nodes{state="DEAD"} 10000\n' in metrics
    for what in ("actors", "jobs", "nodes"):
        assert command.json("get", what, f"{9_999:016x}")["id"] == f"{9_999:016x}"
    assert "why it waits" in command("describe", "actor", f"{20_000:016x}").stdout
    assert command("doctor").returncode == 0


def test_http_sends_pages_with_their_number_of_rows(many):
    _, cluster = many
    for what, number in (("actors", ACTORS), ("jobs", JOBS), ("nodes", NODES)):
        page = json.loads(get(cluster, f"/api/v0/{what}"))
        assert (len(page["rows"]), page["total"], page["next"]) == (100, number, page["rows"][-1]["id"])
        ids, after = [], ""
        while after is not None:
            page = json.loads(get(cluster, f"/api/v0/{what}?limit={HTTP_ROWS}" + (f"&after={after}" if after else "")))
            assert len(page["rows"]) <= HTTP_ROWS
            ids += [row["id"] for row in page["rows"]]
            after = page["next"]
        assert (len(ids), len(set(ids))) == (number, number)
    assert len(json.loads(get(cluster, "/api/jobs/"))) == JOBS
    assert 'shoal_jobs{state="PENDING"} 10000\n' in get(cluster, "/metrics")


def test_python_reads_them_and_warns_of_rows_beyond_the_default_limit(many):
    _, cluster = many
    with pytest.warns(UserWarning, match="list_actors returns 100 of 20000 rows"):
        assert len(state.list_actors(cluster.address)) == 100
    assert len(state.list_actors(cluster.address, limit=1 << 30)) == ACTORS
    over_http = json.loads((cluster.session / "info.json").read_text())["http"]
    assert len(state.list_nodes(over_http, limit=1 << 30)) == NODES
    assert state.get_job(f"{5_000:016x}", over_http).submission_id == "submission-5000"
    assert state.summarize_actors(cluster.address)["cluster"]["total_actors"] == ACTORS
    client = JobSubmissionClient(over_http)
    assert len(client.list_jobs()) == JOBS
    assert client.get_job_info("submission-9999").job_id == f"{9_999:016x}"
    shoal.init(address=cluster.address)
    try:
        assert len(shoal.nodes()) == NODES
        assert shoal.cluster_resources()["CPU"] == 1
    finally:
        shoal.shutdown()
