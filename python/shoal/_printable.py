"""Text for a terminal, from texts and names that other processes chose (``runtime/core/printable.h``).

Each character that a terminal would obey, or that shows text in another order, is escaped. Letters of every language stay.
"""

from __future__ import annotations

import sys
from typing import TextIO

from shoal import _native


def printable(text: str) -> str:
    """Returns the text on one line: newlines and tabs are escaped, too."""
    return text if text.isprintable() else _native.printable(_encodable(text), False)


def printable_lines(text: str) -> str:
    """Returns the text; its newlines and tabs stay."""
    return text if text.isprintable() else _native.printable(_encodable(text), True)


def say(text: str, file: TextIO | None = None) -> None:
    """Prints lines, by default on stderr."""
    print(printable_lines(text), file=sys.stderr if file is None else file, flush=True)


def _encodable(text: str) -> str:
    """Escapes lone surrogates, which names of files may hold and UTF-8 lacks."""
    return text.encode("utf-8", "backslashreplace").decode()
