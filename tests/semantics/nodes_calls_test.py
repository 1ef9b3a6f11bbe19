"""Calls, streams and ends of actors over two nodes."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Replaces the module's cluster by none: each test starts its two nodes."""


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
