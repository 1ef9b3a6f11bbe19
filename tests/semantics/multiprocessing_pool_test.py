"""``shoal.util.multiprocessing.Pool``: the API of Python's Pool on actors, and joblib on it."""

import os
import pickle
import threading
from types import SimpleNamespace

import pytest
from semantics_actors import GUARD_S, Gate

import shoal as ray
from shoal.util.multiprocessing import Pool, TimeoutError


def square(x):
    return x * x


def add(x, y=0):
    return x + y


def odd_only(x):
    if x % 2 == 0:
        raise KeyError(x)
    return x


def pid(_):
    return os.getpid()


def variable(_):
    return os.environ.get("OF_POOL")


def set_variable(value):
    os.environ["OF_POOL"] = value


def leave(code):
    raise SystemExit(code)


def die(_):
    os._exit(3)


def through(gate, value):
    return ray.get(gate.wait.remote(then=value))


@pytest.fixture
def pool():
    with Pool(2) as made:
        yield made


def test_calls_are_made_in_processes_of_the_pool(pool):
    assert pool.apply(add, (1,), {"y": 2}) == 3
    assert pool.map(square, range(20)) == [x * x for x in range(20)]
    assert pool.map(square, []) == []
    assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
    pids = set(pool.map(pid, range(20), chunksize=1))
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_results_may_be_taken_one_by_one(pool):
    assert list(pool.imap(square, range(9), chunksize=2)) == [x * x for x in range(9)]
    assert sorted(pool.imap_unordered(square, range(9))) == [x * x for x in range(9)]
    results = pool.imap(odd_only, [1, 2, 3])
    assert next(results) == 1
    with pytest.raises(KeyError):
        next(results)
    assert next(results) == 3
    with pytest.raises(StopIteration):
        next(results)


def test_an_endless_iterable_is_read_as_results_are_taken(pool):
    read = []

    def numbers():
        while True:
            read.append(len(read))
            yield read[-1]

    results = pool.imap(square, numbers())
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(read) < 20


def test_the_least_loaded_actor_gets_the_next_call(pool):
    gate = Gate.remote()
    slow = pool.apply_async(through, (gate, "slow"))
    # runs in the other process of the pool, because the first one waits at the gate
    assert pool.map(square, range(10), chunksize=10) == [x * x for x in range(10)]
    with pytest.raises(TimeoutError):
        slow.get(timeout=0.01)
    with pytest.raises(ValueError, match="not ready"):
        slow.successful()
    assert not slow.ready()
    ray.get(gate.open.remote())
    assert slow.get(timeout=GUARD_S) == "slow"
    assert slow.ready()
    assert slow.successful()
    ray.kill(gate)


def test_submission_does_not_scan_running_calls(pool, monkeypatch):
    class Running:
        looks = 0

        @property
        def ready(self):
            Running.looks += 1
            return False

    process = SimpleNamespace(_shoal_actor=SimpleNamespace(id="1"), run=SimpleNamespace(remote=lambda *_: SimpleNamespace(_ref=Running())))
    monkeypatch.setattr(pool, "_actors", [process, process])
    for _ in range(1000):
        pool.apply_async(square, (1,))
    assert [len(refs) for refs in pool._running] == [500, 500]
    assert Running.looks <= 2 * 1000


def test_an_exception_is_raised_where_the_result_is_taken(pool):
    with pytest.raises(KeyError, match="2"):
        pool.map(odd_only, [1, 2, 3])
    result = pool.apply_async(odd_only, (4,))
    result.wait(GUARD_S)
    assert not result.successful()


def test_an_exit_of_a_function_is_an_error_of_its_call(pool):
    pids = set(pool.map(pid, range(8), chunksize=1))
    for _ in range(3):
        with pytest.raises(ray.exceptions.TaskError, match="leave raised"):
            pool.apply(leave, (3,))
    assert set(pool.map(pid, range(8), chunksize=1)) == pids


def test_a_process_that_died_is_replaced(pool):
    for _ in range(3):
        with pytest.raises(ray.exceptions.ActorDiedError):
            pool.apply(die, (0,))
        assert pool.map(square, range(8), chunksize=1) == [x * x for x in range(8)]
    assert len(set(pool.map(pid, range(8), chunksize=1))) == 2


def test_callbacks_are_called_once_with_the_whole_result(pool):
    there, said = threading.Event(), []

    def call(what):
        said.append(what)
        there.set()

    pool.map_async(square, range(5), chunksize=1, callback=call).wait()
    assert there.wait(GUARD_S)
    there.clear()
    pool.starmap_async(odd_only, [(1,), (2,)], error_callback=call)
    assert there.wait(GUARD_S)
    assert said[0] == [0, 1, 4, 9, 16]
    assert isinstance(said[1], KeyError)
    assert len(said) == 2


class Flaky:
    def __init__(self):
        self.calls = 0

    def second_time(self):
        self.calls += 1
        if self.calls == 1:
            raise OSError("again")
        return self.calls


def test_a_callback_may_wait_for_other_results(pool):
    flaky, there, said = ray.remote(Flaky).remote(), threading.Event(), []
    retried = flaky.second_time.options(max_task_retries=3, retry_exceptions=True)

    def call(what):
        try:
            said.append((what, ray.get(retried.remote(), timeout=GUARD_S), retried.remote().future().result(GUARD_S)))
        finally:
            there.set()

    pool.apply_async(square, (3,), callback=call)
    assert there.wait(3 * GUARD_S)
    assert said == [(9, 2, 3)]
    ray.kill(flaky)


def test_processes_begin_with_the_initializer_and_are_replaced():
    with Pool(1, initializer=set_variable, initargs=["here"], maxtasksperchild=2) as pool:
        assert pool.map(variable, range(3)) == ["here"] * 3
        pids = pool.map(pid, range(6), chunksize=1)
    assert len(set(pids)) >= 3


def test_a_pool_that_was_closed_takes_no_calls_and_ends_with_join():
    pool = Pool(1)
    result = pool.map_async(square, range(3))
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.map(square, [1])
    pool.join()
    assert result.get() == [0, 1, 4]
    with pytest.raises(ValueError, match="not running"), pool:
        pass


def test_invalid_arguments_are_refused():
    for wrong, error in (({"processes": 0}, ValueError), ({"processes": 9}, ValueError), ({"initializer": 5}, TypeError)):
        with pytest.raises(error):
            Pool(**wrong)
    with Pool(1, ray_remote_args={"num_cpus": 0.5}) as pool, pytest.raises(NotImplementedError):
        pickle.dumps(pool)


# ---- joblib


def test_joblib_runs_on_the_pool():
    import joblib

    from shoal.util.joblib import register_ray

    register_ray()
    with joblib.parallel_backend("ray", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(square)(x) for x in range(20)) == [x * x for x in range(20)]
        pids = set(joblib.Parallel()(joblib.delayed(pid)(x) for x in range(20)))
        assert os.getpid() not in pids
        with pytest.raises(KeyError):
            joblib.Parallel()(joblib.delayed(odd_only)(x) for x in range(4))
    with joblib.parallel_config(backend="ray", n_jobs=-1):
        assert joblib.effective_n_jobs() == 8
