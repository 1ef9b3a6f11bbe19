"""The calls of a client against one embedded cluster: actors, references, waiting, objects, functions, options."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from launching.actors import Log, Meeting, square
from launching.commands import printed
from launching.leftovers import alive, wait_until

import shoal
from shoal.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    InvalidArgument,
    Unimplemented,
    WorkerCrashedError,
)

pytestmark = pytest.mark.usefixtures("module_cluster")

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
    import torch  # not at the top, because workers import this module

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
    import torch  # not at the top, because workers import this module

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


# ---- functions


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

    # The pool of workers grows while functions wait in it, so that later calls find a free worker.
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
    @shoal.remote(num_cpus=1.5)  # no other function asks for 1.5 CPUs, so this one has a pool of workers of its own
    def pid():
        return os.getpid()

    first = shoal.get(pid.remote())
    total = shoal.cluster_resources()["CPU"]
    assert total == 8
    wait_until(lambda: shoal.available_resources().get("CPU", 0) == total, 60, "every CPU free")
    assert alive(first)  # the worker's process stays and waits for the next call
    assert shoal.get(pid.remote()) == first


def test_functions_never_hold_more_cpus_than_the_total(tmp_path):
    running = tmp_path / "running"

    def alone(other):
        with open(running, "x"):  # raises if another call runs `alone` at this moment
            pass
        running.unlink()
        return other

    functions = [shoal.remote(num_cpus=cpus)(alone).remote for cpus in (8, 7.5, 5)]  # a pool of workers for each number of CPUs
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
    with pytest.raises(ValueError, match=r"'num_retur'.* did you mean num_returns"):
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
