"""Failures of user code and deaths of processes, and a driver's threads and forked children."""

import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
from launching.actors import Broken, Log, square
from launching.commands import printed
from launching.leftovers import alive, wait_until

import shoal
from shoal.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    TaskError,
    Unavailable,
)

pytestmark = pytest.mark.usefixtures("module_cluster")

LATE_S = 60  # hang guard


# ---- failures of user code and deaths


def test_a_methods_exception_keeps_its_class_and_the_actor_lives(log):
    with pytest.raises(ZeroDivisionError) as info:
        shoal.get(log.fail.remote(ZeroDivisionError("mine")))
    assert isinstance(info.value, TaskError)
    assert "Log.fail raised" in str(info.value)
    assert "raise error" in str(info.value)
    assert shoal.get(log.echo.remote(1)) == 1


def test_a_failure_two_actors_away_names_both(log, other):
    with pytest.raises(KeyError) as info:
        shoal.get(log.call.remote(other, "fail", KeyError("far")))
    assert "Log.call" in str(info.value)
    assert "Log.fail raised" in str(info.value)


def test_constructor_arguments_that_cannot_be_pickled_leave_no_actor():
    wait_until(lambda: shoal.available_resources() == shoal.cluster_resources(), 10, "the end of the actors before")
    with pytest.raises(TypeError, match="lock"):
        Log.options(num_cpus=2).remote(threading.Lock())
    assert shoal.available_resources() == shoal.cluster_resources()


def test_an_unpicklable_result_fails_its_call(log):
    make_lock = shoal.remote(lambda: threading.Lock())
    for of_one_value in (make_lock.remote(), log.__ray_call__.remote(lambda _: threading.Lock())):
        with pytest.raises(TypeError, match=r"the value that it returned, of type lock, cannot be sent.*inspect_serializability"):
            shoal.get(of_one_value)
    two_locks = shoal.remote(num_returns=2)(lambda: (1, threading.Lock()))
    with pytest.raises(TypeError, match="the value that it returned, of type lock, cannot be sent"):
        shoal.get(two_locks.remote()[1])

    @shoal.remote
    def yields_lock():
        yield threading.Lock()

    with pytest.raises(TypeError, match="a value that it yielded, of type lock, cannot be sent"):
        shoal.get(list(yields_lock.remote()))


def test_a_class_with_unpicklable_globals_is_an_error():
    lock = threading.Lock()

    class Holds:
        def get(self):
            return lock

    for options in ({}, {"max_restarts": 1}):
        with pytest.raises(TypeError, match=r"class Holds cannot be sent: .*lock.*inspect_serializability"):
            shoal.remote(Holds).options(**options).remote()


def test_put_of_an_unpicklable_value_is_an_error():
    with pytest.raises(TypeError, match=r"the value that was put, of type lock, cannot be sent.*inspect_serializability"):
        shoal.put(threading.Lock())


def test_an_actor_whose_init_raises_is_dead_with_the_cause():
    broken = Broken.remote("no such luck")
    for _ in range(2):
        with pytest.raises(ActorDiedError, match="no such luck") as info:
            shoal.get(broken.method.remote(), timeout=60)
        assert "ValueError" in str(info.value)


def test_a_killed_actor_fails_pending_and_later_calls(log):
    pid = shoal.get(log.pid.remote())
    running, queued = log.sleep.remote(1000), log.echo.remote(1)
    shoal.kill(log)
    for ref in (running, queued, log.echo.remote(2)):
        with pytest.raises(ActorDiedError, match=r"shoal\.kill"):
            shoal.get(ref, timeout=60)
    shoal.kill(log)
    wait_until(lambda: not alive(pid), 5, "the end of its process")


def test_an_actor_that_never_listens_can_be_killed(log):
    pid = shoal.get(log.pid.remote())
    ref = log.spin.remote()
    shoal.kill(log)
    with pytest.raises(ActorDiedError):
        shoal.get(ref, timeout=60)
    wait_until(lambda: not alive(pid), 5, "the end of its process")


def test_kill_accepts_only_a_handle():
    with pytest.raises(ValueError, match="handle"):
        shoal.kill(5)


def test_sigkill_of_a_worker_fails_its_call_with_its_last_lines(log):
    pid = shoal.get(log.pid.remote())
    shoal.get(log.say.remote("last words"))
    ref = log.sleep.remote(1000)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDiedError, match="SIGKILL") as info:
        shoal.get(ref, timeout=LATE_S)
    text = str(info.value)
    assert "last words" in text
    assert str(pid) in text
    with pytest.raises(ActorDiedError, match="SIGKILL"):
        shoal.get(log.echo.remote(1), timeout=60)


@shoal.remote
class Mumbler:
    def end(self):
        os.write(2, b"last \xff\xfe words\n")
        os._exit(3)

    def end_after(self, lines):
        os.write(2, "".join(f"line {i}\n" for i in range(lines)).encode())
        os._exit(3)


def test_last_lines_replace_undecodable_bytes():
    with pytest.raises(ActorDiedError, match="last \ufffd\ufffd words"):
        shoal.get(Mumbler.remote().end.remote(), timeout=60)


def test_the_latest_of_many_last_lines_are_reported_in_order():
    with pytest.raises(ActorDiedError) as info:
        shoal.get(Mumbler.remote().end_after.remote(100), timeout=60)
    told = [line.strip() for line in str(info.value).splitlines() if line.strip().startswith("line ")]
    assert 20 <= len(told) < 100
    assert told == [f"line {i}" for i in range(100 - len(told), 100)]


def test_the_exit_code_of_a_worker_is_reported(log, other):
    with pytest.raises(ActorDiedError, match="exited with code 3"):
        shoal.get(log.exit.remote(3), timeout=60)
    for ref in (other.sys_exit.remote(4), other.echo.remote(1)):
        with pytest.raises(ActorDiedError, match="exited with code 4"):
            shoal.get(ref, timeout=60)


def test_a_child_of_a_worker_cannot_use_the_cluster(log):
    assert "forked" in shoal.get(log.fork_and_put.remote())
    assert shoal.get(log.echo.remote(1)) == 1


def test_children_that_a_thread_forks_outlive_the_thread_but_not_the_worker(log):
    children = shoal.get(log.fork_sleepers_in_thread.remote(2))
    assert all(alive(p) for p in children)
    shoal.kill(log)
    wait_until(lambda: not any(alive(p) for p in children), 5, "the end of its children")


@pytest.mark.parametrize("apart", [False, True])
def test_children_of_a_worker_die_with_it(log, apart):
    children = shoal.get(log.fork_sleepers.remote(2, apart))
    assert all(alive(p) for p in children)
    os.kill(shoal.get(log.pid.remote()), signal.SIGKILL)
    wait_until(lambda: not any(alive(p) for p in children), 5, "the end of its children")


def test_an_object_of_a_dead_owner_fails_at_once(log, other):
    (ref,) = shoal.get(log.ref_of.remote(other, "sleep", 1000))
    waiting = Log.remote()
    got = waiting.get.remote([ref])
    with pytest.raises(GetTimeoutError):
        shoal.get(got, timeout=0.2)
    os.kill(shoal.get(log.pid.remote()), signal.SIGKILL)
    for call in (
        lambda: shoal.get(ref, timeout=60),
        lambda: shoal.get(got, timeout=60),
        lambda: shoal.get(waiting.get.remote([ref]), timeout=60),
    ):
        with pytest.raises(Unavailable, check=lambda e: e.reason == "OwnerDied"):
            call()
    shoal.kill(waiting)


def test_a_ready_object_outlives_its_creator(log, other):
    (ref,) = shoal.get(log.ref_of.remote(other, "echo", "made"))
    assert shoal.get(ref) == "made"  # now `other` has run echo; it would wait for itself if its get() came first
    shoal.kill(log)
    assert shoal.get(other.get.remote([ref])) == ["made"]


# ---- the driver


def test_init_twice_is_an_error_unless_ignored():
    with pytest.raises(RuntimeError, match="twice"):
        shoal.init()
    shoal.init(ignore_reinit_error=True)
    assert shoal.is_initialized()


class Leaves:
    def __init__(self, runs):
        self.runs = runs

    def run(self):
        """A script as a remote function: it calls ``shutdown`` and opens the session as a context manager, which must not end the
        worker."""
        with open(self.runs, "a") as file:
            file.write("x")
        shoal.shutdown()
        with shoal.init(ignore_reinit_error=True):
            pass
        with pytest.raises(RuntimeError, match="has joined its cluster"):
            shoal.init(num_cpus=1)
        return shoal.is_initialized(), shoal.get(square.remote(3)), os.getpid()


class LeavesAsync(Leaves):
    async def run(self):
        return Leaves.run(self)


@pytest.mark.parametrize("kind", ["function", "actor", "async actor", "threaded actor"])
def test_shutdown_and_init_in_a_worker_leave_its_cluster_alone(kind, tmp_path):
    runs = tmp_path / "runs"
    if kind == "function":
        run = shoal.remote(lambda: Leaves(str(runs)).run()).remote
    else:
        options = {"max_concurrency": 3} if kind == "threaded actor" else {"num_cpus": 0}
        actor = shoal.remote(**options)(LeavesAsync if kind == "async actor" else Leaves).remote(str(runs))
        run = actor.run.remote
    results = [shoal.get(run(), timeout=LATE_S) for _ in range(2)]
    assert [r[:2] for r in results] == [(True, 9)] * 2
    assert len({r[2] for r in results}) == 1  # all calls ran in one process, which ``shutdown`` did not end
    assert runs.read_text() == "xx"
    assert shoal.get(square.remote(4), timeout=LATE_S) == 16


def test_output_of_workers_appears_with_a_prefix(log, tmp_path):
    with printed(tmp_path) as so_far:
        shoal.get(log.say.remote("for everybody\ntwo lines"))
        who = f"(Log pid={shoal.get(log.pid.remote())})"
        wait_until(lambda: all(f"{who} for everybody\n{who} two lines\n" in so_far(number) for number in (1, 2)), 5, "the lines")


def test_four_threads_call_get_at_once(log, other):
    failures = []

    def work(actor, k):
        try:
            for i in range(100):
                assert shoal.get(actor.echo.remote((k, i)), timeout=60) == (k, i)
                assert shoal.get(shoal.put(i)) == i
            ready, _ = shoal.wait([actor.echo.remote(k)], timeout=60)
            assert shoal.get(ready) == [k]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(a, k)) for k, a in enumerate([log, other, log, other])]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    assert failures == []


def in_fork(function) -> str:
    """Returns the text that `function` returns in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = function()
        except BaseException as error:
            text = f"unexpected {error!r}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def calls_that_need_the_cluster(log, ref):
    yield lambda: log.echo.remote(1)
    yield lambda: shoal.get(ref)
    yield lambda: shoal.get(ref, timeout=0)
    yield lambda: shoal.wait([ref])
    yield lambda: shoal.put(1)
    yield lambda: shoal.kill(log)
    yield lambda: square.remote(1)
    yield lambda: Log.remote()
    yield lambda: shoal.nodes()
    yield lambda: shoal.available_resources()


def test_in_a_forked_child_every_call_raises_and_the_parent_goes_on(log):
    shoal.get(square.remote(1))
    ref = log.sleep.remote(0.5, then="parent's")
    children = []

    def child():
        for k, call in enumerate(calls_that_need_the_cluster(log, ref)):
            try:
                call()
            except Unavailable as error:
                if error.reason != "Forked":
                    return f"call {k}: {error}"
            else:
                return f"call {k} did not raise"
        return f"{shoal.is_initialized()}"

    assert in_fork(child) == "False"
    assert shoal.get(ref) == "parent's"
    assert shoal.get(log.echo.remote(1)) == 1
    del children


def test_a_forked_child_may_start_a_cluster_of_its_own(log):
    def child():
        shoal.init(num_cpus=1)
        pid = shoal.get(Log.remote().pid.remote(), timeout=60)
        shoal.shutdown()
        return f"{pid != os.getpid()} {shoal.is_initialized()}"

    assert in_fork(child) == "True False"
    assert shoal.get(log.echo.remote(1)) == 1


def test_a_forked_child_reads_local_values():
    ref = shoal.put(np.arange(1_000_000))
    assert in_fork(lambda: str(shoal.get(ref)[-1])) == "999999"


def _in_process(queue):
    try:
        shoal.put(1)
    except Unavailable as error:
        queue.put(str(error))


def test_a_multiprocessing_child_does_not_disturb_its_parent(log):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_in_process, args=(queue,))
    process.start()
    assert "forked" in queue.get()
    process.join(20)
    assert process.exitcode == 0
    assert shoal.get(log.echo.remote(1)) == 1


def test_a_data_loader_with_workers_does_not_disturb_its_parent(log):
    import torch

    ref = log.sleep.remote(0.3, then=1)
    loader = torch.utils.data.DataLoader(list(range(20)), batch_size=5, num_workers=2, multiprocessing_context="fork")
    assert sum(int(batch.sum()) for batch in loader) == sum(range(20))
    assert shoal.get(ref) == 1


def test_a_child_that_inherits_all_descriptors_delays_no_error(log):
    """The child's copies of this process's sockets do not keep connections alive, so that the error comes at once."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reading, 1)
        os._exit(0)
    try:
        doomed = Log.remote()
        worker = shoal.get(doomed.pid.remote())
        ref = doomed.sleep.remote(1000)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(ActorDiedError, match="SIGKILL"):  # the node saw the worker's end by its pidfd; no connection was closed
            shoal.get(ref, timeout=LATE_S)
    finally:
        os.write(writing, b"x")
        os.waitpid(pid, 0)
