"""Objects between nodes when processes or nodes die, a cable is pulled, or memory is short; each test has a cluster of its own."""

import os
import signal

import pytest
from launching.commands import LIMIT_S
from launching.leftovers import wait_until
from launching.two_nodes import DRIVER, KINDS, pid_of, run, two_nodes


@pytest.fixture(params=KINDS)
def nodes(request):
    yield from two_nodes(request.param)


@pytest.fixture
def hosts():
    yield from two_nodes("two hosts")


@pytest.fixture
def narrow():
    """Two hosts, of which the second has room for 64 MiB of objects."""
    yield from two_nodes("two hosts", "--object-store-memory", str(64 << 20))


def test_dead_processes_and_nodes_keep_no_objects(nodes):
    driver = nodes.a.driver(
        DRIVER
        + """
import signal

there, other = holder("b"), holder("b")
first, second = shoal.put("first"), shoal.put("second")
names = name_of(first), name_of(second)
shoal.get([there.keep.remote("it", [first]), other.keep.remote("it", [second])])
del first, second
assert all(map(exists, names))
os.kill(shoal.get(there.pid.remote()), signal.SIGKILL)
assert soon(lambda: not exists(names[0]))
assert exists(names[1])
print("the node", flush=True)
assert soon(lambda: not exists(names[1]))
""",
        HEAD=nodes.address,
    )
    driver.said("the node")
    os.kill(pid_of(nodes, nodes.node), signal.SIGKILL)
    assert driver.code() == 0, driver.err


def test_objects_are_lost_with_their_node(nodes):
    driver = nodes.a.driver(
        DRIVER
        + """
here, there = holder("a"), holder("b")
refs = [shoal.get(there.put.remote(f"{i}"))["made"][0] for i in range(3)]
assert shoal.get(refs[0]) == "0"
shoal.get(here.keep.remote("it", refs[1:]))
print("the node", flush=True)

def lost(ref):
    try:
        shoal.get(ref, timeout=GUARD_S)
    except OwnerDiedError as error:
        return os.environ["NODE"] in str(error)

def dead():
    try:
        shoal.get(there.pid.remote())
    except shoal.exceptions.ActorUnavailableError:
        return False
    except shoal.exceptions.ActorDiedError:
        return True

assert soon(dead)
assert shoal.get(refs[0]) == "0"  # it is in this process
assert soon(lambda: lost(here.value.remote("it")))
""",
        HEAD=nodes.address,
        NODE=nodes.node,
    )
    driver.said("the node")
    os.kill(pid_of(nodes, nodes.node), signal.SIGKILL)
    assert driver.code() == 0, driver.err


def test_a_node_that_dies_in_a_transfer_fails_the_get(hosts):
    driver = hosts.a.driver(
        DRIVER
        + """
import signal, threading

(pid,) = (n["pid"] for n in shoal.nodes() if n["labels"].get("host") == "b")
there, here = holder("b"), holder("a")
# How much of it has come: of a memory, what was written.
def arrived():
    new = memories("a") - before
    return max((blocks for inode, blocks in written("a").items() if inode in new), default=0)

for attempt in range(20):
    ref = shoal.get(there.put.remote(np.zeros(300 << 20, np.uint8)))["made"][0]
    before = memories("a")
    look = here.look.remote([ref])
    while arrived() == 0 and not look._ref.ready:
        pass
    if 0 < arrived() < 100 << 20:
        os.kill(pid, signal.SIGSTOP)
        if arrived() < 200 << 20:  # what is on its way is less than the rest
            break
        os.kill(pid, signal.SIGCONT)
    shoal.get(look)
else:
    raise AssertionError("it was never seen in the middle")
os.kill(pid, signal.SIGKILL)
try:
    shoal.get(look, timeout=GUARD_S)
    raise AssertionError("a value that nobody could send")
except OwnerDiedError as error:
    assert os.environ["NODE"] in str(error) and "10.77.0.2" in str(error), str(error)
assert soon(lambda: not memories("a") - before)
""",
        HEAD=hosts.address,
        NODE=hosts.node,
    )
    assert driver.code() == 0, driver.err


def test_a_pulled_cable_fails_the_get(hosts, tmp_path):
    pulled = tmp_path / "pulled"
    body = """
here, there = holder(os.environ["HERE"]), holder(os.environ["THERE"])
array = shoal.get(there.put.remote(np.zeros(8 << 20, np.uint8)))["made"]
shoal.get(here.keep.remote("it", array))
print("pull", flush=True)
while not os.path.exists(os.environ["PULLED"]):
    time.sleep(0.01)
try:
    shoal.get(here.value.remote("it"))
    raise AssertionError("a value that nobody could send")
except ObjectLostError as error:
    assert os.environ["ADDRESS"] in str(error), str(error)
"""
    with_head, without = (
        host.driver(DRIVER + body, HEAD=hosts.address, HERE=here, THERE=there, ADDRESS=other.address, PULLED=str(pulled))
        for host, here, there, other in ((hosts.a, "a", "b", hosts.hosts.b), (hosts.b, "b", "a", hosts.hosts.a))
    )
    for driver in (with_head, without):
        driver.said("pull")
    hosts.hosts.pull_cable()
    pulled.touch()
    assert with_head.code() == 0, with_head.err
    # No head reports the death to node b: its own connection breaks. 30 s later the get fails (scheduler/node/objects/objects_test.cc).
    logs = list(hosts.b.home.glob("*/logs/node*"))
    wait_until(lambda: any("not reached: " in log.read_text() for log in logs), LIMIT_S, "a broken connection")
    without.signal(signal.SIGKILL)
    without.code()


def test_replicas_respect_the_limit_of_their_node(narrow):
    run(
        narrow,
        """
there = holder("b")
refs = [shoal.put(np.full(24 << 20, i, np.uint8)) for i in range(6)]
shoal.get(there.keep.remote("all", refs))
assert shoal.get(there.look.remote(refs[:2])) == [(24 << 20, i, False, False) for i in range(2)]
for i in range(6):  # what was read before lies in files
    assert shoal.get(there.look.remote(refs[i : i + 1])) == [(24 << 20, i, False, False)]
try:
    shoal.get(there.look.remote([shoal.put(np.zeros(100 << 20, np.uint8))]))
    raise AssertionError("no room for that")
except ObjectStoreFullError as error:
    assert "larger than all of that" in str(error)
assert shoal.get(there.look.remote(refs[5:])) == [(24 << 20, 5, False, False)]
""",
    )
