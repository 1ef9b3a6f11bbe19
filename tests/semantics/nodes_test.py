"""Placement over two nodes: labels, spreading, a lost node."""

import pytest
from leak_check import alive

DRIVER = """
import os, time
import shoal
from shoal.util import placement_group, placement_group_table, remove_placement_group
from shoal.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

@shoal.remote(num_cpus=1)
class Here:
    def node(self):
        return shoal.get_runtime_context().get_node_id()

    def name(self, value):
        return value + " Here"

    def die(self):
        os._exit(1)

shoal.init(address="auto")
zones = {n["labels"].get("zone"): n["id"] for n in shoal.nodes()}

def node_of(**options):
    actor = Here.options(**options).remote()
    node = shoal.get(actor.node.remote())
    shoal.kill(actor)
    return node
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Empty, because each test starts its own cluster."""


@pytest.fixture
def run(shoal_command):
    head = shoal_command.json("start", "--head", "--num-cpus", "2", "--port", "0", "--label", "zone=a", "--label", "disk=fast")
    shoal_command.json("start", "--address", head["address"], "--num-cpus", "2", "--label", "zone=b")

    def one(body: str) -> str:
        driver = shoal_command.driver(DRIVER + body)
        assert driver.code() == 0, driver.err
        return driver.out

    yield one
    shoal_command.json("stop")


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


def test_calls_are_cancelled_from_other_nodes(run):
    out = run(
        """
import signal
from shoal.exceptions import TaskCancelledError

@shoal.remote(num_cpus=0)
def sleeps(resources=None):
    time.sleep(1000)

@shoal.remote(num_cpus=0)
class There:
    def cancel(self, refs, force):
        assert "another node" in repr(refs[0]), refs
        shoal.cancel(refs[0], force=force)

    def call(self):
        return [sleeps.remote()]

def is_cancelled(ref):
    try:
        shoal.get(ref, timeout=60)
    except TaskCancelledError:
        return
    assert False, ref

there = There.options(label_selector={"zone": "b"}).remote()
waits, runs = sleeps.options(resources={"unobtainium": 1}).remote(), sleeps.remote()
for ref, force in (waits, False), (runs, True):
    shoal.get(there.cancel.remote([ref], force), timeout=60)
    is_cancelled(ref)
(ref,), (other,) = shoal.get([there.call.remote(), there.call.remote()], timeout=60)
assert "another node" in repr(ref), ref
shoal.cancel(ref)
is_cancelled(ref)
(lost,) = (n for n in shoal.nodes() if n["id"] == zones["b"])
os.kill(lost["pid"], signal.SIGKILL)
end = time.monotonic() + 60
while any(n["state"] == "ALIVE" and n["id"] == zones["b"] for n in shoal.nodes()):
    assert time.monotonic() < end
    time.sleep(0.01)
shoal.cancel(other)
print("done")
"""
    )
    assert out == "done\n"


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


FAR = """
import signal

here, there = (NodeAffinitySchedulingStrategy(n["id"], soft=False) for n in shoal.nodes())

@shoal.remote(num_cpus=0)
class Child:
    def pid(self):
        return os.getpid()

    def tell(self, pid):
        self.told = pid

    def told_pid(self):
        return getattr(self, "told", 0)

@shoal.remote(num_cpus=0)
def stays(told):
    shoal.get(told.tell.remote(os.getpid()))
    time.sleep(600)

@shoal.remote(num_cpus=0)
class Parent:
    def begin(self, told):
        self.child = Child.options(scheduling_strategy=there).remote()
        self.running = stays.options(scheduling_strategy=there).remote(told)
        return self.child, shoal.get(self.child.pid.remote()), os.getpid()

def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True

told = Child.remote()
parent = Parent.options(scheduling_strategy=here).remote()
child, *pids = shoal.get(parent.begin.remote(told), timeout=120)
while not shoal.get(told.told_pid.remote(), timeout=120):
    time.sleep(0.01)
pids.append(shoal.get(told.told_pid.remote()))
shoal.kill(parent)
end = time.monotonic() + 120
while not all(map(gone, pids)):
    assert time.monotonic() < end, [gone(pid) for pid in pids]
    time.sleep(0.01)
try:
    shoal.get(child.pid.remote(), timeout=120)
except shoal.exceptions.ActorDiedError:
    print("gone")
"""


def test_actors_created_on_another_node_end_with_their_creator(run):
    assert run(FAR) == "gone\n"


HELD = """
import signal

here = shoal.get_runtime_context().get_node_id()
(there,) = set(zones.values()) - {here}
at = lambda node: {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 0}

@shoal.remote(num_cpus=0)
class Counts:
    def pid(self):
        return os.getpid()

@shoal.remote(num_cpus=0)
class Holder:
    def keep(self, handles):
        self.handles = handles

    def pid(self):
        return os.getpid()

    def theirs(self):
        return shoal.get([h.pid.remote() for h in self.handles])

@shoal.remote(max_calls=1)
def makes():
    actor = Counts.remote()
    shoal.get(actor.pid.remote())
    return os.getpid(), actor

def state(actor_id):
    (row,) = (r for r in shoal._core.process.session().list("actors") if r["id"] == actor_id)
    return row["state"]

def wait(what):
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)

def ends(actor_id):
    wait(lambda: state(actor_id) == "DEAD")

def exits(pid):
    wait(lambda: [r["state"] for r in shoal._core.process.session().list("workers") if r["pid"] == pid] == ["EXITED"])

near, far = Holder.options(**at(here)).remote(), Holder.options(**at(there)).remote()
"""


@pytest.mark.parametrize("node", ["here", "there"])
def test_an_actor_ends_with_its_last_handle_on_any_node(run, node):
    assert (
        run(
            HELD
            + f"""
actor = Counts.options(**at({node})).remote()
actor_id = actor._actor_id
for holder in near, far, near:
    shoal.get(holder.keep.remote([actor]))
del actor
shoal.get(near.keep.remote([]))
pid, = shoal.get(far.theirs.remote())
shoal.get(far.keep.remote([]))
ends(actor_id)

actor = Counts.options(**at({node})).remote()
actor_id = actor._actor_id
shoal.get(far.keep.remote([actor]))
del actor
shoal.get(far.theirs.remote())
os.kill(shoal.get(far.pid.remote()), signal.SIGKILL)  # nobody lets go of it in order
ends(actor_id)
print("done")
"""
        )
        == "done\n"
    )


def test_an_actor_from_another_nodes_function_ends_with_its_last_handle(run):
    assert (
        run(
            HELD
            + """
pid, actor = shoal.get(makes.options(**at(there)).remote())
exits(pid)
actor_id = actor._actor_id
shoal.get([near.keep.remote([actor]), far.keep.remote([actor])])
del actor
shoal.get(near.keep.remote([]))  # this node has no handle any more
probe = shoal.get(makes.options(**at(there)).remote())[1]  # and another actor of such a function ends meanwhile
probe_id = probe._actor_id
del probe
ends(probe_id)
shoal.get(far.theirs.remote())
assert state(actor_id) == "ALIVE"
shoal.get(far.keep.remote([]))
ends(actor_id)
print("done")
"""
        )
        == "done\n"
    )


def test_an_actor_bound_to_a_lost_node_is_unschedulable(run):
    assert run(GONE) == "done\n"


STREAMS = """
import signal
import numpy as np
from shoal.exceptions import ActorDiedError, ActorUnavailableError, WorkerCrashedError

THERE = {"label_selector": {"zone": "b"}}
LOST = (ActorDiedError, ActorUnavailableError)  # by what was heard first: of the end, or of the connection's

@shoal.remote(num_cpus=0)
def numbers(n):
    for i in range(n):
        yield i

@shoal.remote(num_cpus=0)
class Streams:
    def numbers(self, n):
        yield from range(n)

    def mixed(self, n):
        for i in range(n):
            yield np.full(200_000, i)
            yield [shoal.put(i)]

    def raises(self):
        yield 1
        raise KeyError("mine")

@shoal.remote(num_cpus=0)
class AsyncStreams:
    async def numbers(self, n):
        for i in range(n):
            yield i

@shoal.remote(num_cpus=0)
def stops(after):
    yield os.getpid()
    yield from range(after)
    time.sleep(1000)

@shoal.remote(num_cpus=0)
class Stops:
    def stops(self, after):
        yield os.getpid()
        yield from range(after)
        time.sleep(1000)

def items(generator):
    return [shoal.get(ref, timeout=60) for ref in generator]

def lose_node():
    (lost,) = (n for n in shoal.nodes() if n["id"] == zones["b"])
    os.kill(lost["pid"], signal.SIGKILL)

def fails(ref, how):
    try:
        shoal.get(ref, timeout=60)
    except how:
        return
    assert False, ref
"""


def test_streams_arrive_from_another_node(run):
    out = run(
        STREAMS
        + """
there = numbers.options(**THERE)
assert items(there.remote(5)) == list(range(5))
assert items(there.remote(0)) == []
streams, many = Streams.options(**THERE).remote(), AsyncStreams.options(**THERE).remote()
assert items(streams.numbers.remote(300)) == list(range(300))
assert items(many.numbers.remote(5)) == list(range(5))
refs = list(streams.mixed.remote(3))
assert [a[-1] for a in shoal.get(refs[::2])] == [0, 1, 2]
assert [shoal.get(r) for (r,) in shoal.get(refs[1::2])] == [0, 1, 2]
generator = streams.numbers.remote(1)
assert shoal.wait([generator], timeout=60) == ([generator], [])
assert shoal.get(generator.completed(), timeout=60) == 1

# what another process of that node yields is passed on
@shoal.remote(num_cpus=0, **THERE)
def passes():
    return list(numbers.options(label_selector={"zone": "a"}).remote(3))

assert shoal.get(shoal.get(passes.remote())) == [0, 1, 2]
first, failed = streams.raises.remote()
assert shoal.get(first) == 1
fails(failed, KeyError)
print("done")
"""
    )
    assert out == "done\n"


def test_a_stream_keeps_earlier_items_when_its_worker_or_node_dies(run):
    out = run(
        STREAMS
        + """
for made, how in (
    (stops.options(max_retries=0, **THERE).remote, WorkerCrashedError),
    (Stops.options(**THERE).remote().stops.remote, LOST),
):
    generator = made(2)
    refs = [next(generator) for _ in range(3)]
    os.kill(shoal.get(refs[0]), signal.SIGKILL)
    fails(next(generator), how)
    assert next(generator, "over") == "over"
    assert shoal.get(refs[1:]) == [0, 1]

function, method = stops.options(max_retries=0, **THERE).remote(1), Stops.options(**THERE).remote().stops.remote(1)
refs = [[next(g), next(g)] for g in (function, method)]
lose_node()
for generator, there, how in zip((function, method), refs, (WorkerCrashedError, LOST)):
    fails(next(generator), how)
    assert next(generator, "over") == "over"
    assert shoal.get(there[1]) == 0
print("done")
"""
    )
    assert out == "done\n"


def test_a_stream_continues_on_another_node_after_its_own_is_lost(run):
    out = run(
        STREAMS
        + """
@shoal.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(zones["b"], soft=True))
def nodes():
    here = shoal.get_runtime_context().get_node_id()
    yield here
    yield here
    if here == zones["b"]:
        time.sleep(1000)
    yield here

generator = nodes.remote()
before = [shoal.get(next(generator), timeout=60) for _ in range(2)]
lose_node()
assert before + items(generator) == [zones["b"], zones["b"], zones["a"]]
print("done")
"""
    )
    assert out == "done\n"


def test_a_reduce_on_another_node_takes_many_arguments(run):
    out = run(
        STREAMS
        + """
@shoal.remote(num_cpus=0, **THERE)
def total(*parts):
    return len(parts), sum(int(p[-1]) for p in parts)

@shoal.remote(num_cpus=1)  # a worker for each CPU, not for each call
def part(k, size):
    return np.full(size // 8, k)

for size in (80, 80_000, 160_000):
    there = part.options(**THERE)
    refs = [(there if k % 2 else part).remote(k, size) for k in range(300)]
    assert shoal.get(total.remote(*refs), timeout=60) == (300, 300 * 299 // 2)
    assert shoal.get(total.remote(*[shoal.put(np.full(size // 8, 1))] * 1001), timeout=60) == (1001, 1001)
print("done")
"""
    )
    assert out == "done\n"


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

# where one node has no room the other does all of it
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
    assert not alive(pid)  # ended with its driver
