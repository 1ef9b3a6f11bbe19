"""A1 of COVERAGE.md, remote functions: results, retries, calls per process, options; the first use connects."""

import os
import subprocess
import sys

import numpy as np
import pytest
from internals.core import FunctionPool, pool
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ActorDiedError, RayTaskError, WorkerCrashedError


@ray.remote
def dies_until(tries, good):
    """Ends its process in each attempt before number `good`."""
    n = ray.get(tries.add.remote(os.getpid()))
    if n < good:
        os._exit(7)
    return n


@ray.remote
def raises_until(tries, good, error):
    n = ray.get(tries.add.remote(os.getpid()))
    if n < good:
        raise error
    return n


@ray.remote
def pid():
    return os.getpid()


# ---- results


def test_a_function_with_several_results():
    @ray.remote(num_returns=3)
    def three():
        return 1, 2, 3

    assert ray.get(three.remote()) == [1, 2, 3]
    assert ray.get(three.options(num_returns=1).remote()) == (1, 2, 3)


def test_a_function_without_a_result(tries):
    assert dies_until.options(num_returns=0).remote(tries, 1) is None


def test_num_returns_takes_the_first_items_of_a_longer_generator():
    @ray.remote(num_returns=2)
    def endless():
        n = 0
        while True:
            n += 1
            yield n

    assert ray.get(endless.remote()) == [1, 2]


def test_a_wrong_number_of_results_is_an_error_of_each():
    @ray.remote(num_returns=2)
    def three():
        return 1, 2, 3

    for ref in three.remote():
        with pytest.raises(ValueError, match="returned 3 objects, but num_returns=2"):
            ray.get(ref)


def test_a_generator_fills_a_number_of_results():
    @ray.remote
    def numbers():
        yield from range(3)

    assert ray.get(numbers.options(num_returns=3).remote()) == [0, 1, 2]


def test_results_are_arguments_of_other_functions():
    @ray.remote(num_returns=2)
    def split(x):
        return x[: len(x) // 2], x[len(x) // 2 :]

    @ray.remote
    def join(a, b):
        return a + b

    assert ray.get(join.remote(*split.remote("abcd"))) == "abcd"


def test_a_function_calls_functions():
    @ray.remote
    def fibonacci(n):
        return n if n < 2 else sum(ray.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)]))

    assert ray.get(fibonacci.options(num_cpus=0).remote(4), timeout=GUARD_S) == 3


def test_workers_of_an_actors_functions_end_with_the_actor():
    actor = ray.remote(_Caller).remote()
    called = ray.get(actor.call.remote())
    assert alive(called)
    ray.kill(actor)
    wait_until(lambda: not alive(called), GUARD_S, "the end of the process that ran it")


class _Caller:
    def call(self):
        return ray.get(pid.options(num_cpus=0).remote())


# ---- retries


def test_a_function_whose_process_died_is_retried(tries):
    assert ray.get(dies_until.remote(tries, 3), timeout=GUARD_S) == 3
    assert len(set(ray.get(tries.all.remote()))) == 3


def test_max_retries_is_three_by_default(tries):
    with pytest.raises(WorkerCrashedError, match="dies_until died"):
        ray.get(dies_until.remote(tries, 100), timeout=GUARD_S)
    assert len(ray.get(tries.all.remote())) == 4


@pytest.mark.parametrize("retries", [0, 1])
def test_max_retries_bounds_the_attempts(tries, retries):
    with pytest.raises(WorkerCrashedError, match="exited with code 7"):
        ray.get(dies_until.options(max_retries=retries).remote(tries, 100), timeout=GUARD_S)
    assert len(ray.get(tries.all.remote())) == retries + 1


def test_minus_one_is_any_number_of_retries(tries):
    assert ray.get(dies_until.options(max_retries=-1).remote(tries, 7), timeout=GUARD_S) == 7


def test_a_retried_function_has_all_its_results(tries):
    @ray.remote(num_returns=2)
    def pair(tries):
        if ray.get(tries.add.remote(0)) < 2:
            os._exit(1)
        return "a", "b"

    assert ray.get(pair.remote(tries), timeout=GUARD_S) == ["a", "b"]


def test_a_function_that_raises_is_not_retried_by_default(tries):
    with pytest.raises(ValueError, match="mine"):
        ray.get(raises_until.remote(tries, 100, ValueError("mine")))
    assert len(ray.get(tries.all.remote())) == 1


@pytest.mark.parametrize("wanted", [True, [ValueError], (KeyError, Exception)], ids=repr)
def test_retry_exceptions_retries_a_function_that_raised(tries, wanted):
    again = raises_until.options(retry_exceptions=wanted)
    assert ray.get(again.remote(tries, 3, ValueError("mine")), timeout=GUARD_S) == 3


def test_retry_exceptions_ignores_other_classes(tries):
    with pytest.raises(ValueError, match="mine") as info:
        ray.get(raises_until.options(retry_exceptions=[KeyError]).remote(tries, 3, ValueError("mine")), timeout=GUARD_S)
    assert isinstance(info.value, RayTaskError)
    assert len(ray.get(tries.all.remote())) == 1


def test_retries_of_exceptions_are_bounded(tries):
    again = raises_until.options(retry_exceptions=True, max_retries=2)
    with pytest.raises(ValueError, match="mine"):
        ray.get(again.remote(tries, 100, ValueError("mine")), timeout=GUARD_S)
    assert len(ray.get(tries.all.remote())) == 3


def test_retry_exceptions_belong_to_the_call_not_the_function(tries):
    wanted = ([KeyError], [OSError, ValueError], True)
    for k, exceptions in enumerate(wanted):
        with pytest.raises(ValueError, match="mine"):
            ray.get(raises_until.remote(tries, 100, ValueError("mine")), timeout=GUARD_S)
        again = raises_until.options(retry_exceptions=exceptions, max_retries=1)
        with pytest.raises(ValueError, match="mine"):
            ray.get(again.remote(tries, 100, ValueError("mine")), timeout=GUARD_S)
        assert len(ray.get(tries.all.remote())) == (2, 5, 8)[k]


def test_functions_queued_on_a_dead_worker_run_on_another(tries):
    """These calls had not begun when their worker died, so that they use no retry."""
    refs = [dies_until.options(max_retries=1, num_cpus=8).remote(tries, 2)]
    refs += [pid.options(max_retries=0, num_cpus=8).remote() for _ in range(20)]
    assert ray.get(refs, timeout=GUARD_S)[0] == 2


def test_a_retry_has_the_arguments_of_the_first_attempt(tries):
    import numpy as np

    @ray.remote
    def total(tries, array, ref):
        if ray.get(tries.add.remote(0)) < 2:
            os._exit(1)
        return array.sum() + ref.sum()

    array = np.ones(100_000)
    result = total.remote(tries, array, ray.put(np.ones(5)))
    array[:] = 0
    assert ray.get(result, timeout=GUARD_S) == 100_005


def test_a_failed_argument_causes_no_retry(recorder, gate):
    dead = gate.wait.remote()
    ray.kill(gate)

    @ray.remote(retry_exceptions=True)
    def use(x):
        return x

    with pytest.raises(ActorDiedError):
        ray.get(use.remote(dead), timeout=GUARD_S)
    with pytest.raises(KeyError, match="mine"):
        ray.get(use.remote(recorder.fail.remote(KeyError("mine"))), timeout=GUARD_S)


def test_system_exit_ends_the_process_of_a_function(tries):
    @ray.remote(max_retries=0)
    def leaves(code):
        raise SystemExit(code)

    with pytest.raises(WorkerCrashedError, match="exited with code 3"):
        ray.get(leaves.remote(3), timeout=GUARD_S)


# ---- processes


@pytest.mark.parametrize("max_calls", [1, 2])
def test_a_process_runs_at_most_max_calls(max_calls):
    @ray.remote(max_calls=max_calls)
    def limited():
        return os.getpid()

    pids = [ray.get(limited.remote(), timeout=GUARD_S) for _ in range(6)]
    assert max(pids.count(p) for p in pids) == max_calls


def test_max_calls_counts_calls_with_other_options():
    @ray.remote(max_calls=2)
    def limited():
        return os.getpid()

    pids = [ray.get(limited.options(name=f"call {i}").remote(), timeout=GUARD_S) for i in range(6)]
    assert max(pids.count(p) for p in pids) == 2


def test_max_calls_counts_concurrent_calls():
    @ray.remote(max_calls=3, num_cpus=8)
    def limited():
        return os.getpid()

    pids = ray.get([limited.remote() for _ in range(7)], timeout=GUARD_S)
    assert sorted(pids.count(p) for p in set(pids)) == [1, 3, 3]


def test_workers_are_reused_without_a_limit():
    assert len({ray.get(pid.remote()) for _ in range(10)}) == 1


def test_a_function_does_not_inherit_the_folder_that_another_left():
    @ray.remote
    def move(folder):
        before = os.getcwd()
        os.chdir(folder)
        return before, os.getcwd(), os.getpid()

    first, second = (ray.get(move.remote("/"), timeout=GUARD_S) for _ in range(2))
    assert first == second  # in the same process
    assert first[0] != first[1]


class Counted:
    """A value that counts how often this process has pickled it."""

    times = 0

    def __reduce__(self):
        Counted.times += 1
        return Counted, ()


def test_a_function_is_sent_once_for_any_options():
    counted = Counted()

    @ray.remote
    def uses():
        return type(counted).__name__

    refs = [uses.options(name=f"call {i}", num_cpus=i % 2, retry_exceptions=[OSError]).remote() for i in range(6)]
    assert ray.get([*refs, uses.remote()], timeout=GUARD_S) == ["Counted"] * 7
    assert Counted.times == 1


def test_pools_without_workers_are_not_attended(monkeypatch):
    """FunctionPool passes over pools without workers. Else a program that asks for new amounts in each step would become slower with
    every pool."""
    monkeypatch.setattr(FunctionPool, "IDLE_S", 0.1)
    mine, seen, attend = {"CPU": 2.5}, [], pool._Pool.attend
    monkeypatch.setattr(pool._Pool, "attend", lambda pool, owner: (seen.append(pool.resources), attend(pool, owner))[1])

    def are_left_alone():
        seen.clear()
        while seen.count(mine) < 3:
            ray.get(pid.options(num_cpus=2.5).remote(), timeout=GUARD_S)
        return all(each == mine for each in seen)

    for _ in range(2):  # twice, because a pool that has lost all workers works again
        assert ray.get([pid.options(num_cpus=k / 8).remote() for k in range(1, 9)], timeout=GUARD_S)
        wait_until(are_left_alone, GUARD_S, "the end of the others")


# ---- dynamic numbers of results


def test_a_dynamic_number_of_results_is_one_reference_to_their_references():
    @ray.remote(num_returns="dynamic")
    def split(values):
        yield os.getpid()
        yield from values

    refs = ray.get(split.remote([1, np.arange(100_000)]), timeout=GUARD_S)
    assert isinstance(refs, ray.DynamicObjectRefGenerator)
    assert len(refs) == len(list(refs)) == 3
    pid_of, one, array = refs
    assert ray.get(one) == 1
    assert ray.get(array)[-1] == 99_999
    assert ray.get(ray.remote(lambda x: x[1]).remote(array)) == 1
    assert ray.get(pid_of) > 0


def test_a_dynamic_number_of_results_raises_the_failure():
    @ray.remote(num_returns="dynamic", max_retries=0)
    def split():
        yield 1
        raise KeyError("on the way")

    with pytest.raises(KeyError, match="on the way"):
        ray.get(split.remote(), timeout=GUARD_S)


# ---- options


async def coroutine():
    return 1


async def yields():
    yield 1


@pytest.mark.parametrize("function", [coroutine, yields])
def test_an_async_function_is_refused_by_the_decorator(function):
    with pytest.raises(ValueError, match=r"async def.*asyncio\.run\(\)"):
        ray.remote(function)


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [((), {}, "is missing 'a'"), ((1, 2, 3), {}, "but 3 were given"), ((1,), {"c": 1}, "unexpected"), ((1,), {"a": 1}, "multiple values")],
)
def test_wrong_arguments_of_a_function_are_a_type_error_at_the_call(args, kwargs, why):
    @ray.remote
    def function(a, b=2):
        return a, b

    for remote in (function, function.options(num_cpus=2)):
        with pytest.raises(TypeError, match=why):
            remote.remote(*args, **kwargs)
    assert ray.get([function.remote(1), function.remote(b=1, a=0), function.remote(ray.put(1))]) == [(1, 2), (0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_returns": -1}, ValueError),
        ({"num_returns": "many"}, ValueError),
        ({"max_retries": -2}, ValueError),
        ({"max_retries": "3"}, TypeError),
        ({"max_calls": -1}, ValueError),
        ({"retry_exceptions": 5}, TypeError),
        ({"retry_exceptions": [5]}, TypeError),
        ({"max_concurrency": 2}, ValueError),
        ({"concurrency_groups": {}}, ValueError),
        ({"colour": "red"}, ValueError),
    ],
    ids=repr,
)
def test_invalid_options_of_a_function_are_refused(options, error):
    with pytest.raises(error):
        pid.options(**options)
    with pytest.raises(error):
        ray.remote(**options)(lambda: 1)


@pytest.mark.parametrize("value", [None])
def test_none_is_the_default_of_an_option(value):
    assert ray.get(pid.options(num_returns=value, max_retries=value, max_calls=value, retry_exceptions=value).remote())


def test_a_function_is_named_by_its_options():
    with pytest.raises(RayTaskError, match="division"):
        ray.get(ray.remote(lambda: 1 / 0).options(name="inverse").remote())
    assert "inverse" in repr(pid.options(name="inverse").remote())


# ---- the first use connects


@pytest.mark.parametrize(
    "use",
    [
        "ray.get(ray.remote(lambda: 1).remote())",
        "ray.get(ray.put(1))",
        "ray.get_runtime_context().get_job_id()",
        "ray.get(ray.remote(type('A', (), {'f': lambda self: 1})).remote().f.remote())",
        "ray.util.queue.Queue().put(1)",
    ],
)
def test_the_first_use_connects(use):
    program = f"import shoal as ray, shoal.util.queue\nassert not ray.is_initialized()\n{use}\nassert ray.is_initialized()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GUARD_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_old_references_do_not_connect():
    program = """
import pickle
import shoal as ray
ref, published = ray.put(1), ray.put(2)
named = ray.put(3).hex()
pickle.dumps(published)
ray.shutdown()
assert {ref: "old"}[ref] == "old" and len({ref, published}) == 2 and len(ref.hex()) == len(named)
for old in (ref, published):
    try:
        pickle.dumps(old)
    except ray.exceptions.RayError as error:
        assert error.reason == "Closed", error
    else:
        raise AssertionError(old)
assert ray.get([ref, published]) == [1, 2]
assert not ray.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GUARD_S)
    assert (done.returncode, done.stderr) == (0, "")
