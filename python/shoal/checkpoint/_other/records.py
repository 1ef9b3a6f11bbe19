"""Reads the values in a pickle stream without pickle: classes and calls become inert records, and nothing is imported or run."""

from __future__ import annotations

import pickletools
from typing import Any

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "FLOAT", "BINFLOAT", "UNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "STRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}


class Record:
    """A class by its name, or the result of a call: ``name``, arguments, ``state`` (set by the pickle) and entries."""

    __slots__ = ("args", "name", "pairs", "state")

    def __init__(self, name: str, args: Any = None):
        self.name, self.args, self.state, self.pairs = name, args, None, {}

    def get(self, field: str) -> Any:
        """A field of the state. Raises KeyError if there is none."""
        if not isinstance(self.state, dict):
            raise KeyError(field)
        return self.state[field]


def parse(data: bytes) -> Any:
    """Returns the value in a pickle stream. Raises ValueError for streams that are broken or use what plain data need not."""
    try:
        return _Machine().run(data)
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"a broken stream: {error!r}") from None


class _Machine:
    def __init__(self):
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for op, arg, _ in pickletools.genops(data):
            if op.name == "STOP":
                return self.stack.pop()
            self.step(op.name, arg)
        raise ValueError("a stream without end")

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        found, self.stack[at:] = self.stack[at + 1 :], []
        return found

    def step(self, name: str, arg: Any) -> None:
        if name in _VALUES:
            self.stack.append(arg)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name == "MARK":
            self.stack.append(_MARK)
        elif not (self.keep(name, arg) or self.group(name) or self.fill(name) or self.make(name, arg)):
            raise ValueError(f"{name} is no operation of plain data")

    def keep(self, name: str, arg: Any) -> bool:
        """Runs an operation of the pickle's memo, if it is one. Returns False otherwise."""
        if name in ("PROTO", "FRAME"):
            pass
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(arg)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[int(arg)])
        else:
            return False
        return True

    def group(self, name: str) -> bool:
        """Runs an operation that makes a tuple, list, dict or set, if it is one. Returns False otherwise."""
        empty = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
        if name in empty:
            self.stack.append(empty[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            self.stack[-count:] = [tuple(self.stack[-count:])]
        elif name in ("TUPLE", "LIST"):
            found = self.since_mark()
            self.stack.append(tuple(found) if name == "TUPLE" else found)
        elif name == "DICT":
            found = self.since_mark()
            self.stack.append(dict(zip(found[::2], found[1::2], strict=True)))
        else:
            return False
        return True

    def fill(self, name: str) -> bool:
        if name in ("APPEND", "SETITEM"):
            count = 1 if name == "APPEND" else 2
            found, self.stack[-count:] = self.stack[-count:], []
        elif name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            found = self.since_mark()
        else:
            return False
        target = self.stack[-1]
        if name.startswith("APPEND"):
            if not isinstance(target, list):
                raise ValueError("items of no list")
            target += found
        elif name == "ADDITEMS":
            target.update(found)
        else:
            pairs = target.pairs if isinstance(target, Record) else target
            pairs.update(zip(found[::2], found[1::2], strict=True))
        return True

    def make(self, name: str, arg: Any) -> bool:
        """Runs an operation on a class, a call or its state, if it is one. Returns False otherwise."""
        if name == "GLOBAL":
            self.stack.append(Record(arg.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            module, attribute = self.stack[-2:]
            self.stack[-2:] = [Record(f"{module}.{attribute}")]
        elif name in ("NEWOBJ", "REDUCE"):
            record, args = self.stack[-2:]
            self.stack[-2:] = [Record(record.name, args)]
        elif name == "BUILD":
            state = self.stack.pop()
            self.stack[-1].state = state
        elif name == "BINPERSID":
            self.stack[-1] = Record("persistent", self.stack[-1])
        else:
            return False
        return True
