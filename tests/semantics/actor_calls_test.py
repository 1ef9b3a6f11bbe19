"""A2 of COVERAGE.md, options and errors of calls: several results, arguments, retries, bounds."""

import os

import numpy as np
import pytest
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError, PendingCallsLimitExceeded

# ---- several results


def test_a_decorated_method_returns_a_list_of_references(recorder):
    first, second = recorder.pair.remote("a", "b")
    assert ray.get([second, first]) == ["b", "a"]


def test_options_of_one_call_win_over_the_decorators(recorder):
    assert ray.get(recorder.pair.options(num_returns=1).remote()) == (1, 2)
    assert len(recorder.pair.options(name="x").remote()) == 2


@pytest.mark.parametrize("value", [[1, 2, 3], (1, 2, 3), "abc", range(3), {1: "a", 2: "b", 3: "c"}], ids=repr)
def test_num_returns_unpacks_any_iterable(recorder, value):
    assert ray.get(recorder.echo.options(num_returns=3).remote(value)) == list(value)


@pytest.mark.parametrize("value", [[1], [1, 2, 3], []], ids=repr)
def test_a_wrong_number_of_results_is_an_error_of_each(recorder, value):
    refs = recorder.echo.options(num_returns=2).remote(value)
    for ref in refs:
        with pytest.raises(ValueError, match=rf"returned {len(value)} objects, but num_returns=2"):
            ray.get(ref)


def test_a_non_iterable_result_is_an_error_of_each(recorder):
    for ref in recorder.echo.options(num_returns=2).remote(5):
        with pytest.raises(TypeError, match="int"):
            ray.get(ref)


def test_a_failure_is_that_of_each_result(recorder):
    for ref in recorder.fail.options(num_returns=2).remote(KeyError("mine")):
        with pytest.raises(KeyError, match="mine"):
            ray.get(ref)


def test_num_returns_may_be_zero(recorder):
    assert recorder.add.options(num_returns=0).remote("x") is None
    assert ray.get(recorder.all.remote()) == ["x"]


def test_large_results_are_unpacked_and_passed_on(recorder):
    first, second, small = recorder.echo.options(num_returns=3).remote([np.arange(100_000), np.ones(200_000), 3])
    assert ray.get(first)[-1] == 99_999
    assert ray.get(second).sum() == 200_000
    assert ray.get(small) == 3
    assert ray.get(recorder.echo.remote(second)).sum() == 200_000
    assert ray.get(recorder.get.remote([first, small]))[0][-1] == 99_999
    with pytest.raises(ValueError, match="read-only"):
        ray.get(first)[0] = 1


def test_all_results_of_a_dead_actor_raise(gate):
    refs = gate.wait.options(num_returns=2).remote()
    ray.kill(gate)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            ray.get(ref, timeout=GUARD_S)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_returns": -1}, ValueError),
        ({"num_returns": 1.5}, TypeError),
        ({"num_returns": "many"}, ValueError),
        ({"concurrency_group": 5}, TypeError),
        ({"name": 5}, TypeError),
        ({"colour": "red"}, ValueError),
    ],
    ids=repr,
)
def test_invalid_options_of_a_call_are_refused(recorder, options, error):
    with pytest.raises(error):
        recorder.echo.options(**options)


def test_the_method_decorator_takes_known_keywords_only():
    assert ray.method(len) is len  # without parentheses, the decorator returns the function unchanged
    assert ray.method()(len.__call__ and (lambda self: 1))  # as in Ray
    with pytest.raises(AssertionError, match=r"The @ray\.method decorator must be applied using no arguments or at least one of"):
        ray.method(2)
    with pytest.raises(AssertionError, match=r"Unexpected keyword argument to @ray\.method: 'colour'"):
        ray.method(colour="red")
    with pytest.raises(ValueError, match="max_task_retries"):
        ray.method(max_task_retries=-2)
    assert ray.method(max_task_retries=3)(len.__call__ and (lambda self: 1))


# ---- arguments that do not fit


@ray.remote
class Taker:
    def __init__(self, first=1, *, second=2):
        self.first = first

    def two(self, a, b=5):
        return a, b

    def named(self, a, /, *, b):
        return a, b

    def any(self, *args, **kwargs):
        return args, kwargs

    @staticmethod
    def static(a):
        return a

    @classmethod
    def of_class(cls, a):
        return cls.__name__, a

    @ray.method(num_returns=2)
    def pair(self, a):
        return a, a


@pytest.fixture(scope="module")
def taker():
    actor = Taker.options(name="taker").remote()
    yield actor
    ray.kill(actor)


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "why"),
    [
        ("two", (), {}, r"Taker.two\(\) is missing 'a'"),
        ("two", (1, 2, 3), {}, "takes 1 to 2 positional arguments but 3 were given"),
        ("two", (1,), {"a": 2}, "multiple values for argument 'a'"),
        ("two", (1,), {"c": 2}, "unexpected keyword argument 'c'"),
        ("two", (), {"b": 2}, "is missing 'a'"),
        ("named", (1,), {}, "is missing 'b'"),
        ("named", (), {"a": 1, "b": 2}, "unexpected keyword argument 'a'"),
        ("static", (), {}, "is missing 'a'"),
        ("of_class", (1, 2), {}, "takes 1 positional argument but 2 were given"),
        ("pair", (), {}, "is missing 'a'"),
    ],
)
def test_wrong_arguments_of_a_method_are_a_type_error_at_the_call(taker, method, args, kwargs, why):
    for handle in (taker, ray.get_actor("taker"), ray.get(ray.put(taker))):
        with pytest.raises(TypeError, match=why):
            getattr(handle, method).remote(*args, **kwargs)
    with pytest.raises(TypeError, match=why):
        getattr(taker, method).options(name="other").remote(*args, **kwargs)


def test_arguments_that_fit_a_method_are_accepted(taker):
    calls = [taker.two.remote(1), taker.two.remote(b=1, a=2), taker.named.remote(1, b=2), taker.any.remote(1, x=2), taker.any.remote()]
    assert ray.get(calls) == [(1, 5), (2, 1), (1, 2), ((1,), {"x": 2}), ((), {})]
    assert ray.get([taker.static.remote(1), taker.of_class.remote(1)]) == [1, ("Taker", 1)]
    assert ray.get(taker.two.remote(ray.put(1), b=ray.put(2))) == (1, 2)


@pytest.mark.parametrize(("args", "kwargs"), [((1, 2), {}), ((), {"third": 3}), ((1,), {"first": 1})])
def test_arguments_that_do_not_fit_a_constructor_create_no_actor(args, kwargs):
    with pytest.raises(TypeError, match="Taker"):
        Taker.options(name="never").remote(*args, **kwargs)
    with pytest.raises(ValueError, match="never"):
        ray.get_actor("never")


def test_no_class_derives_from_an_actor():
    with pytest.raises(
        ray.actor.ActorClassInheritanceException, match=r"'Taker'\. Inheriting from actor classes is not currently supported\."
    ):

        class More(Taker):
            pass


# ---- retries


@ray.remote
class Fails:
    def __init__(self):
        self.calls = 0

    @ray.method(max_task_retries=2, retry_exceptions=[KeyError])
    def until(self, good, error):
        self.calls += 1
        if self.calls < good:
            raise error
        return self.calls

    def count(self):
        return self.calls

    @ray.method(max_task_retries=-1, retry_exceptions=True)
    def leave(self):
        os._exit(7)


@pytest.fixture
def fails():
    actor = Fails.remote()
    yield actor
    ray.kill(actor)


def test_a_method_is_retried_after_its_named_exceptions(fails):
    assert ray.get(fails.until.remote(3, KeyError("mine")), timeout=GUARD_S) == 3


def test_retries_of_a_method_are_bounded(fails):
    with pytest.raises(KeyError, match="mine"):
        ray.get(fails.until.remote(100, KeyError("mine")), timeout=GUARD_S)
    assert ray.get(fails.count.remote()) == 3


def test_a_method_is_not_retried_after_other_exceptions_or_without_retries(fails):
    with pytest.raises(ValueError, match="mine"):
        ray.get(fails.until.remote(100, ValueError("mine")), timeout=GUARD_S)
    with pytest.raises(KeyError, match="mine"):
        ray.get(fails.until.options(max_task_retries=0).remote(100, KeyError("mine")), timeout=GUARD_S)
    assert ray.get(fails.count.remote()) == 2
    again = fails.until.options(max_task_retries=-1, retry_exceptions=True)
    assert ray.get(again.remote(10, ValueError("mine")), timeout=GUARD_S) == 10


@ray.remote(max_task_retries=2)
class FailsByDefault:
    def __init__(self):
        self.calls = 0

    @ray.method(retry_exceptions=True)
    def until(self, good):
        self.calls += 1
        if self.calls < good:
            raise KeyError("mine")
        return self.calls

    def plain(self):
        self.calls += 1
        raise KeyError("mine")

    def again(self):
        return ray.get_runtime_context().current_actor

    def leave(self):
        os._exit(7)


def test_an_actors_max_task_retries_covers_methods_with_retry_exceptions_only():
    actor = FailsByDefault.remote()
    assert ray.get(actor.until.remote(3), timeout=GUARD_S) == 3
    for call in (actor.plain.remote(), actor.until.options(max_task_retries=0).remote(100)):
        with pytest.raises(KeyError, match="mine"):
            ray.get(call, timeout=GUARD_S)
    assert ray.get(actor.until.remote(6), timeout=GUARD_S) == 6
    copy = ray.get(ray.put(actor))  # a handle that was pickled keeps the retry options
    assert ray.get(copy.until.remote(8), timeout=GUARD_S) == 8
    assert ray.get(ray.get(actor.again.remote()).until.remote(10), timeout=GUARD_S) == 10
    with pytest.raises(ActorDiedError):  # leave() ends the process, and this actor has no restarts
        ray.get(actor.leave.remote(), timeout=GUARD_S)


def test_a_method_is_not_retried_after_the_actors_death(fails):
    with pytest.raises(ActorDiedError, match="exited with code 7"):
        ray.get(fails.leave.remote(), timeout=GUARD_S)


# ---- bounds


def test_max_pending_calls_refuses_excess_calls_and_recovers(gate):
    recorder = Recorder.options(max_pending_calls=3).remote()
    waiting = [recorder.wait_at.remote(gate) for _ in range(3)]
    with pytest.raises(PendingCallsLimitExceeded):
        recorder.echo.remote(1)
    gate.open.remote()
    ray.get(waiting, timeout=GUARD_S)
    assert ray.get(recorder.echo.remote(2)) == 2
    ray.kill(recorder)


def test_any_number_of_calls_waits_without_a_bound(recorder, gate):
    waiting = [recorder.wait_at.remote(gate) for _ in range(1000)]
    gate.open.remote()
    assert len(ray.get(waiting, timeout=GUARD_S)) == 1000


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_concurrency": 0}, ValueError),
        ({"max_concurrency": "2"}, TypeError),
        ({"max_pending_calls": -2}, ValueError),
        ({"concurrency_groups": ["io"]}, TypeError),
        ({"concurrency_groups": {"io": 0}}, ValueError),
        ({"num_returns": 2}, ValueError),
        ({"max_calls": 2}, ValueError),
        ({"max_retries": 2}, ValueError),
        ({"colour": "red"}, ValueError),
    ],
    ids=repr,
)
def test_invalid_options_of_an_actor_are_refused(options, error):
    with pytest.raises(error):
        Recorder.options(**options)


# ---- unserializable values


def test_an_unserializable_argument_is_an_error_that_names_it():
    import threading

    @ray.remote
    class Takes:
        def __init__(self, first, lock=None):
            pass

        def takes(self, first, second):
            pass

    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"argument lock=, of type lock, cannot be sent: .*pickle.*inspect_serializability"):
        Takes.remote(1, lock=lock)
    with pytest.raises(TypeError, match="argument 0, of type lock, cannot be sent"):
        Takes.remote(lock)
    actor = Takes.remote(1)
    with pytest.raises(TypeError, match="argument 1, of type dict, cannot be sent"):
        actor.takes.remote("fine", {"cfg": {"lock": lock}})

    @ray.remote
    def refers():
        return lock

    with pytest.raises(TypeError, match=r"remote function .*refers cannot be sent: .*inspect_serializability"):
        refers.remote()
    ray.kill(actor)
