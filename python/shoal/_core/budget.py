"""Parses byte sizes."""

from __future__ import annotations

import re

from shoal.exceptions import InvalidArgument

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def bytes_of(text: int | str) -> int:
    """Returns the bytes of a positive int, or of text such as "4GiB", "512 MiB", "2.5GB". Raises InvalidArgument for anything else."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text) if isinstance(text, str) else None
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise InvalidArgument(f"memory_budget={text!r} is no number of bytes", hint='write 4 * 2**30 or "4GiB"')
    return int(float(found[1]) * _UNITS[found[2].upper()])
