import builtins
import pickle

import pytest

from shoal import exceptions
from shoal._core.serialize import dump_exception, loads
from shoal._printable import printable, printable_lines
from shoal.exceptions import ActorDiedError, GetTimeoutError, InvalidArgument, NotFound, TaskError, Unavailable, from_error


def raised(error, where="A.m"):
    """Returns the error that ``get`` raises on the other side."""
    try:
        raise error
    except BaseException as e:
        head, buffers = dump_exception(e, where)
    return loads(head, buffers).as_instance_of_cause()


class NeedsTwoError(Exception):
    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")
        self.code, self.text = code, text


class KeywordOnlyError(Exception):
    def __init__(self, *, code):
        super().__init__(code)
        self.code = code


class SlottedError(Exception):
    __slots__ = ("code",)


class OwnMessageError(Exception):
    @property
    def message(self):
        return "mine"

    @property
    def hint(self):
        return "my hint"


class CustomNewError(Exception):
    def __new__(cls, first, second):
        self = super().__new__(cls, first)
        self.second = second
        return self

    def __init__(self, first, second):
        super().__init__(first)


class FixedArgsError(Exception):
    """Its args are a property that cannot be set."""

    def __init__(self, code, text):
        super().__init__(code, text)
        self.code, self.text = code, text

    @property
    def args(self):
        return (f"{self.code}: {self.text}",)


class FrozenError(Exception):
    """As a frozen dataclass: no attribute can be set."""

    def __setattr__(self, name, value):
        raise AttributeError(f"cannot assign to {name}")


class FinalError(Exception):
    def __init_subclass__(cls):
        raise TypeError("nobody derives from this")


def slotted():
    error = SlottedError("x")
    error.code = 7
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("k"),
        OSError(2, "gone", "/tmp/x"),
        FileNotFoundError(2, "gone"),
        ConnectionResetError(104, "reset"),
        TimeoutError("late"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        StopIteration(5),
        SyntaxError("bad", ("f.py", 1, 2, "x =")),
        ImportError("no", name="m", path="p"),
        AttributeError("no", name="n", obj=3),
        NeedsTwoError(7, "seven"),
        KeywordOnlyError(code=3),
        slotted(),
        FixedArgsError(7, "seven"),
        FrozenError("x"),
        OwnMessageError("x"),
        CustomNewError(1, 2),
        InvalidArgument("wrong", hint="right"),
        GetTimeoutError("late"),
        ActorDiedError("dead", reason="ActorDied"),
        AssertionError(),
        RecursionError("deep"),
        pickle.PicklingError("p"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_user_exceptions_are_caught_by_class_and_as_task_error(error):
    back = raised(error, "Counter.add")
    assert isinstance(back, type(error))
    assert isinstance(back, TaskError)
    assert back.args == error.args
    assert isinstance(back.cause, type(error))
    assert str(back).startswith("Counter.add raised\n")
    assert type(error).__name__ in str(back)


def test_a_task_error_has_the_attributes_of_its_cause():
    gone = raised(OSError(2, "gone", "/tmp/x"))
    assert (gone.errno, gone.strerror, gone.filename) == (2, "gone", "/tmp/x")
    assert raised(StopIteration(5)).value == 5
    assert raised(ImportError("no", name="m")).name == "m"
    decoding = raised(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"))
    assert (decoding.encoding, decoding.object, decoding.reason) == ("utf-8", b"\xff", "bad")
    two = raised(NeedsTwoError(7, "seven"))
    assert (two.code, two.text) == (7, "seven")
    assert raised(slotted()).code == 7
    assert raised(OwnMessageError("x")).message == "mine"
    assert raised(CustomNewError(1, 2)).second == 2
    assert raised(InvalidArgument("wrong", hint="right")).hint == "right"


def test_a_class_that_forbids_the_mix_is_a_plain_task_error():
    back = raised(FinalError("x"))
    assert type(back) is TaskError
    assert isinstance(back.cause, FinalError)
    assert "FinalError: x" in str(back)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda e: type(e).__name__)
def test_a_remote_exit_does_not_end_the_caller(error):
    back = raised(error)
    assert isinstance(back, TaskError)
    assert isinstance(back, Exception)
    assert not isinstance(back, type(error))
    assert isinstance(back.cause, type(error))


def test_a_chain_of_causes_is_printed_from_the_first():
    def fails():
        try:
            {}["first"]
        except KeyError as e:
            raise ValueError("second") from e

    try:
        fails()
    except ValueError as e:
        back = loads(*dump_exception(e, "A.m")).as_instance_of_cause()
    text = str(back)
    assert text.index("KeyError: 'first'") < text.index("direct cause") < text.index("ValueError: second")


def test_a_failure_through_two_actors_keeps_its_class_and_places():
    inner = raised(NeedsTwoError(7, "seven"), "Inner.fail")
    outer = raised(inner, "Outer.call")
    assert isinstance(outer, NeedsTwoError)
    assert isinstance(outer, TaskError)
    assert outer.code == 7
    assert "Outer.call" in str(outer)
    assert "Inner.fail" in str(outer)
    text = str(raised(outer, "Third.call"))
    assert text.index("Third.call raised") < text.index("Outer.call raised") < text.index("Inner.fail raised")
    assert text.count("Traceback (most recent call last)") == text.count("raise error") == 3
    assert text.endswith(" (7)")


def test_a_failure_through_many_actors_shows_the_first_and_the_last():
    error = raised(NeedsTwoError(7, "seven"), "Inner.fail")
    for k in range(1000):
        error = raised(error, f"Outer{k}.call")
    text = str(error)
    assert len(text) < 70_000
    assert text.startswith("Outer999.call raised\n")
    assert "Outer998.call raised" in text
    assert "Outer1.call raised" in text
    assert "Inner.fail raised" in text
    assert text.endswith(" (7)")


def test_raising_from_a_task_error_keeps_both():
    try:
        try:
            raise raised(KeyError("first"), "Inner.fail")
        except TaskError as e:
            raise RuntimeError("second") from e
    except RuntimeError as e:
        back = loads(*dump_exception(e, "Outer.call")).as_instance_of_cause()
    assert isinstance(back, RuntimeError)
    assert "Inner.fail raised" in str(back)
    assert "KeyError: 'first'" in str(back)


def test_errors_raised_by_get_can_be_pickled_again():
    back = pickle.loads(pickle.dumps(raised(NeedsTwoError(7, "seven"))))
    assert isinstance(back, NeedsTwoError)
    assert isinstance(back, TaskError)
    assert back.code == 7


@pytest.mark.skipif(not hasattr(builtins, "ExceptionGroup"), reason="Python 3.11")
def test_exception_groups_stay_groups():
    back = raised(ExceptionGroup("several", [ValueError(1), KeyError(2)]))  # noqa: F821
    assert isinstance(back, ExceptionGroup)  # noqa: F821
    assert [type(e) for e in back.exceptions] == [ValueError, KeyError]


def test_each_code_has_a_class_that_ordinary_python_catches():
    kinds = [RuntimeError, ConnectionError, TimeoutError, RuntimeError, ValueError, LookupError, RuntimeError, NotImplementedError]
    for code, kind in enumerate(kinds):
        error = from_error(code, "", "m", "", [])
        if kind is not RuntimeError:
            assert isinstance(error, kind)
    assert type(from_error(1, "ActorDied", "m", "", [])) is ActorDiedError
    assert issubclass(GetTimeoutError, TimeoutError)


def test_errors_survive_pickling_with_their_parts():
    error = Unavailable("m", reason="HeadGone", hint="h", context=("a", "b"))
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is Unavailable
    assert (back.message, back.reason, back.hint, back.context) == ("m", "HeadGone", "h", ("a", "b"))
    assert str(back) == "m\n  in: a, b\n  hint: h"


def test_every_public_class_is_a_shoal_error():
    for name in exceptions.__all__:
        assert issubclass(getattr(exceptions, name), exceptions.ShoalError)
    assert issubclass(NotFound, LookupError)


def test_an_errors_text_has_no_control_characters():
    error = NotFound("no actor \x1b]52;c;eA==\a\r\x00\u202e é\n\tsecond line", hint="h\x9b", context=("actor \x1b[2J(1)",))
    assert str(error) == ("no actor \\x1b]52;c;eA==\\x07\\r\\x00\\u202e é\n\tsecond line\n  in: actor \\x1b[2J(1)\n  hint: h\\u009b")
    assert error.message.startswith("no actor \x1b")  # programs get the text itself
    remote = raised(ValueError("boom \x1b[2J"))
    assert "ValueError: boom \\x1b[2J" in str(remote)
    assert "\x1b" not in str(remote)
    assert remote.args == ("boom \x1b[2J",)


def test_text_for_a_terminal_may_hold_any_str():
    assert printable("日本語 é") == "日本語 é"
    assert printable("a\nb\tc\x85") == "a\\nb\\tc\\u0085"
    assert printable_lines("a\nb\tc\x85") == "a\nb\tc\\u0085"
    assert printable("name \udcff") == "name \\udcff"  # a file's name that is no UTF-8
