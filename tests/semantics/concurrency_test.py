"""Row A2, concurrency: threads, async actors, concurrency groups, and the order in which calls begin."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time

import pytest
from leak_check import alive, wait_until
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError, GetTimeoutError, TaskCancelledError


@ray.remote
class Threaded:
    """Counts the callers inside, and releases them together."""

    def __init__(self):
        self.lock, self.inside, self.most, self.begun = threading.Lock(), 0, 0, []
        self.made_in = threading.current_thread() is threading.main_thread()

    def enter(self, who, gate):
        with self.lock:
            self.begun.append(who)
            self.inside += 1
            self.most = max(self.most, self.inside)
        ray.get(gate.arrive.remote(who))
        with self.lock:
            self.inside -= 1
        return who

    def state(self):
        return self.most, self.begun

    def fail(self):
        raise KeyError("mine")

    def leave(self):
        ray.actor.exit_actor()

    def leave_when_open(self, gate):
        ray.get(gate.arrive.remote("leave", "leave"))
        ray.actor.exit_actor()

    def leave_with(self, code, gate):
        ray.get(gate.note.remote(code))
        sys.exit(code)

    def pid(self):
        return os.getpid()

    def context(self, gate, name):
        ray.get(gate.arrive.remote(name))
        return ray.get_runtime_context().get_task_name(), ray.get_runtime_context().get_task_id()


def ended(actor):
    ray.kill(actor)


# ---- threads


def test_a_constructor_may_be_a_coroutine():
    import asyncio

    class Slow:
        async def __init__(self, value, fails=False):
            await asyncio.sleep(0)
            if fails:
                raise ValueError("no such luck")
            self.value = value

        def get(self):
            return self.value

    slow = ray.remote(Slow)
    assert ray.get(slow.remote(3).get.remote(), timeout=GUARD_S) == 3
    with pytest.raises(ActorDiedError, match="no such luck"):
        ray.get(slow.remote(3, fails=True).get.remote(), timeout=GUARD_S)


def test_max_concurrency_calls_run_on_threads_at_once(gate):
    actor = Threaded.options(max_concurrency=3).remote()
    refs = [actor.enter.remote(i, gate) for i in range(7)]
    assert len(ray.get(gate.arrived.remote(3), timeout=GUARD_S)) == 3
    gate.open.remote()
    assert ray.get(refs, timeout=GUARD_S) == list(range(7))
    most, begun = ray.get(actor.state.remote())
    assert most == 3
    assert sorted(begun) == list(range(7))
    ended(actor)


def test_an_ordinary_actor_runs_one_call_at_a_time(gate):
    actor = Threaded.remote()
    refs = [actor.enter.remote(i, gate) for i in range(5)]
    assert ray.get(gate.arrived.remote(1), timeout=GUARD_S) == [0]
    gate.open.remote()
    ray.get(refs, timeout=GUARD_S)
    assert ray.get(actor.state.remote()) == (1, list(range(5)))
    ended(actor)


def test_calls_of_a_group_begin_in_submission_order():

    @ray.remote
    class One:
        def __init__(self):
            self.begun = []

        def add(self, i):
            self.begun.append(i)

        @ray.method(concurrency_group="other")
        def all(self):
            return self.begun

    actor = One.options(concurrency_groups={"other": 1}).remote()
    ray.get([actor.add.remote(i) for i in range(200)])
    assert ray.get(actor.all.remote()) == list(range(200))
    ended(actor)


def test_an_exception_on_a_thread_fails_its_call_only():
    actor = Threaded.options(max_concurrency=2).remote()
    with pytest.raises(KeyError, match="mine"):
        ray.get(actor.fail.remote())
    assert ray.get(actor.state.remote()) == (0, [])
    ended(actor)


def test_a_thread_may_call_its_own_actor():
    """With one thread, the call would wait for itself forever."""

    @ray.remote(max_concurrency=2)
    class Recursive:
        def depth(self, n):
            return 0 if n == 0 else 1 + ray.get(ray.get_runtime_context().current_actor.depth.remote(n - 1))

    actor = Recursive.remote()
    assert ray.get(actor.depth.remote(1), timeout=GUARD_S) == 1
    ended(actor)


def test_threads_have_contexts_of_their_own(gate):
    actor = Threaded.options(max_concurrency=2).remote()
    refs = [actor.context.options(name=n).remote(gate, n) for n in "ab"]
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    gate.open.remote()
    (a, first), (b, second) = ray.get(refs, timeout=GUARD_S)
    assert (a, b) == ("a", "b")
    assert first != second
    ended(actor)


@pytest.mark.parametrize("way", ["leave", "__ray_terminate__"])
def test_running_threads_finish_before_the_actor_ends(gate, way):
    actor = Threaded.options(max_concurrency=2).remote()
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    inside = actor.enter.remote("a", gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(getattr(actor, way).remote(), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.state.remote(), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == "a"
    wait_until(lambda: not alive(pid), GUARD_S, "its end")


def test_queued_calls_of_an_ending_threaded_actor_never_run(gate):
    actor = Threaded.options(max_concurrency=2).remote()
    inside = actor.enter.remote("a", gate)
    left = actor.leave_when_open.remote(gate)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    waits = [actor.enter.remote(i, gate) for i in range(3)]
    gate.open.remote("leave")
    for ref in (left, *waits):
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(ref, timeout=GUARD_S)
    assert ray.get(gate.seen.remote(), timeout=GUARD_S) == ["a", "leave"]
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == "a"


def test_sys_exit_lets_running_threads_finish(gate):
    actor = Threaded.options(max_concurrency=2).remote()
    inside = actor.enter.remote("a", gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    left = actor.leave_with.remote(0, gate)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == "a"
    with pytest.raises(ActorDiedError, match="exited with code 0"):
        ray.get(left, timeout=GUARD_S)


@pytest.mark.parametrize("cls", ["Threaded", "Async"])
def test_sys_exit_with_another_code_crashes_at_once(gate, cls):
    actor = globals()[cls].options(max_concurrency=2).remote()
    never = actor.enter.remote("a", gate) if cls == "Threaded" else actor.through.remote(gate, "arrive", "a")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    exits = actor.__ray_call__.remote(lambda self: sys.exit(3))
    for ref in (exits, never):
        with pytest.raises(ActorDiedError, match="exited with code 3"):
            ray.get(ref, timeout=GUARD_S)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_signal_handler_can_end_a_threaded_actor(concurrency):
    @ray.remote
    class Signalled:
        def __init__(self):
            signal.signal(signal.SIGUSR1, lambda *_: ray.exit_actor())

        def pid(self):
            return os.getpid()

    actor = Signalled.options(max_restarts=-1, max_concurrency=concurrency).remote()
    os.kill(ray.get(actor.pid.remote(), timeout=GUARD_S), signal.SIGUSR1)
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S)
    assert row_of(actor)["num_restarts"] == 0


class Handled:
    """An argument whose unpickling, on the main thread, installs a SIGUSR1 handler that ends the actor."""

    def __init__(self, *code):
        self.code = code

    def __reduce__(self):
        return _handle, self.code


def _handle(*code):
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(*code) if code else ray.exit_actor())


class Signalled:
    def __init__(self, handled):
        pass

    def pid(self):
        return os.getpid()


@ray.remote
class SignalledAsync(Signalled):
    async def waits(self, gate, who):
        await gate.arrive.remote(who)
        return who


def test_a_signal_handler_ends_an_async_actor_after_running_calls(gate):
    actor = SignalledAsync.options(max_restarts=-1).remote(Handled())
    pid, runs = ray.get(actor.pid.remote(), timeout=GUARD_S), actor.waits.remote(gate, "runs")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    os.kill(pid, signal.SIGUSR1)

    def takes_no_more():
        with contextlib.suppress(ActorDiedError):
            return not ray.get(actor.pid.remote(), timeout=GUARD_S)
        return True

    wait_until(takes_no_more, GUARD_S)
    gate.open.remote()
    assert ray.get(runs, timeout=GUARD_S) == "runs"
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S)
    assert row_of(actor)["num_restarts"] == 0


@pytest.mark.parametrize("kind", ["async", "async with groups", "threads"])
def test_a_signal_during_a_thread_handover_loses_no_call(kind):
    class Signals:
        def __init__(self, handled):
            sys.setswitchinterval(GUARD_S)  # the main thread, which passes the call on, continues only when the call's thread waits

        def run(self):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)  # time for the main thread, which could refuse the call
            return "ran"

    class SignalsAsync(Signals):
        async def waits(self):
            pass

    groups = {"other": 1} if kind == "async with groups" else {}
    actor = (
        ray.remote(Signals if kind == "threads" else SignalsAsync).options(max_concurrency=2, concurrency_groups=groups).remote(Handled())
    )
    assert ray.get(actor.run.remote(), timeout=GUARD_S) == "ran"
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_call_during_the_signal_goes_to_the_next_life(concurrency):
    actor = ray.remote(Signalled).options(max_restarts=-1, max_task_retries=-1, max_concurrency=concurrency).remote(Handled(3))
    for _ in range(10):
        pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
        os.kill(pid, signal.SIGUSR1)
        assert ray.get([actor.pid.remote() for _ in range(3)], timeout=GUARD_S)
        wait_until(lambda pid=pid: not alive(pid), GUARD_S, "the end of its process")


def row_of(actor):
    (row,) = (r for r in ray._core.process.session().list("actors") if r["id"] == actor._actor_id)
    return row


def test_calls_during_an_actors_end_fail():
    @ray.remote
    class Ends:
        async def call(self):
            return 1

        async def leave(self):
            ray.exit_actor()

        def __ray_shutdown__(self):
            threading.Event().wait(0.3)  # calls arrive in the meantime

    actor = Ends.remote()
    ray.get(actor.call.remote(), timeout=GUARD_S)
    actor.leave.remote()
    for ref in [actor.call.remote() for _ in range(3000)]:
        with contextlib.suppress(ActorDiedError):
            assert ray.get(ref, timeout=GUARD_S) == 1


@pytest.mark.parametrize("cls", ["Threaded", "Async"])
def test_an_endless_call_keeps_its_actor_until_kill(cls, gate):
    actor = globals()[cls].options(max_concurrency=2).remote()
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    never = actor.enter.remote("a", gate) if cls == "Threaded" else actor.through.remote(gate, "arrive", "a")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.leave.remote(), timeout=GUARD_S)
    assert alive(pid)
    assert not ray.wait([never], timeout=0)[0]
    ray.kill(actor)
    with pytest.raises(ActorDiedError):
        ray.get(never, timeout=GUARD_S)
    wait_until(lambda: not alive(pid), GUARD_S, "its end")


def test_a_thousand_calls_on_threads_return():
    actor = Recorder.options(max_concurrency=4).remote()
    assert ray.get([actor.echo.remote(i) for i in range(1000)], timeout=GUARD_S) == list(range(1000))
    assert ray.get(actor.pair.remote()) == [1, 2]
    ended(actor)


# ---- async actors


@ray.remote
class Async:
    def __init__(self):
        self.loop_there = asyncio.get_running_loop() is not None
        self.thread = threading.get_ident()
        self.begun, self.inside, self.most, self.event = [], 0, 0, asyncio.Event()

    async def enter(self, who):
        self.begun.append(who)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.event.wait()
        self.inside -= 1
        return who

    def release(self):
        self.event.set()

    def seen(self):
        return self.most, self.begun

    async def one_thread(self):
        return self.loop_there and self.thread == threading.get_ident()

    def sync_one_thread(self):
        return asyncio.get_running_loop() is not None and self.thread == threading.get_ident()

    async def fail(self):
        raise KeyError("mine")

    async def cancel(self):
        raise asyncio.CancelledError

    async def leave(self):
        ray.actor.exit_actor()

    async def leave_when_open(self, gate):
        await gate.arrive.remote("leave", "leave")
        ray.actor.exit_actor()

    def pid(self):
        return os.getpid()

    async def get_of(self, refs):
        return [await r for r in refs]

    async def through(self, handle, method, *args):
        return await getattr(handle, method).remote(*args)

    @ray.method(num_returns=2)
    async def pair(self):
        return 1, 2

    async def name(self):
        await asyncio.sleep(0)
        return ray.get_runtime_context().get_task_name()

    def submits(self, handle, method, *args):
        return getattr(handle, method).remote(*args)

    def passes(self, coroutine):
        return asyncio.sleep(0, 5) if coroutine else asyncio.ensure_future(asyncio.sleep(0, 6))


@pytest.fixture
def actor():
    actor = Async.remote()
    yield actor
    ray.kill(actor)


def test_async_calls_interleave_and_begin_in_order(actor):
    refs = [actor.enter.remote(i) for i in range(50)]
    actor.release.remote()
    assert ray.get(refs, timeout=GUARD_S) == list(range(50))
    assert ray.get(actor.seen.remote()) == (50, list(range(50)))


def test_max_concurrency_bounds_async_calls(gate):
    actor = Gate.options(max_concurrency=3).remote()
    refs = [actor.arrive.remote(i) for i in range(2)]
    assert ray.get(actor.arrived.remote(2), timeout=GUARD_S) == [0, 1]
    refs.append(actor.arrive.remote(2))
    beyond = actor.seen.remote()
    with pytest.raises(GetTimeoutError):
        ray.get(beyond, timeout=0.1)
    ray.kill(actor)
    del refs


def test_a_thousand_async_calls_run_at_once_by_default(actor):
    refs = [actor.enter.remote(i) for i in range(999)]
    actor.release.remote()
    ray.get(refs, timeout=GUARD_S)
    assert ray.get(actor.seen.remote())[0] == 999


def test_all_methods_and_the_constructor_run_on_one_loop(actor):
    assert ray.get([actor.one_thread.remote(), actor.sync_one_thread.remote()]) == [True, True]


def test_an_async_failure_fails_its_call_only(actor):
    with pytest.raises(KeyError, match="mine"):
        ray.get(actor.fail.remote())
    with pytest.raises(ray.exceptions.RayTaskError, match="CancelledError"):
        ray.get(actor.cancel.remote())
    assert ray.get(actor.pair.remote()) == [1, 2]


def test_an_async_method_awaits_references(actor, recorder):
    assert ray.get(actor.get_of.remote([recorder.echo.remote(1), ray.put(2)]), timeout=GUARD_S) == [1, 2]
    assert ray.get([actor.through.remote(recorder, "echo", i) for i in range(100)], timeout=GUARD_S) == list(range(100))


def test_an_async_method_can_return_a_reference(actor, recorder, gate):
    for ref in (
        ray.get(actor.submits.remote(recorder, "echo", 1), timeout=GUARD_S),
        ray.get(actor.__ray_call__.remote(lambda _, handle: handle.echo.remote(1), recorder), timeout=GUARD_S),
    ):
        assert isinstance(ref, ray.ObjectRef)
        assert ray.get(ref, timeout=GUARD_S) == 1
    # The call returns before the reference is ready, and does not fail with it.
    waits = ray.get(actor.submits.remote(gate, "wait", "", 2), timeout=GUARD_S)
    fails = ray.get(actor.submits.remote(recorder, "fail", KeyError("mine")), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(waits, timeout=GUARD_S) == 2
    with pytest.raises(KeyError, match="mine"):
        ray.get(fails, timeout=GUARD_S)


def test_returned_coroutines_and_futures_are_awaited(actor):
    assert ray.get([actor.passes.remote(True), actor.passes.remote(False)], timeout=GUARD_S) == [5, 6]


def test_two_async_actors_call_each_other(actor):
    @ray.remote
    class Other:
        async def echo(self, x):
            return x + 1

        async def back(self, handle, me, x):
            return await handle.through.remote(me, "echo", x)

    other = Other.remote()
    assert ray.get(other.back.remote(actor, other, 1), timeout=GUARD_S) == 2
    ray.kill(other)


def test_async_calls_have_contexts_of_their_own(actor):
    refs = [actor.name.options(name=str(i)).remote() for i in range(10)]
    assert ray.get(refs) == [str(i) for i in range(10)]


@pytest.mark.parametrize("way", ["leave", "__ray_terminate__"])
def test_running_async_calls_finish_before_the_actor_ends(actor, gate, way):
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    inside = actor.through.remote(gate, "wait", "", 5)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(getattr(actor, way).remote(), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.seen.remote(), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == 5
    wait_until(lambda: not alive(pid), GUARD_S, "its end")


def test_queued_calls_of_an_ending_async_actor_never_run(gate):
    actor = Async.options(max_concurrency=2).remote()
    inside, left = actor.through.remote(gate, "wait", "", 5), actor.leave_when_open.remote(gate)
    waits = [actor.through.remote(gate, "note", i) for i in range(3)]
    gate.open.remote("leave")
    for ref in (left, *waits):
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(ref, timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == 5
    assert ray.get(gate.seen.remote(), timeout=GUARD_S) == ["leave"]


def test_running_calls_of_an_ending_actor_can_be_cancelled(actor, gate):
    inside = actor.through.remote(gate, "arrive", "a")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.leave.remote(), timeout=GUARD_S)
    ray.cancel(inside)
    with pytest.raises(TaskCancelledError):
        ray.get(inside, timeout=GUARD_S)


def test_a_call_that_waits_for_its_own_actors_exit_fails(actor):
    with pytest.raises(ActorDiedError):
        ray.get(actor.through.remote(actor, "leave"), timeout=GUARD_S)


@pytest.mark.parametrize("cls", [Async, Threaded.options(max_concurrency=2)], ids=["async", "threads"])
def test_no_call_runs_after_the_end_was_reported(cls):
    for actor in [cls.remote() for _ in range(10)]:
        with pytest.raises(ActorDiedError):
            ray.get(actor.leave.remote(), timeout=GUARD_S)
        with pytest.raises(ActorDiedError):
            ray.get(actor.__ray_ready__.remote(), timeout=GUARD_S)


def test_an_async_constructor_error_fails_the_actor():
    @ray.remote
    class Broken:
        def __init__(self):
            raise ValueError("no such luck")

        async def method(self):
            return 1

    with pytest.raises(ActorDiedError, match="no such luck"):
        ray.get(Broken.remote().method.remote(), timeout=GUARD_S)


# ---- groups


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self):
        self.lock, self.begun = threading.Lock(), []

    @ray.method(concurrency_group="io")
    def io(self, who, gate):
        return ray.get(gate.arrive.remote(who))

    @ray.method(concurrency_group="compute")
    def compute(self, who, gate):
        return ray.get(gate.arrive.remote(who))

    def plain(self):
        return "plain"


def test_groups_have_threads_of_their_own(gate):
    actor = Grouped.remote()
    refs = [actor.io.remote(f"io{i}", gate) for i in range(3)] + [actor.compute.remote(f"compute{i}", gate) for i in range(2)]
    inside = ray.get(gate.arrived.remote(3), timeout=GUARD_S)
    assert sorted(inside) == ["compute0", "io0", "io1"]
    assert ray.get(actor.plain.remote(), timeout=GUARD_S) == "plain"
    assert ray.get(gate.seen.remote()) == inside
    gate.open.remote()
    ray.get(refs, timeout=GUARD_S)
    ended(actor)


def test_options_put_a_call_into_another_group(gate):
    actor = Grouped.remote()
    held = actor.compute.remote("held", gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    moved = actor.compute.options(concurrency_group="io").remote("moved", gate)
    assert ray.get(gate.arrived.remote(2), timeout=GUARD_S) == ["held", "moved"]
    gate.open.remote()
    ray.get([held, moved], timeout=GUARD_S)
    ended(actor)


def test_an_unknown_group_is_an_error():
    actor = Grouped.remote()
    with pytest.raises(ValueError, match="no concurrency group gpu"):
        ray.get(actor.plain.options(concurrency_group="gpu").remote(), timeout=GUARD_S)
    ended(actor)


def test_a_method_in_an_undeclared_group_creates_no_actor():
    @ray.remote
    class Undeclared:
        @ray.method(concurrency_group="gpu")
        def method(self):
            pass

    with pytest.raises(ValueError, match="gpu"):
        Undeclared.remote()


@ray.remote(concurrency_groups={"control": 1, "io": 2})
class Lanes:
    def __init__(self):
        self.thread = threading.get_ident()

    async def block(self, path, gate):
        """Blocks its event loop."""
        ray.get(gate.note.remote("block"))
        while not os.path.exists(path):
            time.sleep(0.01)
        return threading.get_ident() == self.thread

    @ray.method(concurrency_group="io")
    async def wait(self, gate, who):
        await gate.arrive.remote(who)
        return who

    @ray.method(concurrency_group="io")
    async def items(self, n):
        for i in range(n):
            yield i

    @ray.method(concurrency_group="control")
    async def thread_is_its_own(self):
        return threading.get_ident() != self.thread

    @ray.method(concurrency_group="control")
    async def leave(self):
        ray.exit_actor()


def test_a_blocked_group_of_an_async_actor_blocks_no_other(gate, tmp_path):
    actor = Lanes.remote()
    blocks = actor.block.remote(str(tmp_path / "open"), gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    assert ray.get(actor.thread_is_its_own.remote(), timeout=GUARD_S)
    assert [ray.get(item, timeout=GUARD_S) for item in actor.items.remote(3)] == [0, 1, 2]
    waits = [actor.wait.remote(gate, who) for who in range(3)]
    assert len(ray.get(gate.arrived.remote(3), timeout=GUARD_S)) == 3  # two of the three, because the group has two slots
    ray.cancel(waits[0])
    with pytest.raises(TaskCancelledError):
        ray.get(waits[0], timeout=GUARD_S)
    ray.get(gate.open.remote())
    assert ray.get(waits[1:], timeout=GUARD_S) == [1, 2]
    assert not ray.wait([blocks], timeout=0)[0]
    (tmp_path / "open").touch()
    assert ray.get(blocks, timeout=GUARD_S)


def test_an_async_actor_ends_after_the_calls_of_all_its_groups(gate, tmp_path):
    actor = Lanes.remote()
    blocks = actor.block.remote(str(tmp_path / "open"), gate)
    waits = actor.wait.remote(gate, "wait")
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(actor.leave.remote(), timeout=GUARD_S)  # at once, although others run
    ray.get(gate.open.remote())
    assert ray.get(waits, timeout=GUARD_S) == "wait"
    (tmp_path / "open").touch()
    assert ray.get(blocks, timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(actor.thread_is_its_own.remote(), timeout=GUARD_S)


def test_an_async_actor_out_of_scope_ends_after_all_its_groups(gate, tmp_path):
    actor = Lanes.remote()
    blocks, waits = actor.block.remote(str(tmp_path / "open"), gate), actor.wait.remote(gate, "wait")
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    del actor
    ray.get(gate.open.remote())
    assert ray.get(waits, timeout=GUARD_S) == "wait"
    (tmp_path / "open").touch()
    assert ray.get(blocks, timeout=GUARD_S)


def test_an_async_actor_ends_after_tasks_begun_in_another_group(gate):
    @ray.remote(concurrency_groups={"io": 1}, max_concurrency=1)
    class Drives:
        async def step(self, gate, k):
            await gate.arrive.remote(k, "step")
            return k

        @ray.method(concurrency_group="io")
        async def drive(self, gate):
            me = ray.get_runtime_context().current_actor
            await gate.arrive.remote("drive", "drive")
            steps = [me.step.remote(gate, k) for k in range(5)]
            await gate.arrived.remote(2)
            return steps

    actor = Drives.remote()
    drives = actor.drive.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    del actor
    ray.get(gate.open.remote("drive"))
    steps = ray.get(drives, timeout=GUARD_S)
    ray.get(gate.open.remote("step"))
    assert ray.get(steps, timeout=GUARD_S) == [*range(5)]


@pytest.mark.parametrize("is_async", [True, False])
def test_an_async_actor_ends_after_its_own_calls_with_pending_arguments(gate, is_async):
    @ray.remote
    class Driven:
        def step(self, value):
            return value

        def drive(self, later):
            return ray.get_runtime_context().current_actor.step.remote(later[0])

        if is_async:

            async def tick(self):
                pass

    actor = Driven.options(max_concurrency=2).remote()
    step = ray.get(actor.drive.remote([gate.wait.remote("later", 7)]), timeout=GUARD_S)
    del actor
    for k in range(100):  # until the actor has processed the release of its last handle
        ray.get(gate.note.remote(k), timeout=GUARD_S)
    ray.get(gate.open.remote("later"))
    assert ray.get(step, timeout=GUARD_S) == 7


class Leaving:
    def step(self, value):
        return value

    def leave(self, gate):
        ray.get(gate.arrive.remote("leaving", "leave"))
        ray.actor.exit_actor()

    def drive(self, gate):
        me = ray.get_runtime_context().current_actor
        me.leave.remote(gate)
        me.step.remote(gate.wait.remote("never"))
        return os.getpid()


class AsyncLeaving(Leaving):
    async def leave(self, gate):
        await gate.arrive.remote("leaving", "leave")
        ray.actor.exit_actor()


@pytest.mark.parametrize("cls", [Leaving, AsyncLeaving])
def test_exit_actor_does_not_wait_for_own_calls_that_cannot_begin(gate, cls):
    actor = ray.remote(cls).options(max_concurrency=2).remote()
    pid = ray.get(actor.drive.remote(gate), timeout=GUARD_S)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    del actor
    for k in range(100):  # until the actor has processed the release of its last handle
        ray.get(gate.note.remote(k), timeout=GUARD_S)
    ray.get(gate.open.remote("leave"))
    wait_until(lambda: not alive(pid), GUARD_S, "the end of the actor's process")


def test_an_actor_whose_loop_ends_in_its_constructor_fails():
    @ray.remote
    class Interrupts:
        async def __init__(self):
            self.task = asyncio.get_running_loop().create_task(self.interrupt())
            await asyncio.Event().wait()

        async def interrupt(self):
            raise KeyboardInterrupt

    with pytest.raises(ActorDiedError):
        ray.get(Interrupts.remote().__ray_ready__.remote(), timeout=GUARD_S)


def test_groups_of_an_async_actor():
    @ray.remote(concurrency_groups={"io": 1})
    class AsyncGroups:
        def __init__(self):
            self.begun, self.event = [], asyncio.Event()

        @ray.method(concurrency_group="io")
        async def io(self, who):
            self.loop = asyncio.get_running_loop()
            self.begun.append(who)
            await self.event.wait()

        async def seen(self):
            return self.begun

        async def release(self):
            self.loop.call_soon_threadsafe(self.event.set)  # each group has a loop of its own

        async def started(self, count):
            while len(self.begun) < count:
                await asyncio.sleep(0.001)

    actor = AsyncGroups.remote()
    refs = [actor.io.remote(i) for i in range(3)]
    ray.get(actor.started.remote(1), timeout=GUARD_S)
    assert ray.get(actor.seen.remote(), timeout=GUARD_S) == [0]
    ray.get(actor.release.remote(), timeout=GUARD_S)
    ray.get(refs, timeout=GUARD_S)
    assert ray.get(actor.seen.remote()) == [0, 1, 2]
    ended(actor)
