"""Nodes that are cordoned and drained: `shoal cordon`, `uncordon`, `drain`."""

import pytest
from launching.leftovers import wait_until

DRIVER = """
import os, time
import shoal

shoal.init(address="auto")

@shoal.remote(num_cpus=1, max_restarts=2)
class Here:
    def node(self):
        return shoal.get_runtime_context().get_node_id()

def moved(actor, away_from):
    while True:
        try:
            node = shoal.get(actor.node.remote(), timeout=60)
        except shoal.exceptions.ActorUnavailableError:
            continue
        if node != away_from:
            return node
"""


@pytest.fixture
def two_nodes(shoal_command):
    """The ids of the head's node and of another node, with a CPU each."""
    cluster = shoal_command.start(cpus=1)
    first = shoal_command.rows("nodes")[0]["id"]
    second = shoal_command.json("start", "--address", cluster.address, "--num-cpus", "1")["node"]
    yield first, second
    shoal_command.json("stop")


def states(shoal_command):
    return {n["id"]: n["state"] for n in shoal_command.rows("nodes")}


def in_status(shoal_command):
    """The state of each node and its used CPUs, as `status -v` prints them. Checks the states by `status -v --json`."""
    rows = {n["id"]: n["state"] for n in shoal_command.json("status", "-v")["node_rows"]}
    shown = {}
    for line in shoal_command("status", "-v").stdout.splitlines():
        node, *words = line.split() or [""]
        if node in rows:
            shown[node] = words[0], words[2]  # words[1] is the node's address
    assert {node: state for node, (state, _) in shown.items()} == rows
    return shown


def test_a_cordoned_node_takes_no_work_until_it_is_uncordoned(shoal_command, two_nodes):
    first, second = two_nodes
    assert shoal_command.json("cordon", second[:12])["now"] == "cordoned"
    assert states(shoal_command) == {first: "ALIVE", second: "CORDONED"}
    assert in_status(shoal_command) == {first: ("ALIVE", "0/1"), second: ("CORDONED", "0/1")}
    driver = shoal_command.driver(
        DRIVER
        + f"""
one, two = Here.remote(), Here.remote()
assert shoal.get(one.node.remote()) == {first!r}
late = two.node.remote()
print("asked", flush=True)
assert shoal.get(late, timeout=60) == {second!r}
"""
    )
    driver.said("asked")
    wait_until(lambda: any("1 node is cordoned" in p for p in shoal_command.json("status")["pending"]), 20, "why it waits")
    assert shoal_command.json("uncordon", second)["now"] == "uncordoned"
    assert driver.code() == 0, driver.err
    done = shoal_command("cordon", "nonsense")
    assert (done.returncode, done.stdout) == (3, ""), done
    assert "no living node nonsense" in done.stderr


def test_a_hosts_name_means_its_node(shoal_command):
    cluster = shoal_command.start()
    (node,) = (n["id"] for n in shoal_command.rows("nodes"))
    assert shoal_command.json("cordon", "localhost") == {"schema": "shoal.duty/1", "node": node, "now": "cordoned"}
    shoal_command.json("start", "--address", cluster.address, "--num-cpus", "1")
    done = shoal_command("uncordon", "localhost")
    assert done.returncode == 1, done
    assert "2 nodes have this host" in done.stderr
    shoal_command.json("stop")


def test_actors_move_away_from_a_drained_node_which_leaves(shoal_command, two_nodes):
    first, second = two_nodes
    shoal_command.json("cordon", first)
    driver = shoal_command.driver(
        DRIVER
        + f"""
actor = Here.remote()
assert shoal.get(actor.node.remote()) == {second!r}
print("there", flush=True)
assert moved(actor, {second!r}) == {first!r}
while (nodes := {{n["NodeID"]: n for n in shoal.nodes()}})[{second!r}]["state"] != "DEAD":
    time.sleep(0.01)
assert (nodes[{first!r}]["Alive"], nodes[{second!r}]["Alive"]) == (True, False)
"""
    )
    driver.said("there")
    shoal_command.json("uncordon", first)
    assert shoal_command.json("drain", second, "--deadline", "60")["now"] == "drained"
    assert states(shoal_command) == {first: "ALIVE", second: "DEAD"}
    assert in_status(shoal_command)[second] == ("DEAD", "-")
    assert driver.code() == 0, driver.err


def test_immovable_actors_stay_until_the_deadline(shoal_command, two_nodes):
    first, second = two_nodes
    shoal_command.json("cordon", first)
    job = shoal_command.popen("submit", "--num-cpus", "1", "--", "sh", "-c", "echo begun; exec sleep 600")
    job.said("begun")
    driver = shoal_command.driver(
        DRIVER
        + """
@shoal.remote(num_cpus=0)
class Stays:
    def stay(self):
        time.sleep(600)

stays = Stays.remote()  # the other node is cordoned
shoal.get(stays.__ray_ready__.remote())
print("there", flush=True)
try:
    shoal.get(stays.stay.remote())
except shoal.exceptions.ActorDiedError as error:
    print(error.preempted, str(error).partition("\\n")[0])
"""
    )
    driver.said("there")
    assert shoal_command.json("drain", second, "--deadline", "600", "--no-wait")["now"] == "draining"
    assert states(shoal_command)[second] == "DRAINING"
    assert in_status(shoal_command)[second] == ("DRAINING", "1/1")
    assert {j["name"]: j["state"] for j in shoal_command.rows("jobs")}["sh"] == "RUNNING"
    assert shoal_command.json("drain", second, "--deadline", "0")["now"] == "drained"
    assert job.code() not in (0, None)
    assert {j["name"]: j["state"] for j in shoal_command.rows("jobs")}["sh"] == "FAILED"
    assert driver.code() == 0, driver.err
    assert driver.out == "there\nTrue actor Stays died: its node was drained\n"


def test_drain_node_accepts_rays_options(shoal_command, two_nodes):
    first, second = two_nodes
    why = ("--reason-message", "why not")
    idle, preempted = ("--reason", "DRAIN_NODE_REASON_IDLE_TERMINATION", *why), ("--reason", "DRAIN_NODE_REASON_PREEMPTION", *why)
    for words in ((), ("--reason", "DRAIN_NODE_REASON_PREEMPTION"), ("--reason", "x", *why)):
        assert shoal_command("drain-node", "--node-id", second, *words).returncode == 2
    done = shoal_command("drain-node", *preempted)
    assert done.returncode == 1, done
    assert "there are 2 nodes" in done.stderr
    driver = shoal_command.driver(
        DRIVER
        + """
actors = [Here.remote(), Here.remote()]
shoal.get([a.node.remote() for a in actors])
print("there", flush=True)
time.sleep(600)
"""
    )
    driver.said("there")
    done = shoal_command("drain-node", "--node-id", second, *idle)
    assert (done.returncode, done.stdout) != (0, ""), done
    assert "is not idle" in done.stderr
    assert states(shoal_command)[second] == "ALIVE"
    said = shoal_command.json("drain-node", "--node-id", second, *preempted, "--deadline-remaining-seconds", "600")
    assert said["now"] == "draining"
    driver.process.kill()
    wait_until(lambda: states(shoal_command)[second] == "DEAD", 20, "the node's leaving")
    assert shoal_command.json("drain-node", *idle)["node"] == first  # the only node that is left
