"""Row A3: the memory of objects: what is read stays what it was, is used again, and is read-only."""

import numpy as np
import pytest
import torch

import shoal as ray

LARGE = 1 << 18  # numbers of 8 bytes: beyond what travels in a frame, and what memory is kept for


@ray.remote
class Keeper:
    """Keeps what it is given, and makes what it is asked for."""

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


# ---- memory that is used again


def test_what_is_read_here_stays_while_others_are_put():
    kept = {k: ray.get(ray.put(np.full(LARGE, float(k)))) for k in range(4)}  # the references are gone
    for k in range(20):
        ray.put(np.full(LARGE, -1.0 - k))
    assert {k: (v[0], v[-1]) for k, v in kept.items()} == {k: (k, k) for k in kept}


def test_what_an_actor_keeps_stays_while_others_are_put(keeper):
    for k in range(4):
        ray.get(keeper.keep.remote(k, np.full(LARGE, float(k))))
    for k in range(20):
        ray.put(np.full(LARGE, -1.0 - k))
    assert ray.get([keeper.first.remote(k) for k in range(4)]) == [0, 1, 2, 3]


def test_results_that_are_kept_stay_while_others_are_made(keeper):
    kept = [ray.get(keeper.make.remote(k)) for k in range(4)]
    for k in range(10):
        ray.get(keeper.make.remote(-1 - k))
    assert [v[-1] for v in kept] == [0, 1, 2, 3]


def test_an_argument_under_way_keeps_its_memory(keeper):
    calls = [keeper.keep.remote(k, np.full(LARGE, float(k))) for k in range(20)]
    ray.get(calls)
    assert ray.get([keeper.first.remote(k) for k in range(20)]) == list(range(20))


# ---- one memory for all who read


def test_gets_of_one_reference_share_their_memory():
    ref = ray.put(np.zeros(LARGE))
    assert address(ray.get(ref)) == address(ray.get(ref))


def test_an_array_cannot_be_written():
    array = ray.get(ray.put(np.zeros(LARGE)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


@pytest.mark.parametrize("numel", [2_000, LARGE])
def test_what_is_written_to_a_tensor_is_seen_by_nobody_else(numel):
    ref = ray.put({"tensor": torch.zeros(numel), "array": np.zeros(numel)})
    mine = ray.get(ref)
    mine["tensor"] += 1
    other = ray.get(ref)
    assert not other["tensor"].any()
    assert not other["array"].any()
    assert mine["tensor"].all()
