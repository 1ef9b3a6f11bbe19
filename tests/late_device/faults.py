"""Plants faults: functions of the package without one of their lines."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any


@contextmanager
def without(owner: Any, name: str, line: str, instead: str = "pass") -> Iterator[None]:
    """Replaces the one ``line`` of the method ``owner.name``. Lines of ``instead`` have the line's indent."""
    function = owner.__dict__[name]
    source = textwrap.dedent(inspect.getsource(function))
    lines = source.split("\n")
    found = [i for i, text in enumerate(lines) if text.split("  #")[0].strip() == line]
    assert len(found) == 1, f"{owner.__name__}.{name} has {len(found)} lines {line!r}"
    lines[found[0]] = textwrap.indent(instead, re.match(" *", lines[found[0]])[0])
    made: dict[str, FunctionType] = {}
    code = compile("from __future__ import annotations\n" + "\n".join(lines), f"{inspect.getsourcefile(function)} without {line!r}", "exec")
    exec(code, function.__globals__ | {"__name__": function.__module__}, made)
    planted = FunctionType(made[name].__code__, function.__globals__, name, function.__defaults__)
    setattr(owner, name, planted)
    try:
        yield
    finally:
        setattr(owner, name, function)
