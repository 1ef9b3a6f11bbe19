"""The client's calls against one embedded cluster: actors, references, waiting, functions, threads, forks."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from command import printed
from leak_check import alive, wait_until
from shared_actors import Broken, Log, Meeting

import shoal
from shoal.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    InvalidArgument,
    TaskError,
    Unavailable,
    Unimplemented,
    WorkerCrashedError,
)


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


@pytest.fixture
def log():
    actor = Log.remote()
    yield actor
    shoal.kill(actor)


@pytest.fixture
def other():
    actor = Log.remote()
    yield actor
    shoal.kill(actor)


LATE_S = 60  # hang guard


# ---- calls and their order


def test_calls_of_one_caller_run_in_order(log):
    for i in range(200):
        last = log.add.remote(i)
    assert shoal.get(last) == 200
    assert shoal.get(log.all.remote()) == list(range(200))


def test_a_pending_argument_delays_its_call_and_later_ones(log, other):
    log.add.remote(other.sleep.remote(0.3, then="slow"))
    log.add.remote("after")
    assert shoal.get(log.all.remote()) == ["slow", "after"]


def test_references_among_the_arguments_are_resolved(log, other):
    ref = other.echo.remote([1])
    shoal.get(log.add.remote(ref, ref, 2, named=ref))
    assert shoal.get(log.all.remote()) == [[1], [1], 2, [1]]
    assert shoal.get(log.kind.remote(shoal.put(5))) == "int"


def test_references_inside_an_argument_stay_references(log, other):
    assert shoal.get(log.kind.remote([shoal.put(1)])) == "list"
    ready, pending = shoal.put("a"), other.sleep.remote(0.2, then=np.arange(100_000))
    first, second = shoal.get(log.get.remote([ready, pending]))
    assert first == "a"
    assert second[-1] == 99_999
    assert shoal.get(log.echo.remote({"deep": [(ready,)]}))["deep"][0][0].hex() == ready.hex()


def test_a_caller_gets_a_reference_created_by_an_actor(log, other):
    (ref,) = shoal.get(log.ref_of.remote(other, "sleep", 0.2, "made"))
    assert shoal.get(ref) == "made"


def test_get_of_a_nested_reference_raises_its_failure(log, other):
    failing = other.fail.remote(KeyError("nested"))
    with pytest.raises(KeyError, match="nested"):
        shoal.get(log.get.remote([failing]))


def test_a_failed_argument_fails_the_call(log, other):
    failing = other.fail.remote(ValueError("argument"))
    with pytest.raises(ValueError, match="argument"):
        shoal.get(log.add.remote(failing))
    assert shoal.get(log.all.remote()) == []


def test_handles_are_values(log, other):
    assert shoal.get(log.echo.remote(other)) == other
    assert hash(shoal.get(log.echo.remote({"h": [other]}))["h"][0]) == hash(other)
    assert shoal.get(log.call.remote(other, "add", "by another")) == 1
    assert shoal.get(other.all.remote()) == ["by another"]


def test_an_actor_creates_actors(log):
    child = shoal.get(log.make.remote("first"))
    assert shoal.get(child.all.remote()) == ["first"]
    assert shoal.get(child.pid.remote()) != shoal.get(log.pid.remote())
    grandchild = shoal.get(child.make.remote())
    assert shoal.get(log.call.remote(grandchild, "add", 1)) == 1


def test_an_actor_that_waits_for_itself_can_time_out(log):
    with pytest.raises(GetTimeoutError):
        shoal.get(log.call.remote(log, "get", []), timeout=0.3)


def test_many_large_arguments_fit_a_call(log):
    large = [shoal.put(np.full(20_000, i)) for i in range(100)]
    assert shoal.get(log.add.remote(*large)) == 100
    one = shoal.put(np.zeros(20_000))
    assert shoal.get(log.add.remote(*[one] * 300)) == 400
    assert len(shoal.get(log.all.remote())) == 400


def test_an_unknown_method_is_an_error_at_the_caller(log):
    with pytest.raises(AttributeError, match="no method nothing"):
        log.nothing  # noqa: B018
    with pytest.raises(TypeError, match=r"add\.remote"):
        log.add(1)
    with pytest.raises(TypeError, match=r"Log\.remote"):
        Log()


def test_an_argument_that_cannot_be_pickled_raises_at_the_call(log):
    with pytest.raises(TypeError, match="lock"):
        log.echo.remote(threading.Lock())
    assert shoal.get(log.echo.remote(1)) == 1


# ---- get and wait


def test_get_keeps_the_order_of_its_list(log, other):
    refs = [log.sleep.remote(0.2, "a"), other.echo.remote("b"), shoal.put("c")]
    assert shoal.get([*refs, refs[0]]) == ["a", "b", "c", "a"]
    assert shoal.get(tuple(refs)) == ["a", "b", "c"]
    assert shoal.get([]) == []


def test_get_of_a_list_raises_the_first_failure_at_once(log, other):
    never = log.sleep.remote(1000)
    with pytest.raises(KeyError, match="early"):
        shoal.get([never, other.fail.remote(KeyError("early"))], timeout=60)


def test_get_gives_up_at_its_timeout(log):
    ref = log.sleep.remote(1000)
    with pytest.raises(GetTimeoutError, match=r"Log\.sleep"):
        shoal.get(ref, timeout=0.1)
    with pytest.raises(TimeoutError):
        shoal.get([shoal.put(1), ref], timeout=0)


@pytest.mark.parametrize("wrong", [None, 1, "abc", {}, b""], ids=repr)
def test_get_of_a_non_reference_is_a_value_error(wrong):
    if wrong == {}:
        wrong = {shoal.put(1): 2}
    with pytest.raises(ValueError, match="ObjectRef"):
        shoal.get(wrong)


def test_get_of_a_list_with_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        shoal.get([1])


def test_a_negative_timeout_is_refused(log):
    for call, timeout in ((shoal.get, -2), (shoal.wait, -1)):  # in Ray, -1 is a get without a timeout
        with pytest.raises(ValueError, match="negative"):
            call([log.echo.remote(1)], timeout=timeout)


def test_wait_returns_at_most_num_returns(log, other):
    ready = [shoal.put(i) for i in range(3)]
    slow = log.sleep.remote(1000)
    assert shoal.wait([slow, *ready]) == ([ready[0]], [slow, *ready[1:]])
    assert shoal.wait([slow, *ready], num_returns=2) == (ready[:2], [slow, ready[2]])
    assert shoal.wait([slow, *ready], num_returns=4, timeout=0.1) == (ready, [slow])
    assert shoal.wait([slow], timeout=0) == ([], [slow])
    assert shoal.wait([]) == ([], [])


@pytest.mark.parametrize("wrong", [None, 5, (), "ab", {1: 2}, [1], [None]], ids=repr)
def test_wait_takes_a_list_of_references_only(wrong):
    with pytest.raises(TypeError):
        shoal.wait(wrong)


def test_wait_refuses_duplicates_and_impossible_counts(log):
    ref = shoal.put(1)
    with pytest.raises(ValueError, match="once"):
        shoal.wait([ref, ref])
    for count in (0, -1, 2):
        with pytest.raises(ValueError, match="num_returns"):
            shoal.wait([ref], num_returns=count)
    with pytest.raises(TypeError):
        shoal.wait(ref)


def test_references_of_failed_and_dead_actors_are_ready(log, other):
    failed, dead = log.fail.remote(ValueError()), other.sleep.remote(1000)
    shoal.kill(other)
    ready, rest = shoal.wait([failed, dead], num_returns=2, timeout=60)
    assert len(ready) == 2
    assert rest == []


# ---- objects


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 102_399, 102_400, 102_401, 50_000_000])
def test_bytes_of_any_size_round_trip(log, size):
    value = os.urandom(min(size, 1000)) * (size // 1000) + b"x" * (size % 1000 if size > 1000 else size - min(size, 1000))
    value = (value + b"y" * size)[:size]
    assert shoal.get(shoal.put(value)) == value
    assert shoal.get(log.echo.remote(value)) == value
    assert shoal.get(log.echo.remote(shoal.put(value))) == value


@pytest.mark.parametrize("count", [1, 100, 5000, 20_000, 6_000_000])
def test_arrays_and_tensors_of_any_size_round_trip(log, count):
    import torch  # imported here, because workers import this module

    for value in (np.arange(count, dtype=np.float64), torch.arange(count).to(torch.bfloat16)):
        for back in (shoal.get(shoal.put(value)), shoal.get(log.echo.remote(value)), shoal.get(log.echo.remote([value]))[0]):
            assert type(back) is type(value)
            assert back.dtype == value.dtype
            assert (back == value).all()


def test_received_arrays_are_read_only_and_share_memory():
    ref = shoal.put(np.zeros(1_000_000))
    first, second = shoal.get(ref), shoal.get(ref)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    # Zero-copy: neither array lies in memory that this process wrote.
    address = first.ctypes.data
    ranges = {tuple(int(x, 16) for x in m.split()[0].split("-")): m for m in Path("/proc/self/maps").read_text().splitlines()}
    assert "memfd:shoal:" in next(m for (first_byte, end), m in ranges.items() if first_byte <= address < end)
    assert second[5] == 0


@pytest.mark.parametrize("count", [3000, 1_000_000])
def test_writes_to_a_received_tensor_stay_private(log, count):
    import torch  # imported here, because workers import this module

    ref = shoal.put(torch.zeros(count))
    mine = shoal.get(ref)
    mine.add_(1)
    assert mine.sum() == count
    assert shoal.get(ref).sum() == 0
    assert shoal.get(log.echo.remote(ref)).sum() == 0


def test_putting_a_reference_is_refused():
    with pytest.raises(TypeError, match="reference already"):
        shoal.put(shoal.put(1))


def test_a_put_value_is_a_snapshot(log):
    value = np.zeros(1_000_000)
    ref = shoal.put(value)
    value[:] = 1
    assert shoal.get(ref).sum() == 0


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
    assert shoal.get(ref) == "made"  # called before `other` itself waits: calls of two callers have no order
    shoal.kill(log)
    assert shoal.get(other.get.remote([ref])) == ["made"]


# ---- functions


@shoal.remote
def square(x):
    return x * x


def test_functions_take_values_references_and_keywords():
    assert shoal.get([square.remote(i) for i in range(50)]) == [i * i for i in range(50)]
    assert shoal.get(square.remote(square.remote(x=shoal.put(3)))) == 81


def test_functions_run_concurrently():
    meeting = Meeting.remote()

    @shoal.remote
    def meet(size):
        shoal.get(meeting.come.remote())
        while shoal.get(meeting.count.remote()) < size:
            time.sleep(0.01)
        return os.getpid()

    # The pool grows while functions wait, so later ones find workers.
    refs = [meet.remote(3)]

    def met():
        refs.append(meet.remote(3))
        return shoal.wait(refs, num_returns=1, timeout=0.15)[0]

    wait_until(met, 8, "a meeting of three")
    assert len({shoal.get(r, timeout=60) for r in refs}) >= 3
    shoal.kill(meeting)


def test_a_functions_exception_keeps_its_class():
    @shoal.remote
    def fails():
        raise LookupError("there is none")

    with pytest.raises(LookupError, match="there is none") as info:
        shoal.get(fails.remote())
    assert "fails raised" in str(info.value)


def test_a_function_that_ends_its_process_fails_and_the_next_one_runs():
    @shoal.remote
    def ends():
        os._exit(9)

    ended = r"the worker that ran ends died: its process \(pid \d+\) exited with code 9 \(tried {}\)"
    for retries, tried in ((0, "1 time"), (1, "2 times")):
        with pytest.raises(WorkerCrashedError, match=ended.format(tried)):
            shoal.get(ends.options(max_retries=retries).remote(), timeout=60)
    assert shoal.get(square.remote(3), timeout=60) == 9


def test_idle_workers_of_functions_release_their_cpus():
    @shoal.remote(num_cpus=1.5)  # a pool of its own
    def pid():
        return os.getpid()

    first = shoal.get(pid.remote())
    total = shoal.cluster_resources()["CPU"]
    assert total == 8
    wait_until(lambda: shoal.available_resources().get("CPU", 0) == total, 60, "every CPU free")
    assert alive(first)  # the process waits for the next call
    assert shoal.get(pid.remote()) == first


def test_functions_never_hold_more_cpus_than_the_total(tmp_path):
    running = tmp_path / "running"

    def alone(other):
        with open(running, "x"):  # raises while another one runs
            pass
        running.unlink()
        return other

    functions = [shoal.remote(num_cpus=cpus)(alone).remote for cpus in (8, 7.5, 5)]  # one worker pool each
    for _ in range(5):
        assert shoal.get([functions[k % 3](k) for k in range(9)], timeout=LATE_S) == list(range(9))
        assert shoal.get(functions[0](1), timeout=LATE_S) == 1
        wait_until(lambda: shoal.available_resources().get("CPU", 0) == 8, 60, "every CPU free")


# ---- options


def test_unknown_and_unsupported_options_have_different_errors():
    meant = r"num_cpu\b.* did you mean num_cpus\?$"
    for misspelt in (shoal.remote, Log.options, square.options):
        with pytest.raises(ValueError, match=meant):
            misspelt(num_cpu=1)
    with pytest.raises(TypeError, match=meant):
        shoal.init(num_cpu=1)
    with pytest.raises(ValueError, match=r"num_retur is no option .* did you mean num_returns"):
        shoal.method(num_retur=2)
    with pytest.raises(ValueError, match=r"unknown option colour; there are accelerator_type, [^_]\w*,") as unlike:
        Log.options(colour="red")
    assert not any(name.startswith("_") for name in str(unlike.value).split())
    with pytest.raises(Unimplemented, match="conda"):
        Log.options(runtime_env={"conda": "here"})
    with pytest.raises(TypeError):
        shoal.remote(5)
    with pytest.raises(TypeError):
        shoal.remote(lambda: 1, num_cpus=1)


@pytest.mark.parametrize(
    "wrong", [{"num_cpus": -1}, {"num_cpus": "two"}, {"resources": {"": 1}}, {"resources": 5}, {"memory": float("nan")}]
)
def test_invalid_amounts_are_refused_at_the_call(wrong):
    with pytest.raises((InvalidArgument, TypeError, ValueError)):
        Log.options(**wrong).remote()


def test_async_functions_are_refused():
    async def function():
        pass

    with pytest.raises(ValueError, match=r"asyncio\.run\(\)"):
        shoal.remote(function)


def test_an_infeasible_actor_waits_and_the_driver_prints_the_shortage(tmp_path):
    with printed(tmp_path) as so_far:
        greedy = Log.options(num_gpus=3).remote()
        ref = greedy.echo.remote(1)
        wait_until(lambda: "actor Log is pending" in so_far(2), 5, "the warning")
        text = so_far(2)
    assert "nearest fit: node" in text
    assert "GPU" in text
    with pytest.raises(GetTimeoutError):
        shoal.get(ref, timeout=0.1)
    shoal.kill(greedy)
    with pytest.raises(ActorDiedError):
        shoal.get(ref, timeout=60)


def test_an_actor_holds_its_resources_until_it_ends():
    free = shoal.cluster_resources()["CPU"]
    wait_until(lambda: shoal.available_resources().get("CPU", 0) == free, 60, "the end of what ran before")
    actor = Log.options(num_cpus=0.5).remote()
    shoal.get(actor.pid.remote())
    wait_until(lambda: shoal.available_resources().get("CPU", 0) <= free - 0.5, 60, "half a CPU taken")
    shoal.kill(actor)
    wait_until(lambda: shoal.available_resources().get("CPU", 0) >= free, 60, "it given back")


def test_twenty_actors_run_at_once():
    actors = [Log.remote(i) for i in range(20)]
    assert [v for (v,) in shoal.get([a.all.remote() for a in actors], timeout=60)] == list(range(20))
    assert len(set(shoal.get([a.pid.remote() for a in actors]))) == 20
    for actor in actors:
        shoal.kill(actor)


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
        """As scripts do: the context manager and ``shutdown`` at the end of a script that became a remote function."""
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
    assert len({r[2] for r in results}) == 1  # the process goes on
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
    """The child's copies of our sockets keep no connection alive."""
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
        with pytest.raises(ActorDiedError, match="SIGKILL"):  # from the pidfd, without the end of a connection
            shoal.get(ref, timeout=LATE_S)
    finally:
        os.write(writing, b"x")
        os.waitpid(pid, 0)
