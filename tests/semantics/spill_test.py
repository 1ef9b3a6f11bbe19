"""A3 of COVERAGE.md: objects beyond the limit of the store lie in files until they are read."""

import gc
import os
import signal
import tempfile

import numpy as np
import pytest
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ObjectStoreFullError

MIB = 1 << 20
LIMIT = 64 * MIB
SIZE = 8 * MIB


spilled = {"folder": ""}  # the folder in which processes open files, which they unlink at once


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    """One cluster for the module, with a small object store."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        ray.init(num_cpus=4, object_store_memory=LIMIT, object_spilling_directory=folder)
        spilled["folder"] = os.path.realpath(folder) + "/"
        yield
        ray.shutdown()
        assert os.listdir(folder) == []


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()  # frees tracebacks that are in reference cycles
    assert files() == 0


def made(k):
    return np.full(SIZE // 8, float(k))


def right(array, k):
    return array.shape == (SIZE // 8,) and array[0] == k and array[-1] == k


def descriptors(of):
    out = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
            info = os.stat(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if of in name:
            out.append((info.st_ino, info.st_blocks * 512))
    return dict(out)


def files():
    """The number of unlinked files with values that this process has open."""
    return len(descriptors(spilled["folder"]))


def in_memory():
    """Bytes of the shared memory for values that this process has open."""
    return sum(descriptors("shoal:value").values())


@ray.remote
class Maker:
    def make(self, k):
        return made(k)

    def look(self, array, k):
        return right(array, k)

    def look_within(self, refs):
        return [right(ray.get(r), k) for k, r in enumerate(refs)]

    def put_all(self, count):
        return [ray.put(made(k)) for k in range(count)]

    def stream(self, count):
        for k in range(count):
            yield made(k)


@pytest.fixture
def maker():
    actor = Maker.remote()
    yield actor
    ray.kill(actor)


def test_values_beyond_the_limit_are_restored_unchanged():
    refs = [ray.put(made(k)) for k in range(24)]  # 24 values of 8 MiB are three times the limit
    assert files() >= 15
    assert in_memory() <= LIMIT
    for _ in range(2):
        for k, ref in enumerate(refs):
            assert right(ray.get(ref), k)


def test_the_least_recently_used_values_are_spilled_first():
    refs = [ray.put(made(k)) for k in range(6)]
    ray.get(refs[0])
    more = [ray.put(made(k)) for k in range(4)]
    assert 1 <= files() < 6
    first = ray.get(refs[0])
    assert right(first, 0)
    del more


def test_values_in_use_are_not_spilled():
    arrays = [ray.get(ray.put(made(k))) for k in range(5)]
    refs = [ray.put(made(k)) for k in range(10)]
    assert all(right(a, k) for k, a in enumerate(arrays))
    assert all(right(ray.get(r), k) for k, r in enumerate(refs))


def test_results_are_spilled_by_their_holder(maker):
    refs = [maker.make.remote(k) for k in range(16)]
    assert all(right(ray.get(r), k) for k, r in enumerate(refs))
    assert files() >= 8


def test_a_spilled_value_can_be_an_argument(maker):
    refs = [ray.put(made(k)) for k in range(16)]
    assert ray.get([maker.look.remote(r, k) for k, r in enumerate(refs)], timeout=GUARD_S) == [True] * 16
    assert ray.get(maker.look_within.remote(refs), timeout=GUARD_S) == [True] * 16


def test_writes_to_a_spilled_tensor_stay_private():
    torch = pytest.importorskip("torch")
    first = ray.put(torch.zeros(SIZE // 8, dtype=torch.float64))
    rest = [ray.put(made(k)) for k in range(10)]
    ray.get(first).add_(1)
    assert not ray.get(first).any()
    del rest


def test_a_value_larger_than_the_store_is_refused_with_the_sizes():
    with pytest.raises(ObjectStoreFullError, match=str(LIMIT)):
        ray.put(np.zeros(LIMIT // 8 + 1))


def test_a_store_full_of_values_in_use_refuses_and_recovers():
    arrays = [ray.get(ray.put(made(k))) for k in range(7)]
    with pytest.raises(ObjectStoreFullError, match="read all remaining"):
        ray.put(np.zeros(2 * SIZE // 8))
    assert all(right(a, k) for k, a in enumerate(arrays))
    del arrays
    assert right(ray.get(ray.put(made(3))), 3)


def test_a_put_that_waits_for_room_can_be_interrupted():
    arrays = [ray.get(ray.put(made(k))) for k in range(7)]
    more = np.zeros(2 * SIZE // 8)

    def put_until_it_rings():
        ring_in("put")
        ray.put(more)

    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(TimeoutError, match="rung"):
            put_until_it_rings()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(right(a, k) for k, a in enumerate(arrays))


def ring_in(function):
    """Installs a SIGALRM handler that raises an error once this thread is in shoal's function of this name."""

    def ring(_, frame):
        if frame.f_code.co_name == function and frame.f_globals.get("__name__", "").startswith("shoal."):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TimeoutError("rung")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)


def test_a_result_that_waits_for_room_can_be_interrupted():
    @ray.remote
    class Rung:
        def result(self):
            out = np.zeros(2 * SIZE // 8)
            ring_in("_serve")
            return out

        def plain(self):
            return 1

    arrays = [ray.get(ray.put(made(k))) for k in range(7)]
    actor = Rung.remote()
    with pytest.raises(TimeoutError, match="rung"):
        ray.get(actor.result.remote(), timeout=GUARD_S)
    assert ray.get(actor.plain.remote(), timeout=GUARD_S) == 1  # the actor survives
    assert all(right(a, k) for k, a in enumerate(arrays))
    ray.kill(actor)


def test_a_result_without_room_fails_its_call(maker):
    arrays = [ray.get(ray.put(made(k))) for k in range(7)]
    with pytest.raises(ObjectStoreFullError):
        ray.get(maker.make.remote(1), timeout=GUARD_S)
    del arrays
    assert right(ray.get(maker.make.remote(1), timeout=GUARD_S), 1)


# ---- objects held by the node only


def test_values_dropped_by_their_creator_are_spilled(maker):
    refs = ray.get(maker.put_all.remote(7))  # the actor that created the values has dropped them
    more = [ray.put(made(k)) for k in range(7)]
    assert all(right(ray.get(r), k) for k, r in enumerate(refs))
    assert all(right(ray.get(r), k) for k, r in enumerate(more))


def test_values_of_an_ended_process_are_counted_and_spilled():
    maker = Maker.remote()
    refs = ray.get(maker.put_all.remote(7))
    ray.kill(maker)
    more = [ray.put(made(k)) for k in range(12)]
    assert in_memory() <= LIMIT
    assert all(right(ray.get(r), k) for k, r in enumerate(refs))
    assert all(right(ray.get(r), k) for k, r in enumerate(more))


def test_unread_items_do_not_stop_a_stream(maker):
    items = maker.stream.options(num_returns="streaming").remote(20)  # 20 values of 8 MiB are more than the limit
    ray.wait([items.completed()], timeout=GUARD_S)
    assert all(right(ray.get(item), k) for k, item in enumerate(items))


def test_values_referenced_only_by_an_object_are_spilled():
    outer = ray.put([ray.put(made(k)) for k in range(7)])
    more = [ray.put(made(k)) for k in range(7)]
    assert all(right(ray.get(r), k) for k, r in enumerate(ray.get(outer)))
    assert all(right(ray.get(r), k) for k, r in enumerate(more))


@pytest.mark.parametrize("ready", [True, False])
def test_a_part_of_a_result_is_passed_on_with_a_full_store(maker, ready):
    @ray.remote(num_returns=3)
    def parts():
        return made(0), made(1), made(2)

    refs = parts.remote()
    if ready:
        ray.wait(refs, num_returns=3)
    more = [ray.put(made(k)) for k in range(7)]
    assert ray.get([maker.look.remote(r, k) for k, r in enumerate(refs)], timeout=GUARD_S) == [True] * 3
    assert ray.get(maker.look_within.remote(list(refs)), timeout=GUARD_S) == [True] * 3
    assert all(right(ray.get(r), k) for k, r in enumerate(more))
