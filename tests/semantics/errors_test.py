"""A3 of COVERAGE.md, errors: Ray's names, the places where they are raised, and their way through processes."""

import asyncio
import os
import pickle
import signal

import pytest
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal import exceptions
from shoal.exceptions import from_error

UNAVAILABLE = 1


@pytest.mark.parametrize(
    "name",
    [
        "RayError", "RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "ObjectLostError",
        "OwnerDiedError", "TaskCancelledError", "GetTimeoutError", "TaskUnschedulableError", "ActorUnschedulableError", "OutOfMemoryError",
        "RuntimeEnvSetupError", "PendingCallsLimitExceeded", "AsyncioActorExit", "ObjectStoreFullError", "RaySystemError",
    ],
)  # fmt: skip
def test_rays_names_are_exceptions_of_one_family(name):
    assert issubclass(getattr(exceptions, name), exceptions.RayError)
    assert name in exceptions.__all__


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("ActorDiedError", "RayActorError"),
        ("ActorUnavailableError", "RayActorError"),
        ("ObjectFreedError", "ObjectLostError"),
        ("OwnerDiedError", "ObjectLostError"),
        ("RayActorError", "Unavailable"),
        ("WorkerCrashedError", "Unavailable"),
        ("TaskCancelledError", "Cancelled"),
    ],
)
def test_errors_are_caught_by_rays_and_pythons_classes(child, parent):
    assert issubclass(getattr(exceptions, child), getattr(exceptions, parent))


@pytest.mark.parametrize(
    ("reason", "cls"),
    [
        ("ActorDied", "ActorDiedError"),
        ("ActorUnavailable", "ActorUnavailableError"),
        ("OwnerDied", "OwnerDiedError"),
        ("WorkerCrashed", "WorkerCrashedError"),
        ("OutOfMemory", "OutOfMemoryError"),
        ("HeadGone", "RpcError"),
    ],
)
def test_engine_errors_become_rays_errors(reason, cls):
    error = from_error(UNAVAILABLE, reason, "gone", "wait", ["actor A(5f)"])
    assert type(error) is getattr(exceptions, cls)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.reason) == (type(error), str(error), reason)


def test_a_killed_actor_is_a_ray_actor_error_with_its_id(recorder):
    actor = Recorder.remote()
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(exceptions.RayActorError, match="SIGKILL") as info:
        ray.get(actor.echo.remote(1), timeout=GUARD_S)
    assert isinstance(info.value, exceptions.ActorDiedError)
    assert info.value.actor_id == actor._actor_id


def test_a_value_of_a_dead_owner_is_an_owner_died_error(recorder, gate):
    maker = Recorder.remote()
    (ref,) = ray.get(maker.__ray_call__.remote(lambda self, gate: [gate.wait.remote()], gate))
    waiting = recorder.get.remote([ref])
    os.kill(ray.get(maker.pid.remote()), signal.SIGKILL)
    with pytest.raises(exceptions.OwnerDiedError):
        ray.get(ref, timeout=GUARD_S)
    with pytest.raises(exceptions.ObjectLostError):
        ray.get(waiting, timeout=GUARD_S)


def test_an_actors_death_two_calls_away_keeps_its_class(recorder):
    actor = Recorder.remote()
    ray.kill(actor)
    with pytest.raises(exceptions.RayActorError) as info:
        ray.get(recorder.__ray_call__.remote(lambda self, a: ray.get(a.echo.remote(1)), actor), timeout=GUARD_S)
    assert isinstance(info.value, exceptions.RayTaskError)
    assert isinstance(info.value.cause, exceptions.ActorDiedError)


def test_the_cause_has_both_of_rays_names(recorder):
    with pytest.raises(exceptions.RayTaskError) as info:
        ray.get(recorder.fail.remote(KeyError("mine")))
    assert isinstance(info.value.as_instanceof_cause(), KeyError)


def test_a_failure_has_a_traceback_of_each_process(recorder):
    """The text has the stack frames of each process, outermost first as in Ray, without those of the runtime."""
    first, second = Recorder.remote(), Recorder.remote()

    def in_the_middle(self, first):
        return ray.get(first.fail.remote(KeyError("deep")))

    def outermost(self, second, first):
        try:
            return ray.get(second.__ray_call__.remote(in_the_middle, first))
        except KeyError as error:
            raise RuntimeError("told anew") from error

    with pytest.raises(RuntimeError) as info:
        ray.get(recorder.__ray_call__.remote(outermost, second, first), timeout=GUARD_S)
    text = str(info.value)
    at = [text.index(f"in {name}\n") for name in ("in_the_middle", "fail")]
    assert at == sorted(at)
    assert text.count("raise error") == 1  # the line of fail() in semantics_actors.py
    assert text.index("KeyError: 'deep'") < text.index("direct cause") < text.index("RuntimeError: told anew")
    assert "in get\n" not in text


class OfItsClassError(Exception):
    code = 404


class OfItsMethodError(Exception):
    def code(self):
        return self.args[0]


def test_the_attribute_code_is_the_causes(recorder):
    with pytest.raises(OfItsClassError) as info:
        ray.get(recorder.fail.remote(OfItsClassError()))
    assert info.value.code == 404
    with pytest.raises(OfItsMethodError) as info:
        ray.get(recorder.fail.remote(OfItsMethodError(5)))
    assert info.value.code() == 5
    with pytest.raises(KeyError) as info:
        ray.get(recorder.fail.remote(KeyError()))
    assert info.value.code == "Internal"


class AllFailedError(Exception):
    def __init__(self, message, exceptions=None):
        super().__init__(message)
        self.exceptions = exceptions


@pytest.mark.parametrize("exceptions", [None, 5, [ValueError()]])
def test_the_attribute_exceptions_is_the_causes(recorder, exceptions):
    with pytest.raises(AllFailedError) as info:
        ray.get(recorder.fail.remote(AllFailedError("no", exceptions)))
    assert repr(info.value.exceptions) == repr(exceptions)
    assert ray.get(recorder.echo.remote(1)) == 1


@pytest.mark.parametrize("name", ["reason", "message", "hint", "context"])
def test_other_attributes_are_the_causes(recorder, name):
    cls = type("Own", (Exception,), {name: "of the class"})

    def fails(actor):
        raise cls("x")

    with pytest.raises(cls) as caught:
        ray.get(recorder.__ray_call__.remote(fails))
    assert getattr(caught.value, name) == "of the class"
    assert caught.value.code == "Internal"


@pytest.mark.parametrize(
    "error", [TimeoutError("late"), ConnectionError("gone"), OSError("bad"), OSError(2, "not there", "/path"), OSError(5, "io")], ids=repr
)
def test_the_cause_keeps_its_text(recorder, error):
    def fails(actor):
        raise error

    with pytest.raises(type(error)) as caught:
        ray.get(recorder.__ray_call__.remote(fails))
    assert str(caught.value.cause) == str(error)
    assert (caught.value.errno, caught.value.filename) == (error.errno, error.filename)


def test_built_in_exceptions_are_caught_by_their_class(recorder):
    import builtins

    def fails(actor, cls):
        raise cls("x")

    # Classes whose constructors take other arguments, or that arrive as a RuntimeError.
    special = {"ExceptionGroup", "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "StopIteration"}
    own = [c for c in vars(builtins).values() if isinstance(c, type) and issubclass(c, Exception) and c.__name__ not in special]
    assert MemoryError in own
    for cls in own:
        with pytest.raises(cls):
            ray.get(recorder.__ray_call__.remote(fails, cls))


class WithCauseError(Exception):
    def __init__(self, message, cause=None):
        super().__init__(message)
        self.cause = cause


@pytest.mark.parametrize("cause", [None, ValueError("theirs"), "text"], ids=["none", "exception", "text"])
def test_an_attribute_named_cause_does_not_change_the_error(recorder, cause):
    failing = Recorder.remote()

    def passes_on(self, failing):
        return ray.get(failing.fail.remote(WithCauseError("mine", cause)))

    with pytest.raises(WithCauseError, match="mine") as info:
        ray.get(recorder.__ray_call__.remote(passes_on, failing), timeout=GUARD_S)
    assert not isinstance(info.value, ValueError)
    assert info.value.args == ("mine",)
    assert type(info.value.cause) is WithCauseError
    assert repr(info.value.cause.cause) == repr(cause)


def test_a_failure_with_an_attribute_named_cause_is_retried(recorder):
    tried = Recorder.remote()

    @ray.remote(max_retries=1, retry_exceptions=[WithCauseError], num_cpus=0)
    def passes_on(recorder, tried):
        if ray.get(tried.add.remote("tried")) == 1:
            ray.get(recorder.fail.remote(WithCauseError("once")))
        return "done"

    assert ray.get(passes_on.remote(recorder, tried), timeout=GUARD_S) == "done"


def test_a_user_defined_exception_group_keeps_its_attributes(recorder):
    class MyError(Exception):
        def __init__(self, code):
            super().__init__(code)
            self.code = code

    with pytest.raises(MyError) as info:
        ray.get(recorder.fail.remote(MyError(5)))
    assert info.value.code == 5


class OwnBaseError(BaseException):
    """A BaseException that is no Exception, as trio.Cancelled and the error of pytest.fail()."""


def test_a_base_exception_of_a_function_is_not_retried(recorder):
    @ray.remote
    def fail():
        ray.get(recorder.add.remote("run"))
        raise OwnBaseError("mine")

    with pytest.raises(OwnBaseError, match="mine") as info:
        ray.get(fail.remote(), timeout=GUARD_S)
    assert isinstance(info.value, exceptions.RayTaskError)
    assert ray.get(recorder.all.remote()) == ["run"]


def test_a_cancelled_loop_of_a_function_raises_cancelled_error():
    @ray.remote
    def cancels():
        async def main():
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

        asyncio.run(main())

    with pytest.raises(asyncio.CancelledError) as info:
        ray.get(cancels.remote(), timeout=GUARD_S)
    assert isinstance(info.value, exceptions.RayTaskError)


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}], ids=["ordinary", "threads"])
def test_an_actor_survives_a_base_exception(options):
    recorder = Recorder.options(**options).remote("state")
    for error in (OwnBaseError("mine"), asyncio.CancelledError()):
        with pytest.raises(type(error)) as info:
            ray.get(recorder.fail.remote(error), timeout=GUARD_S)
        assert isinstance(info.value, exceptions.RayTaskError)
    with pytest.raises(exceptions.RayTaskError, match="GeneratorExit"):
        ray.get(recorder.fail.remote(GeneratorExit()), timeout=GUARD_S)
    assert ray.get(recorder.all.remote()) == ["state"]
    ray.kill(recorder)


class Interrupted:
    def raises(self):
        raise KeyboardInterrupt("mine")

    def signalled(self):
        os.kill(os.getpid(), signal.SIGINT)
        while True:  # Python runs a signal's handler between two bytecodes, so also in this loop
            pass

    def pid(self):
        return os.getpid()


class InterruptedAsync(Interrupted):
    async def raises(self):
        raise KeyboardInterrupt("mine")


def is_a_cancellation(ref):
    with pytest.raises(exceptions.TaskCancelledError, match="KeyboardInterrupt") as info:
        ray.get(ref, timeout=GUARD_S)
    assert isinstance(info.value, exceptions.RayTaskError)
    return True


def test_a_keyboard_interrupt_in_a_function_is_its_cancellation(recorder):
    @ray.remote
    def raises():
        ray.get(recorder.add.remote("run"))
        raise KeyboardInterrupt("mine")

    assert is_a_cancellation(raises.remote())
    assert ray.get(recorder.all.remote()) == ["run"]


@pytest.mark.parametrize("kind", ["ordinary", "threads", "async"])
def test_a_keyboard_interrupt_in_a_method_is_its_calls_cancellation(kind):
    options = {"max_concurrency": 2} if kind == "threads" else {}
    actor = ray.remote(InterruptedAsync if kind == "async" else Interrupted).options(**options).remote()
    pid = ray.get(actor.pid.remote())
    assert is_a_cancellation(actor.raises.remote())
    assert kind != "ordinary" or is_a_cancellation(actor.signalled.remote())
    assert ray.get(actor.pid.remote(), timeout=GUARD_S) == pid
    ray.kill(actor)


def test_a_generators_base_exception_is_its_last_item():
    @ray.remote
    def some():
        yield 1
        raise OwnBaseError("mine")

    first, failure = some.remote()
    assert ray.get(first) == 1
    with pytest.raises(OwnBaseError, match="mine"):
        ray.get(failure, timeout=GUARD_S)
