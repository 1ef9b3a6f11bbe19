"""Exclusion patterns in the syntax of .gitignore.

The last matching pattern decides. ``!`` includes again, an inner slash anchors a pattern to the folder of its file, and a final slash
restricts it to folders. As in Ray, an inner folder's patterns cannot include what an outer folder excludes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["Patterns", "files"]

_IN_FOLDERS = (".gitignore", ".rayignore")


class Patterns:
    """An ordered list of patterns."""

    def __init__(self, lines: Iterable[str]):
        self._rules = [rule for line in lines if (rule := _rule(str(line)))]

    def leave_out(self, path: str, is_folder: bool) -> bool:
        """True if ``path``, relative to the patterns' folder, is excluded."""
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
    """Yields (path, relative name) of a folder's files that no pattern excludes, sorted. ``from_folders``: .gitignore files inside apply,
    too; .rayignore files always apply. A link to a folder is followed, unless it leads to an enclosing folder. Pipes and dangling links are
    skipped."""
    yield from _walk(folder, "", [(Patterns(patterns), 0)], from_folders, ())


def _leads_back(link: str, around: tuple[str, ...]) -> bool:
    target = os.path.join(os.path.realpath(link), "")
    return any(os.path.join(folder, "").startswith(target) for folder in around)


def _walk(
    folder: Path, name: str, outer: list[tuple[Patterns, int]], from_folders: bool, around: tuple[str, ...]
) -> Iterator[tuple[Path, str]]:
    """``around``: the real paths of the enclosing folders."""
    around = (*around, os.path.realpath(folder))
    inside = list(outer)
    for file in _IN_FOLDERS if from_folders else _IN_FOLDERS[1:]:
        if (folder / file).is_file():
            inside.append((Patterns((folder / file).read_text(errors="replace").splitlines()), len(name)))
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        inner = name + entry.name
        is_folder = os.path.isdir(entry.path)  # a link to itself is neither folder nor file
        if any(patterns.leave_out(inner[start:], is_folder) for patterns, start in inside):
            continue
        if is_folder:
            if not entry.is_symlink() or not _leads_back(entry.path, around):
                yield from _walk(Path(entry.path), inner + "/", inside, from_folders, around)
        elif os.path.isfile(entry.path):
            yield Path(entry.path), inner
