"""A1 to A3 of COVERAGE.md: calls with many arguments, with large values in them, and with many results. The counts are at message
boundaries."""

import asyncio
import os

import numpy as np
import pytest
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import InvalidArgument

AT_BORDERS = (127, 128, 129, 249, 250, 251, 999, 1000, 1001)
LARGE = 160_000  # bytes: a value of this size has a shared memory of its own
SMALL = 95_000  # bytes: many values of this size fit into one message


@ray.remote
def total(*parts, **more):
    """Returns the number of arguments, and the sum of their last elements."""
    return len(parts) + len(more), sum(int(p[-1]) for p in (*parts, *more.values()))


@ray.remote
def part(k, size):
    return made(k, size)


@ray.remote
def fails():
    raise KeyError("mine")


@ray.remote
class Total:
    def __init__(self, *parts):
        self.parts = parts

    def of_its_own(self):
        return [int(p[-1]) for p in self.parts]

    def of(self, *parts):
        return [int(p[-1]) for p in parts]

    def lengths(self, *parts):
        return [len(p) for p in parts]


@ray.remote
class AsyncTotal:
    async def of(self, *parts):
        await asyncio.sleep(0)
        return [int(p[-1]) for p in parts]


def made(k, size):
    return np.full(size // 8, k)


def puts(count, size=8):
    return [ray.put(made(k, size)) for k in range(count)]


def ended(actor):
    yield actor
    ray.kill(actor)


@pytest.fixture
def adder():
    yield from ended(Total.remote())


@pytest.mark.parametrize("count", AT_BORDERS)
def test_a_function_takes_any_number_of_references(count):
    assert ray.get(total.remote(*puts(count)), timeout=GUARD_S) == (count, count * (count - 1) // 2)


@pytest.mark.parametrize("count", AT_BORDERS)
def test_a_method_takes_any_number_of_references_in_their_order(adder, count):
    assert ray.get(adder.of.remote(*puts(count)), timeout=GUARD_S) == list(range(count))


@pytest.mark.parametrize("count", [249, 250, 251])
def test_a_call_takes_many_large_arguments(adder, count):
    refs = puts(count, LARGE)
    assert ray.get(total.remote(*refs), timeout=GUARD_S) == (count, count * (count - 1) // 2)
    assert ray.get(adder.of.remote(*refs), timeout=GUARD_S) == list(range(count))


@pytest.mark.parametrize("mebibytes", [63, 65])
def test_a_call_takes_many_small_arguments_with_a_large_sum(adder, mebibytes):
    count = mebibytes * 2**20 // SMALL + 1
    refs = puts(count, SMALL)
    assert ray.get(total.remote(*refs), timeout=GUARD_S) == (count, count * (count - 1) // 2)
    assert ray.get(adder.of.remote(*refs), timeout=GUARD_S) == list(range(count))


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_a_reduce_takes_many_pending_results(size):
    count = 800
    assert ray.get(total.remote(*[part.remote(k, size) for k in range(count)]), timeout=GUARD_S) == (count, count * (count - 1) // 2)


def test_keywords_are_arguments_like_others():
    named = {f"part_{k}": ref for k, ref in enumerate(puts(300))}
    assert ray.get(total.remote(*puts(300), **named), timeout=GUARD_S) == (600, 300 * 299)


def test_a_failed_argument_among_many_fails_the_call(adder):
    refs = puts(300)
    refs[150] = fails.remote()
    for result in (total.remote(*refs), adder.of.remote(*refs)):
        with pytest.raises(KeyError, match="mine"):
            ray.get(result, timeout=GUARD_S)
    assert ray.get(adder.of.remote(*puts(3)), timeout=GUARD_S) == [0, 1, 2]


def test_a_constructor_takes_many_large_arguments():
    refs = [r for pair in zip(puts(150), puts(150, LARGE), strict=True) for r in pair]
    for actor in ended(Total.remote(*refs)):
        assert ray.get(actor.of_its_own.remote(), timeout=GUARD_S) == [k for k in range(150) for _ in range(2)]


def test_async_methods_take_many_arguments_and_calls_stay_in_order(adder):
    for actor in ended(AsyncTotal.remote()):
        results = [actor.of.remote(*puts(n)) for n in (300, 1, 200, 2)]
        assert [len(r) for r in ray.get(results, timeout=GUARD_S)] == [300, 1, 200, 2]
    results = [adder.of.remote(*puts(n)) for n in (300, 1, 200, 2)]
    assert [len(r) for r in ray.get(results, timeout=GUARD_S)] == [300, 1, 200, 2]


def test_a_retried_function_gets_all_its_arguments_again(tmp_path):
    @ray.remote
    def dies_once(path, *parts):
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(7)
        return [int(p[-1]) for p in parts]

    for size in (8, LARGE):
        died = str(tmp_path / str(size))
        assert ray.get(dies_once.remote(died, *puts(300, size)), timeout=GUARD_S) == list(range(300))


def test_the_references_themselves_stay_references_inside_a_list(adder):
    @ray.remote
    def resolved(refs, *parts):
        return ray.get(refs[-1])[-1] + len(parts)

    refs = puts(300)
    assert ray.get(resolved.remote(refs, *refs), timeout=GUARD_S) == 599


def test_get_and_wait_take_many_references():
    refs = puts(5000)
    assert [int(v[0]) for v in ray.get(refs, timeout=GUARD_S)] == list(range(5000))
    assert len(ray.wait(refs, num_returns=5000, timeout=GUARD_S)[0]) == 5000
    results = [part.remote(k, 8) for k in range(2000)]
    assert [int(v[0]) for v in ray.get(results, timeout=GUARD_S)] == list(range(2000))
    assert ray.get(ray.get(ray.put(refs))[4999])[0] == 4999


def test_few_arguments_may_contain_many_references(adder):
    refs = puts(5000)
    parts = [ray.put(refs) for _ in range(10)]  # one message has room for eight of these arguments

    @ray.remote
    def lengths(*parts):
        return [len(p) for p in parts]

    assert ray.get(lengths.remote(*parts), timeout=GUARD_S) == [5000] * 10
    assert ray.get(adder.lengths.remote(*parts), timeout=GUARD_S) == [5000] * 10


@pytest.mark.parametrize("count", [999, 1000, 1001, 3000])
def test_a_function_has_many_results(adder, count):
    @ray.remote(num_returns=count)
    def several():
        return [made(k, 8) for k in range(count)]

    refs = several.remote()
    assert ray.get(adder.of.remote(*refs), timeout=GUARD_S) == list(range(count))


def test_large_results_of_one_call_are_arguments_too(adder):
    @ray.remote(num_returns=300)
    def several():
        return [made(k, LARGE) for k in range(300)]

    assert ray.get(adder.of.remote(*several.remote()), timeout=GUARD_S) == list(range(300))


def test_too_many_pieces_in_a_result_are_an_error():
    @ray.remote(num_returns=20_000)
    def several():
        return list(range(20_000))

    with pytest.raises(InvalidArgument, match="16384 pieces"):
        ray.get(several.remote()[0], timeout=GUARD_S)
