"""A3 of COVERAGE.md, memory of objects: values that were read stay unchanged and read-only; memory is reused, and freed with the last
reference."""

import contextlib
import copy
import dataclasses
import os
import pickle
import signal
import time

import numpy as np
import pytest
from semantics_actors import GUARD_S

import shoal as ray
from shoal import ObjectRef
from shoal.exceptions import ObjectFreedError

LARGE = 1 << 18  # numbers of 8 bytes, so 2 MiB: too large for a frame, and for memory that is kept for the next value


@ray.remote
class Keeper:
    """An actor that keeps its arguments, and creates values on request."""

    def __init__(self):
        self.kept = {}

    def keep(self, name, value):
        self.kept[name] = value

    def first(self, name):
        return float(self.kept[name][0])

    def drop(self, name):
        del self.kept[name]

    def make(self, value):
        return np.full(LARGE, float(value))


@pytest.fixture
def keeper():
    actor = Keeper.remote()
    yield actor
    ray.kill(actor)


def address(array):
    return array.__array_interface__["data"][0]


# ---- reuse of memory


def test_values_read_here_stay_unchanged_during_further_puts():
    kept = {k: ray.get(ray.put(np.full(LARGE, float(k)))) for k in range(4)}  # the values stay, their references are dropped
    for k in range(20):
        ray.put(np.full(LARGE, -1.0 - k))
    assert {k: (v[0], v[-1]) for k, v in kept.items()} == {k: (k, k) for k in kept}


def test_values_kept_by_an_actor_stay_unchanged_during_further_puts(keeper):
    for k in range(4):
        ray.get(keeper.keep.remote(k, np.full(LARGE, float(k))))
    for k in range(20):
        ray.put(np.full(LARGE, -1.0 - k))
    assert ray.get([keeper.first.remote(k) for k in range(4)]) == [0, 1, 2, 3]


def test_kept_results_stay_unchanged_during_further_calls(keeper):
    kept = [ray.get(keeper.make.remote(k)) for k in range(4)]
    for k in range(10):
        ray.get(keeper.make.remote(-1 - k))
    assert [v[-1] for v in kept] == [0, 1, 2, 3]


def test_an_argument_in_flight_keeps_its_memory(keeper):
    calls = [keeper.keep.remote(k, np.full(LARGE, float(k))) for k in range(20)]
    ray.get(calls)
    assert ray.get([keeper.first.remote(k) for k in range(20)]) == list(range(20))


# ---- shared memory of readers


@pytest.mark.parametrize("count", [2_000, 200_000])
def test_arrays_are_aligned(count):
    array = np.arange(count, dtype="f4")
    got = ray.get(ray.put({"name": "x" * 7, "two": [array, array + 1]}))
    for i, a in enumerate(got["two"]):
        assert a.flags.aligned
        assert a.ctypes.data % 64 == 0
        assert memoryview(a)[3] == 3 + i


def test_gets_of_one_reference_share_their_memory():
    ref = ray.put(np.zeros(LARGE))
    assert address(ray.get(ref)) == address(ray.get(ref))


@pytest.mark.parametrize("numel", [1, 512, LARGE])
def test_an_array_cannot_be_written(numel):
    array = ray.get(ray.put(np.zeros(numel)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


@pytest.mark.parametrize("numel", [2_000, LARGE])
def test_writes_to_a_tensor_stay_private(numel):
    import torch  # not at the top, because workers import this module

    ref = ray.put({"tensor": torch.zeros(numel), "array": np.zeros(numel)})
    mine = ray.get(ref)
    mine["tensor"] += 1
    other = ray.get(ref)
    assert not other["tensor"].any()
    assert not other["array"].any()
    assert mine["tensor"].all()


# ---- counted references


@ray.remote
class Holder:
    """An actor that holds references, and passes them on."""

    def __init__(self):
        self.kept = {}

    def keep(self, name, refs):
        self.kept[name] = refs

    def give(self, name):
        return self.kept[name]

    def value(self, name):
        return ray.get(self.kept[name])

    def drop(self, name):
        del self.kept[name]

    def put(self, value):
        return [ray.put(value)]

    def pass_on(self, name, other):
        ray.get(other.keep.remote(name, self.kept[name]))

    def pid(self):
        return os.getpid()


@pytest.fixture
def holder():
    actor = Holder.remote()
    yield actor
    ray.kill(actor)


@pytest.fixture
def other():
    actor = Holder.remote()
    yield actor
    ray.kill(actor)


def name_of(ref):
    """The id and owner of a reference, by which tests ask about the value when the reference is gone. Publishing registers the value
    with the node."""
    return ref._publish(), ref._owner


def there(name):
    from internals.core import session

    try:
        ray.get(ObjectRef(session().fetch(*name)), timeout=GUARD_S)
    except ObjectFreedError:
        return False
    return True


def is_freed(name):
    """Returns whether the node frees the object within GUARD_S."""
    end = time.monotonic() + GUARD_S
    while there(name) and time.monotonic() < end:
        time.sleep(0.001)
    return not there(name)


def given(value, actor, name="it"):
    """Puts a value to which only the actor has a reference, and returns its name."""
    ref = ray.put(value)
    ray.get(actor.keep.remote(name, [ref]))
    return name_of(ref)


def test_a_borrowed_value_is_freed_with_its_last_reference(holder):
    name = given("kept", holder)
    assert there(name)
    assert ray.get(holder.value.remote("it")) == ["kept"]
    ray.get(holder.drop.remote("it"))
    assert is_freed(name)


@dataclasses.dataclass
class Part:
    ref: object
    number: int = 0


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda ref: copy.deepcopy({"x": [ref, ref]}),
        lambda ref: dataclasses.asdict(Part(ref)),
        lambda ref: dataclasses.replace(Part(ref), number=1),
    ],
    ids=["copy", "deepcopy", "deepcopy of a dict", "asdict", "replace"],
)
def test_a_copied_reference_keeps_a_value_until_it_is_dropped(holder, copied):
    ref = ray.put("kept")
    ray.get(holder.keep.remote("it", [ref]))
    [borrowed] = ray.get(holder.give.remote("it"))
    ray.get(holder.drop.remote("it"))
    name, made = name_of(ref), [copied(ref), copied(borrowed)]
    del ref, borrowed
    other = given("other", holder)  # is freed after the node has processed all earlier messages
    ray.get(holder.drop.remote("it"))
    assert is_freed(other)
    assert there(name)
    del made
    assert is_freed(name)


def test_a_value_that_its_creator_keeps_is_not_freed(holder):
    ref = ray.put("kept")
    ray.get(holder.keep.remote("it", [ref]))
    ray.get(holder.drop.remote("it"))
    name = given("other", holder)  # is freed after the node has processed all earlier messages
    ray.get(holder.drop.remote("it"))
    assert is_freed(name)
    assert there(name_of(ref))


def test_references_in_dropped_arguments_are_released(holder):
    ref = ray.put("kept")
    ray.get([holder.keep.remote("it", [ref]) for _ in range(3)])
    name = name_of(ref)
    ray.get(holder.drop.remote("it"))
    del ref
    assert is_freed(name)


def test_references_in_a_result_pass_to_the_caller(holder):
    [ref] = ray.get(holder.put.remote("made"))
    name = name_of(ref)
    assert ray.get(ref) == "made"
    assert there(name)
    del ref
    assert is_freed(name)


def test_an_unread_result_keeps_its_references(holder):
    result = holder.put.remote("made")
    ray.wait([result])
    other = given("other", holder)
    ray.get(holder.drop.remote("it"))
    assert is_freed(other)
    assert ray.get(ray.get(result)[0]) == "made"


def test_a_borrower_passes_a_reference_on_and_drops_it(holder, other):
    name = given("kept", holder)
    ray.get(holder.pass_on.remote("it", other))
    ray.get(holder.drop.remote("it"))
    assert ray.get(other.value.remote("it")) == ["kept"]
    assert there(name)
    ray.get(other.drop.remote("it"))
    assert is_freed(name)


def test_objects_inside_of_an_object_live_as_long_as_it(holder):
    inner = ray.put("inner")
    outer = ray.put([inner])
    names = name_of(inner), name_of(outer)
    ray.get(holder.keep.remote("it", [outer]))
    del inner, outer
    [[again]] = ray.get(holder.value.remote("it"))
    assert ray.get(again) == "inner"
    del again
    assert all(map(there, names))
    ray.get(holder.drop.remote("it"))
    assert all(map(is_freed, names))


def test_a_dead_borrower_keeps_nothing(holder):
    name = given("kept", holder)
    os.kill(ray.get(holder.pid.remote()), signal.SIGKILL)
    assert is_freed(name)


def test_a_pending_value_is_freed_with_its_last_reference(holder, gate):
    ref = gate.wait.remote(then="late")
    ray.get(holder.keep.remote("it", [ref]))
    name = name_of(ref)
    del ref
    ray.get(holder.drop.remote("it"))
    assert is_freed(name)
    gate.open.remote()


def test_one_of_several_results_keeps_its_references(holder):
    @ray.remote(num_returns=2)
    def make():
        return [ray.put("first")], [ray.put("second")]

    first, second = make.remote()
    [ref] = ray.get(first)
    name = name_of(ref)
    assert ray.get(ref) == "first"
    del first, second, ref
    assert is_freed(name)


def test_a_reference_pickled_by_hand_keeps_its_value():
    ref = ray.put("kept")
    pickled, name = pickle.dumps(ref), name_of(ref)
    del ref
    assert ray.get(pickle.loads(pickled)) == "kept"
    assert there(name)


class Reader:
    def read(self, refs):
        return ray.get(refs)


@pytest.mark.parametrize("at_once", [1, 3])
def test_arguments_are_released_before_the_next_call(at_once):
    reader = ray.remote(Reader).options(max_concurrency=at_once).remote()
    ref = ray.put("it")
    assert ray.get(reader.read.remote([ref])) == ["it"]
    name = name_of(ref)
    del ref
    assert is_freed(name)  # the reader has released its argument without a further call
    ray.kill(reader)


def test_get_of_a_freed_value_raises_at_once(holder):
    name = given("kept", holder)
    ray.get(holder.drop.remote("it"))
    assert is_freed(name)
    from internals.core import refs

    with pytest.raises(ObjectFreedError):
        ray.get(refs._fetch(name[0], "", name[1]), timeout=GUARD_S)


def test_reused_memory_does_not_grow(holder):
    value = np.zeros(LARGE)  # 2 MiB
    for _ in range(3):
        ray.get(holder.keep.remote("it", [ray.put(value)]))
    before = shared_memory()
    for _ in range(20):
        last = given(value, holder)
        for _ in range(5):
            ray.get(holder.keep.remote("it", [ray.put(value)]))
        assert is_freed(last)  # waits for the node, which may be slow to free objects
    ray.get(holder.drop.remote("it"))
    assert shared_memory() - before < 50 * value.nbytes


def shared_memory():
    """Bytes of the shared memory into which this process has written values."""
    files = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "shoal:value" in os.readlink(f"/proc/self/fd/{fd}"):
                info = os.stat(f"/proc/self/fd/{fd}")
                files[info.st_ino] = info.st_blocks * 512
    return sum(files.values())
