"""References inside of values between nodes: on one host, and on two."""

import pytest
from launching.two_nodes import KINDS, run, two_nodes


@pytest.fixture(scope="module", params=KINDS)
def nodes(request):
    yield from two_nodes(request.param)


def test_a_reference_in_a_value_resolves_on_the_receiving_node(nodes):
    run(
        nodes,
        """
there = holder("b")
small, large = shoal.put("small"), shoal.put(np.arange(1 << 20))
shoal.get(there.keep.remote("list", [small, large]))
text, array = shoal.get(there.value.remote("list"))
assert text == "small" and array[-1] == (1 << 20) - 1
assert shoal.get(there.look.remote([large])) == [(8 << 20, (1 << 20) - 1, False, False)]
# In a dict, of a call's result, as what an actor is made from, and back again as the same one.
made = on("b").echo.remote("made")
again = holder("b", {"made": made, "small": small})
[back] = shoal.get(again.give.remote("given"))
assert back == {"made": made, "small": small}
assert shoal.get(list(back.values())) == ["made", "small"]
""",
    )


def test_an_object_of_another_node_supports_get_wait_and_await(nodes):
    run(
        nodes,
        """
import asyncio

@shoal.remote(num_cpus=1)
class Waits:
    async def value(self, refs):
        return [await r for r in refs]

here, there = holder("a"), holder("b")
ref = shoal.get(there.put.remote(np.full(1 << 20, 7)))["made"][0]
assert shoal.wait([ref], timeout=GUARD_S) == ([ref], [])
assert shoal.get(ref)[5] == 7
shoal.get(here.keep.remote("it", [ref]))
shoal.get(here.pass_on.remote("it", there))
assert shoal.get(there.look.remote([ref])) == [(8 << 20, 7, False, False)]
assert shoal.get(on("a").echo.remote(ref))[5] == 7  # replaced by its value
awaits = Waits.options(label_selector={"host": "a"}).remote()
assert shoal.get(awaits.value.remote([ref]))[0][0] == 7
""",
    )


def test_a_reference_dropped_by_its_caller_is_held_in_flight(nodes):
    run(
        nodes,
        """
here, there = holder("a"), holder("b")
for size in (1, 8 << 20):
    shoal.get(here.keep.remote("it", shoal.get(there.put.remote(np.zeros(size, np.uint8)))["made"][0]))  # replaced by its value
    assert shoal.get(here.give.remote("it")).nbytes == size
    assert shoal.get(on("a").echo.remote(shoal.get(there.put.remote(np.zeros(size, np.uint8)))["made"][0])).nbytes == size
    assert shoal.get(shoal.get(there.put.remote(np.zeros(size, np.uint8)))["made"][0]).nbytes == size
""",
    )


def test_threads_may_fetch_one_object_at_the_same_time(nodes):
    run(
        nodes,
        """
there = holder("b")
for i in range(30):
    shoal.get(there.keep.remote("it", [shoal.put(i)]))
    assert shoal.get([there.value.remote("it") for _ in range(4)]) == [[i]] * 4
""",
    )


def test_a_pending_object_of_another_node_is_awaited(nodes):
    run(
        nodes,
        """
@shoal.remote(num_cpus=1, max_concurrency=2)
class Gate:
    def __init__(self):
        import threading
        self.opened = threading.Event()
    def wait(self, then):
        self.opened.wait()
        if isinstance(then, Exception):
            raise then
        return then
    def open(self):
        self.opened.set()

gate, there = Gate.options(label_selector={"host": "a"}).remote(), holder("b")
late = gate.wait.remote("late")
shoal.get(there.keep.remote("it", [late]))
value = there.value.remote("it")
assert shoal.wait([value], timeout=0.1) == ([], [value])
gate.open.remote()
assert shoal.get(value) == ["late"]
bad = gate.wait.remote(KeyError("raised"))
shoal.get(there.keep.remote("bad", [bad]))
try:
    shoal.get(there.value.remote("bad"))
    raise AssertionError("no exception")
except KeyError as error:
    assert "raised" in str(error)
""",
    )


def test_an_object_is_freed_after_the_last_reference_on_any_node(nodes):
    run(
        nodes,
        """
here, there = holder("a"), holder("b")
ref = shoal.put("kept")
shoal.get([h.keep.remote("it", [ref]) for h in (here, there)])
name = name_of(ref)
del ref
shoal.get(here.drop.remote("it"))
assert shoal.get(there.value.remote("it")) == ["kept"]
assert exists(name)
shoal.get(there.pass_on.remote("it", here))
shoal.get(there.drop.remote("it"))
assert exists(name)
shoal.get(here.drop.remote("it"))
assert soon(lambda: not exists(name))

# What is contained goes with what contains it, wherever that is.
inner = shoal.put("inner")
name = name_of(inner)
outer = shoal.get(there.put.remote([inner]))["made"][0]
del inner
[again] = shoal.get(outer)
assert shoal.get(again) == "inner"
shoal.get(there.keep.remote("outer", [outer]))
del again, outer
[[again]] = shoal.get(there.value.remote("outer"))
assert shoal.get(again) == "inner"
del again
shoal.get(there.drop.remote("outer"))
assert soon(lambda: not exists(name))
""",
    )


def test_a_list_of_many_small_objects_resolves(nodes):
    run(
        nodes,
        """
there = holder("b")
refs = [shoal.put(i) for i in range(1000)]
names = [name_of(r) for r in refs[::333]]
shoal.get(there.keep.remote("all", refs))
del refs
assert shoal.get(there.value.remote("all")) == list(range(1000))
assert all(map(exists, names))
shoal.get(there.drop.remote("all"))
assert soon(lambda: not any(map(exists, names)))
""",
    )


def test_a_large_object_is_fetched_once_per_node(nodes):
    run(
        nodes,
        """
before = memories("b")
readers = [holder("b") for _ in range(3)]
array = np.zeros(300 << 20, np.uint8)
array[-1] = 9
ref = shoal.put(array)
shoal.get([r.keep.remote("it", [ref]) for r in readers])
looks = shoal.get([r.look.remote([ref]) for r in readers])
assert looks == [[(300 << 20, 9, False, False)]] * 3
assert len(memories("b") - before) == 1
shoal.get(readers[0].drop.remote("it"))
assert shoal.get(readers[1].value.remote("it"))[0][-1] == 9
for r in readers[1:]:
    shoal.get(r.drop.remote("it"))
assert soon(lambda: not memories("b") - before)  # although it lives here
assert shoal.get(ref)[-1] == 9
name = name_of(ref)
del ref
assert soon(lambda: not exists(name))
""",
    )
