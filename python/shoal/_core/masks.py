"""Hides secrets in texts that a run's folder keeps: values of options such as ``--hub-token``, and user and password of addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MASK = "***"
# Each repetition has a bound, so that a long text takes linear time.
_SECRET = r"[\w.-]{0,64}(?:token|key|secret|password|passwd|credential)[\w.-]{0,64}"
_OPTION = re.compile(rf"-{{0,2}}{_SECRET}", re.IGNORECASE)
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'&,;)\]}]+)"""
_ASSIGNED = re.compile(rf"((?:(?<![\w-])--?|[?&]){_SECRET}=){_VALUE}", re.IGNORECASE)  # also in an address
_GIVEN = re.compile(rf"((?<![\w-])--?{_SECRET}[ \t]+)(?!-){_VALUE}", re.IGNORECASE)
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,32}://)[^/\s?#]{0,1000}@")


def masked(text: str) -> str:
    """Returns a text of any kind, in UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files may hold lone surrogates
    for pattern in (_ASSIGNED, _GIVEN):
        text = pattern.sub(rf"\g<1>{_MASK}", text)
    return _USER.sub(rf"\g<1>{_MASK}@", text)


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Returns the arguments of a program."""
    out, hides = [], False
    for argument in map(str, arguments):
        name, equals, _ = argument.partition("=")
        secret = _OPTION.fullmatch(name) is not None
        if hides and not argument.startswith("--"):
            out.append(_MASK)
        else:
            out.append(f"{masked(name)}={_MASK}" if secret and equals else masked(argument))
        hides = secret and not equals and argument.startswith("-")
    return out
