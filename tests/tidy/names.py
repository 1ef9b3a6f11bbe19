"""Identifiers of production code: none has a word that stands for what a field's noun or verb names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tidy import cpp_scan

# A result, a copy or a flag has a noun or an adjective of its own; processes request, report and receive; a program checks and waits.
WORDS = frozenset(
    [
        *("made", "done", "ask", "asks", "asked", "asking", "tell", "tells", "told", "hear", "hears", "heard", "news"),
        *("look", "looks", "looked", "stay", "stays", "stayed", "ways", "here"),
    ]
)
# Names that others dictate, by the file that has them, with the reason.
DICTATED = {
    ("python/shoal/checkpoint/_other/dcp.py", "tell"): "torch reads the object as a file",
    ("python/shoal/checkpoint/_saving.py", "done"): "a handle of a save answers as a concurrent.futures.Future",
    ("python/shoal/spmd/_controller/replaying.py", "_ask"): "runs the controller's message of this name",
    ("python/shoal/torch/_futures.py", "add_done_callback"): "torch.futures.Future has this method",
    ("scheduler/store/sqlite_store.cc", "SQLITE_DONE"): "a result code of SQLite",
}
TEST = re.compile(r"^tests/|_tests?(_\d+)?\.(?:cc|py)$|_fixture\.h$|/tested_\w+\.h$|/conformance/")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_banned(name: str) -> bool:
    return any(word.lower() in WORDS for word in WORD.findall(name))


def of_cpp(text: str) -> Iterator[tuple[int, str]]:
    """Every identifier outside of comments, directives and literals: names of the standard library and of Linux have none of the words."""
    code = cpp_scan.mask(text)[0]
    for found in IDENTIFIER.finditer(code):
        if is_banned(found[0]):
            yield code.count("\n", 0, found.start()) + 1, found[0]


def of_python(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names that the file gives: of functions, classes, parameters, variables, attributes and imports. It may use others' names."""
    for node in ast.walk(tree):
        names: list[str | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.asname for alias in node.names]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            names = [node.name]
        yield from ((node.lineno, name) for name in names if name is not None and is_banned(name))


def faults(path: str, text: str, tree: ast.Module | None) -> list[str]:
    """A fault per name and file, at its first place. `tree`: of a Python file."""
    if TEST.search(path):
        return []
    found: dict[str, int] = {}
    for line, name in sorted(of_cpp(text) if tree is None else of_python(tree)):
        found.setdefault(name, line)
    return [f"{path}:{line}: {name}" for name, line in found.items() if (path, name) not in DICTATED]
