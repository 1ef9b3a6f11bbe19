"""Patterns as .gitignore has them: which files of a folder are left out.

The last pattern that fits decides, ``!`` takes it back, a slash inside ties it to the folder of its file, one at the end means folders. As
in Ray, patterns of a folder further in take nothing back that one further out leaves out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["Patterns", "files"]

_IN_FOLDERS = (".gitignore", ".rayignore")


class Patterns:
    """The patterns of one list, in its order."""

    def __init__(self, lines: Iterable[str]):
        self._rules = [rule for line in lines if (rule := _rule(str(line)))]

    def leave_out(self, path: str, is_folder: bool) -> bool:
        """``path``: within the folder that the patterns are of."""
        out = False
        for regex, folders_only, left_out in self._rules:
            if (is_folder or not folders_only) and regex.fullmatch(path):
                out = left_out
        return out


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    line = re.sub(r"(?<!\\) +$", "", line.rstrip("\r\n"))
    if not line or line.startswith("#"):
        return None
    left_out = not line.startswith("!")
    pattern = line if left_out else line[1:]
    folders_only, pattern = pattern.endswith("/"), pattern.rstrip("/")
    anchored = "/" in pattern
    text = _regex(pattern.removeprefix("/"))
    return re.compile(text if anchored else f"(?:.*/)?{text}", re.DOTALL), folders_only, left_out


_PARTS = re.compile(
    r"(?P<any_folders>(?<![^/])\*\*/)|(?P<all_in>/\*\*$)|(?P<stars>\*+)|(?P<one>\?)|(?P<set>\[[!^]?\]?[^\]]*\])|\\(?P<as_is>.)"
)


def _regex(pattern: str) -> str:
    out, at = "", 0
    for part in _PARTS.finditer(pattern):
        out += re.escape(pattern[at : part.start()])
        at = part.end()
        if part["any_folders"]:
            out += "(?:.*/)?"
        elif part["all_in"]:
            out += "/.+"
        elif part["stars"]:
            out += "[^/]*"
        elif part["one"]:
            out += "[^/]"
        elif part["set"]:
            inner = part["set"][1:-1].replace("\\", "\\\\")
            out += f"[^/{inner[1:]}]" if inner[:1] in "!^" and inner[1:] else f"[{inner}]"
        else:
            out += re.escape(part["as_is"])
    return out + re.escape(pattern[at:])


def files(folder: Path, patterns: Iterable[str], *, from_folders: bool) -> Iterator[tuple[Path, str]]:
    """(path, name within the folder) of its files that no pattern leaves out, sorted. ``from_folders``: nor those of the .gitignore files
    in it; those of .rayignore files count in any case. A link to a folder stands for what is in there, unless it leads to a folder around
    it. What is no file (a pipe, a link to nothing or to itself) is not among them."""
    yield from _walk(folder, "", [(Patterns(patterns), 0)], from_folders, ())


def _leads_back(link: str, around: tuple[str, ...]) -> bool:
    target = os.path.join(os.path.realpath(link), "")
    return any(os.path.join(folder, "").startswith(target) for folder in around)


def _walk(
    folder: Path, name: str, outer: list[tuple[Patterns, int]], from_folders: bool, around: tuple[str, ...]
) -> Iterator[tuple[Path, str]]:
    """``around``: where the folders lie that this one is in, links followed."""
    around = (*around, os.path.realpath(folder))
    here = list(outer)
    for file in _IN_FOLDERS if from_folders else _IN_FOLDERS[1:]:
        if (folder / file).is_file():
            here.append((Patterns((folder / file).read_text(errors="replace").splitlines()), len(name)))
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        inner = name + entry.name
        is_folder = os.path.isdir(entry.path)  # a link to itself is neither folder nor file
        if any(patterns.leave_out(inner[start:], is_folder) for patterns, start in here):
            continue
        if is_folder:
            if not entry.is_symlink() or not _leads_back(entry.path, around):
                yield from _walk(Path(entry.path), inner + "/", here, from_folders, around)
        elif os.path.isfile(entry.path):
            yield Path(entry.path), inner
