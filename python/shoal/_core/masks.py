"""Hides secrets in texts that a run's folder keeps: values whose names say so, and user and password of addresses.

It is a help and no guarantee: a secret without such a name in front of it looks like any other word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MASK = "***"
# Each repetition has a bound, so that a long text takes linear time.
_WORDS = r"token|key|secret|password|passwd|passphrase|credential|signature"
_SHORT = r"(?:[\w.-]{0,64}[_.-])?(?:pass|pat|auth|authorization)"  # whole words: PATH and AUTHOR are none
_SECRET = rf"(?:[\w.-]{{0,64}}(?:{_WORDS})[\w.-]{{0,64}}|{_SHORT})"
_OPTION = re.compile(rf"-{{0,2}}{_SECRET}", re.IGNORECASE)
_QUOTED = r"""(?:"[^"]*"|'[^']*')"""
_VALUE = rf"""(?:{_QUOTED}|[^\s"'&,;)\]}}]+)"""
_ASSIGNED = re.compile(rf"((?:(?<![\w-])--?|[?&]){_SECRET}=){_VALUE}", re.IGNORECASE)  # also in an address
_GIVEN = re.compile(rf"((?<![\w-])--?{_SECRET}[ \t]+)(?!-){_VALUE}", re.IGNORECASE)
# Variables, and fields of headers, dictionaries and settings. Fewer names count than in options: in "KeyError: 'x'", x is no secret.
_PLAIN = r"(?:token|secret|password|passwd|passphrase|credentials?|signature|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key)"
_NAME = rf"(?:(?:[\w.-]{{0,64}}[_.-])?{_PLAIN}|{_SHORT})"
_VARIABLE = re.compile(
    rf"(?<![\w.-])((?:{_NAME}|[\w.-]{{0,64}}_key|[a-z]{{0,16}}(?:token|secret|apikey|password))=){_VALUE}", re.IGNORECASE
)
_FIELD = re.compile(
    rf"""(?<![\w.-])({_NAME}["']?[ \t]{{0,8}}:[ \t]{{0,8}}(?:b(?=["']))?)((?:(?:bearer|basic|token|digest)[ \t]{{1,8}})?){_VALUE}""",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"((?<!\w)(?:bearer|basic)[ \t]{1,8})(?=[\w.~+/=-]{0,256}[\d_])[\w.~+/=-]+", re.IGNORECASE)
_HEADER = re.compile(rf"""({_NAME}[ \t]{{0,8}}:[ \t]{{0,8}}).*""", re.IGNORECASE | re.DOTALL)
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,32}://)[^/\s?#]{0,1000}@")
# A password with a / in it. Digits behind the colon are a port, and an @ belongs to the path.
_USER_WITH_SLASH = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]{0,32}://)[^/\s?#:@\[\]"']{0,200}:(?!\d{0,5}[/?#])[^\s@"']{1,200}@""")


def masked(text: str) -> str:
    """Returns a text of any kind without its secrets, in UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files may hold lone surrogates
    for pattern in (_ASSIGNED, _GIVEN, _VARIABLE):
        text = pattern.sub(rf"\g<1>{_MASK}", text)
    text = _FIELD.sub(rf"\g<1>\g<2>{_MASK}", text)
    text = _SCHEME.sub(rf"\g<1>{_MASK}", text)
    text = _USER.sub(rf"\g<1>{_MASK}@", text)
    return _USER_WITH_SLASH.sub(rf"\g<1>{_MASK}@", text)


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Returns the arguments of a program without their secrets. An option in the plural hides all of its values: ``--api-keys K1 K2``."""
    out: list[str] = []
    hides = many = False
    for argument in map(str, arguments):
        name, equals, _ = argument.partition("=")
        secret = _OPTION.fullmatch(name) is not None
        if hides and not argument.startswith("--"):
            out.append(_MASK)
            hides = many and not argument.startswith("-")
            continue
        if secret and equals:
            out.append(f"{masked(name)}={_MASK}")
        elif header := _HEADER.fullmatch(argument):
            out.append(f"{header[1]}{_MASK}")
        else:
            out.append(masked(argument))
        hides = secret and not equals and argument.startswith("-")
        many = name.lower().endswith("s")
    return out
