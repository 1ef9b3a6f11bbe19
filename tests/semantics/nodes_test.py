"""Placement over two nodes: labels, spreading, a lost node."""

import pytest
from launching.leftovers import alive
from two_zones import DRIVER


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Replaces the module's cluster by none: each test starts its two nodes."""


def test_actors_are_placed_by_labels_and_node_ids(run, shoal_command):
    out = run(
        """
assert len(zones) == 2, zones
for zone, node in zones.items():
    assert node_of(label_selector={"zone": zone}) == node
    assert node_of(label_selector={"zone": "!" + zone}) != node
    assert node_of(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)) == node
assert node_of(label_selector={"disk": "in(fast, faster)"}) == zones["a"]
print("done")
"""
    )
    assert out == "done\n"
    assert "zone=b" in shoal_command("list", "nodes").stdout


def test_preferred_and_required_labels_decide_the_placement(run):
    out = run(
        """
from shoal.util.scheduling_strategies import Exists, In, NodeLabelSchedulingStrategy, NotIn

def by(hard, soft):
    end = time.monotonic() + 60
    while shoal.available_resources().get("CPU") != 4 and time.monotonic() < end:  # what was killed before holds none any more
        time.sleep(0.01)
    return {"scheduling_strategy": NodeLabelSchedulingStrategy(hard, soft=soft)}

for zone, node in zones.items():
    assert node_of(**by({}, {"zone": In(zone)})) == node
    assert node_of(**by({}, {"zone": NotIn(zone)})) != node
    assert node_of(**by({"zone": In(zone)}, {"disk": Exists()})) == node
assert node_of(**by({"zone": Exists()}, {"disk": In("tape")})) in zones.values()

@shoal.remote(num_cpus=1, **by({}, {"disk": Exists()}))  # nothing runs: there is room on it
def where():
    return shoal.get_runtime_context().get_node_id()

assert shoal.get(where.remote()) == zones["a"]
b = by({}, {"zone": In("b")})
full = [Here.options(**b).remote() for _ in range(3)]
assert sorted(shoal.get([a.node.remote() for a in full])) == sorted([zones["b"], zones["b"], zones["a"]])
print("done")
"""
    )
    assert out == "done\n"


def test_a_full_node_of_choice_spills_and_a_topology_holds_a_group_together(run):
    out = run(
        """
def on(zone, **how):
    return Here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(zones[zone], **how)).remote()

full = [on("b", soft=False) for _ in range(2)]
assert set(shoal.get([a.node.remote() for a in full])) == {zones["b"]}
spilled = on("b", soft=True, _spill_on_unavailable=True)
assert shoal.get(spilled.node.remote()) == zones["a"]
try:
    shoal.get(on("b", soft=False, _fail_on_unavailable=True).node.remote())
except shoal.exceptions.ActorUnschedulableError:
    print("refused")
for actor in full:
    shoal.kill(actor)
# Two bundles that have room in zone a and b together have it in zone b alone.
group = placement_group([{"CPU": 1}, {"CPU": 1}], topology_strategy={"zone": "STRICT_PACK"})
assert group.wait(60)
assert set(placement_group_table(group)["bundles_to_node_id"].values()) == {zones["b"]}
"""
    )
    assert out == "refused\n"


def test_nodes_are_resources_too(run, shoal_command):
    out = run(
        """
total = shoal.cluster_resources()
assert total["node:127.0.0.1"] == 2, total  # both are on this host
assert total["node:__internal_head__"] == 1, total
assert node_of(resources={"node:__internal_head__": 0.01}) == zones["a"]
assert node_of(resources={"node:127.0.0.1": 1, "node:__internal_head__": 1}) == zones["a"]
elsewhere = Here.options(resources={"node:10.9.8.7": 0.01}).remote()
assert node_of() in zones.values()  # who came after it has its place
rows = {r["id"]: r["state"] for r in shoal._core.process.session().list("actors")}
assert rows[elsewhere._actor_id] == "PENDING", rows
print("done")
"""
    )
    assert out == "done\n"
    assert "node:" not in shoal_command("list", "nodes").stdout + shoal_command("status", "-v").stdout


def test_groups_over_nodes(run):
    out = run(
        """
def nodes_of(bundles, strategy):
    group = placement_group(bundles, strategy=strategy)
    assert group.wait(60), strategy
    nodes = list(placement_group_table(group)["bundles_to_node_id"].values())
    remove_placement_group(group)
    return nodes

assert len(set(nodes_of([{"CPU": 1}] * 2, "PACK"))) == 1
assert len(set(nodes_of([{"CPU": 1}] * 2, "SPREAD"))) == 2
assert len(set(nodes_of([{"CPU": 1}] * 2, "STRICT_SPREAD"))) == 2
assert len(set(nodes_of([{"CPU": 1}] * 2, "STRICT_PACK"))) == 1
assert len(set(nodes_of([{"CPU": 1}] * 4, "PACK"))) == 2
assert not placement_group([{"CPU": 2}] * 2, strategy="STRICT_PACK").wait(0.1)
print("done")
"""
    )
    assert out == "done\n"


def test_each_bundle_goes_to_a_node_with_its_labels(run):
    out = run(
        """
for strategy in ("PACK", "SPREAD", "STRICT_SPREAD"):
    selectors = [{"zone": "b"}, {"zone": "!b"}]
    group = placement_group([{"CPU": 1}] * 2, strategy=strategy, bundle_label_selector=selectors)
    assert group.wait(60), strategy
    assert placement_group_table(group)["bundles_to_node_id"] == {0: zones["b"], 1: zones["a"]}
    there = node_of(scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0))
    assert there == zones["b"]
    remove_placement_group(group)
assert not placement_group([{"CPU": 1}] * 2, "STRICT_PACK", bundle_label_selector=[{"zone": "a"}, {"zone": "b"}]).wait(0.1)
print("done")
"""
    )
    assert out == "done\n"


def test_only_an_uncompiled_graph_spans_several_nodes(run):
    out = run(
        """
from shoal.dag import InputNode

here, there = (Here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n["id"], soft=False)).remote() for n in shoal.nodes())
with InputNode() as inp:
    graph = there.name.bind(here.name.bind(inp))
assert shoal.get(graph.execute("x")) == "x Here Here"
try:
    graph.experimental_compile()
except shoal.exceptions.Unimplemented as refused:
    assert "is on another node" in str(refused), refused
    print("refused")
"""
    )
    assert out == "refused\n"


LOST = """
import signal
mine = shoal.get_runtime_context().get_node_id()  # a driver ends with its node
other = next(n for n in shoal.nodes() if n["id"] != mine)
group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
assert group.wait(60)
lost = next(i for i, node in placement_group_table(group)["bundles_to_node_id"].items() if node == other["id"])
place = PlacementGroupSchedulingStrategy(group, lost)
actor = Here.options(scheduling_strategy=place, max_restarts=1, max_task_retries=-1).remote()
assert shoal.get(actor.node.remote()) == other["id"]
os.kill(other["pid"], signal.SIGKILL)
while placement_group_table(group)["state"] != "RESCHEDULING":
    time.sleep(0.01)
answer = actor.node.remote()
assert shoal.wait([answer], timeout=0.3)[0] == []
print("lost", flush=True)
assert shoal.get(answer) not in zones.values()
assert placement_group_table(group)["state"] == "CREATED"
print("done")
"""


def test_actors_of_bundles_on_a_lost_node_wait_for_another_node(run, shoal_command):
    driver = shoal_command.driver(DRIVER + LOST)
    driver.said("lost")
    address = shoal_command.json("status")["address"]
    shoal_command.json("start", "--address", address, "--num-cpus", "2")
    assert driver.code() == 0, driver.err
    assert driver.out.endswith("done\n")


GONE = """
import signal
mine = shoal.get_runtime_context().get_node_id()
other = next(n for n in shoal.nodes() if n["id"] != mine)
there = NodeAffinitySchedulingStrategy(other["id"], soft=False)
full = Here.options(num_cpus=2, scheduling_strategy=there).remote()
assert shoal.get(full.node.remote()) == other["id"]
waits = Here.options(num_cpus=1, scheduling_strategy=there).remote()

@shoal.remote
def task():
    return 1

calls = [waits.node.remote(), task.options(scheduling_strategy=there).remote()]
assert shoal.wait(calls, timeout=0.1)[0] == []
os.kill(other["pid"], signal.SIGKILL)
for call, error in zip(calls, (shoal.exceptions.ActorUnschedulableError, shoal.exceptions.TaskUnschedulableError)):
    try:
        shoal.get(call, timeout=60)
    except error as raised:
        assert "was lost" in str(raised), raised
    else:
        raise AssertionError("there was room for it")
print("done")
"""


def test_an_actor_bound_to_a_lost_node_is_unschedulable(run):
    assert run(GONE) == "done\n"


def test_functions_with_spread_take_turns_on_the_nodes(run):
    out = run(
        """
@shoal.remote(num_cpus=1, scheduling_strategy="SPREAD")
def node():
    return shoal.get_runtime_context().get_node_id()

def until_both(call):
    seen, end = set(), time.monotonic() + 60
    while seen != set(zones.values()):
        assert time.monotonic() < end, seen
        seen |= set(call())

until_both(lambda: [shoal.get(node.remote(), timeout=60)])
until_both(lambda: shoal.get([node.remote() for _ in range(40)], timeout=60))
assert {shoal.get(node.options(label_selector={"zone": "b"}).remote(), timeout=60) for _ in range(4)} == {zones["b"]}

# where one node has no room, the other one runs all calls
full = [Here.options(label_selector={"zone": "a"}, num_cpus=1).remote() for _ in range(2)]
shoal.get([a.node.remote() for a in full], timeout=60)
assert shoal.get([node.options(name="more").remote() for _ in range(4)], timeout=60)
print("done")
"""
    )
    assert out == "done\n"


CLUSTER = """
import os
import shoal as ray
from shoal.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"head": 1}, "_system_config": {}})
node = cluster.add_node(num_cpus=1, num_gpus=2, resources={"custom": 1}, labels={"zone": "b"}, env_vars={"MINE": "1"})
try:
    cluster.add_node(num_cpu=1)
except TypeError as error:
    assert "num_cpu" in str(error)
cluster.connect(namespace="mine")
cluster.wait_for_nodes()
assert ray.get_runtime_context().namespace == "mine" and cluster.connected
assert cluster.list_all_nodes() == [cluster.head_node, node] and cluster.worker_nodes == {node}
assert {n["NodeID"] for n in ray.nodes()} == {cluster.head_node.node_id, node.unique_id}
found = ray.cluster_resources()
assert (found["CPU"], found["GPU"], found["custom"], found["head"]) == (3, 2, 1, 1), found

@ray.remote(resources={"custom": 1}, num_cpus=0)
def where():
    return ray.get_runtime_context().get_node_id(), os.environ["MINE"]

assert ray.get(where.remote()) == (node.node_id, "1")
cluster.remove_node(node)
cluster.wait_for_nodes()
assert not node.remaining_processes_alive() and cluster.remaining_processes_alive()
killed = [cluster.add_node(), cluster.add_node()]
cluster.remove_node(killed[0], allow_graceful=False)
killed[1].kill_raylet()
assert not cluster.remaining_processes_alive()
cluster.remove_node(killed[1])
cluster.wait_for_nodes()
assert cluster.list_all_nodes() == [cluster.head_node]
try:
    cluster.remove_node(cluster.head_node)
except ValueError as error:
    assert "connected" in str(error)
assert not ray.is_initialized()
ray.init(address=cluster.address)
head = cluster.head_node
cluster.shutdown()
assert not ray.is_initialized() and not head.remaining_processes_alive() and cluster.address is None
left = Cluster(initialize_head=True, connect=True)
print("left", left.head_node.pid)
"""


def test_cluster_utils_starts_and_ends_nodes(shoal_command):
    driver = shoal_command.driver(CLUSTER)
    assert driver.code() == 0, driver.err
    (pid,) = (int(line.split()[1]) for line in driver.out.splitlines() if line.startswith("left "))
    assert not alive(pid)  # the node that the driver left running ended with the driver
