"""A script's text and syntax tree, changes of it by position, and what the commands report about it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from shoal.exceptions import InvalidArgument, NotFound

# Modules that export FSDP's names, the longest first. `fsdp:` stands for all of them in the names that `Source.name_of` returns.
_FAMILIES = sorted(
    (
        "torch.distributed.fsdp",
        "torch.distributed.fsdp.api",
        "torch.distributed.fsdp.wrap",
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "torch.distributed.fsdp.sharded_grad_scaler",
        "torch.distributed._composable.fsdp",
        "shoal.fsdp",
        "shoal.fsdp1",
        "shoal.fsdp1.api",
        "shoal.fsdp1.wrap",
        "shoal.fsdp1.fully_sharded_data_parallel",
        "shoal.fsdp1.sharded_grad_scaler",
    ),
    key=len,
    reverse=True,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Note:
    """A command's report about a line. ``level``: "check" (translated, with another meaning), "by hand" (left as it was), or that of
    `shoal check`, "practice"."""

    line: int
    rule: str
    level: str
    code: str  # the line's text
    message: str
    hint: str


def family_of(module: str) -> str | None:
    """Returns ``module`` if it exports FSDP's names, else None."""
    return module if module in _FAMILIES else None


def canonical(dotted: str) -> str:
    for family in _FAMILIES:
        if dotted.startswith(family + "."):
            return "fsdp:" + dotted[len(family) + 1 :]
    return dotted


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields (local name, dotted name) of what statements import; the dotted name is "" for a relative import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, "" if node.level else f"{node.module}.{alias.name}"


def _bound_by(node: ast.AST) -> list[str]:
    """Returns the names that a node binds, imports left out."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    kinds = (*Function.__args__, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
    name = node.rest if isinstance(node, ast.MatchMapping) else node.name if isinstance(node, kinds) else None
    return [name] if name else []


@dataclass
class Source:
    path: str
    text: str
    encoding: str = "utf-8"
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.tree = ast.parse(self.text, self.path)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise InvalidArgument(
                f"{self.path}{line} is no Python program: {error.msg if isinstance(error, SyntaxError) else error}",
                hint="the command reads the syntax of the running Python",
            ) from None
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @classmethod
    def read(cls, path: str) -> Source:
        try:
            data = Path(path).read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return cls(path, data.decode(encoding), encoding)
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}", hint="pass the path of a Python script") from None
        except (SyntaxError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path} is no text: {error}", hint="pass the path of a Python script") from None

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", self.text))]

    @cached_property
    def newline(self) -> str:
        found = re.search(r"\r\n|\r|\n", self.text)
        return found[0] if found else "\n"

    def line_start(self, line: int) -> int:
        """Returns the position of a line, which counts from 1, or the end of the text."""
        return self._line_starts[line - 1] if line <= len(self._line_starts) else len(self.text)

    def line(self, number: int) -> str:
        return self.text[self.line_start(number) : self.line_start(number + 1)].strip()

    def _offset(self, line: int, utf8_column: int) -> int:
        start = self.line_start(line)
        row = self.text[start : self.line_start(line + 1)]
        return start + len(row.encode()[:utf8_column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def lines_span(self, node: ast.AST) -> tuple[int, int]:
        """Returns the span of the lines of a statement, with what else is on them."""
        return self.line_start(node.lineno), self.line_start(node.end_lineno + 1)

    def code(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.text[begin:end]

    def indent(self, statement: ast.AST) -> str | None:
        """Returns the white space before a statement, or None where other code precedes it on its line."""
        before = self.text[self.line_start(statement.lineno) : self.span(statement)[0]]
        return before if not before.strip() else None

    def alone(self, statement: ast.AST) -> bool:
        """True if no other statement is on the lines of this one."""
        after = self.text[self.span(statement)[1] : self.line_start(statement.end_lineno + 1)].strip()
        return self.indent(statement) is not None and (not after or after.startswith("#"))

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """(position, text) of each comment."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text, newline="").readline)
        return [(self.line_start(t.start[0]) + t.start[1], t.string) for t in tokens if t.type == tokenize.COMMENT]

    @cached_property
    def names(self) -> dict[str, str]:
        """The imported names: the dotted name by the local one."""
        return {local: dotted for local, dotted in imported(ast.walk(self.tree)) if dotted}

    @cached_property
    def top_names(self) -> dict[str, str]:
        """The names that the module's own statements import, without conditions."""
        return dict(imported(self.tree.body))

    @cached_property
    def bindings(self) -> dict[str, set[str]]:
        """The things that each name of the file stands for, in any scope: dotted names of imports, and "" for everything else."""
        found: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            for name in _bound_by(node):
                found.setdefault(name, set()).add("")
        for local, dotted in imported(ast.walk(self.tree)):
            found.setdefault(local, set()).add(canonical(dotted))
        return found

    def name_of(self, node: ast.AST) -> str:
        """Returns the imported name that an expression is, such as `torch.optim.Adam` or `fsdp:fully_shard`, or ""."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return ""
        return canonical(".".join([self.names[node.id], *reversed(parts)]))

    @cached_property
    def function_names(self) -> set[str]:
        """Names that only definitions of functions bind in this file."""
        defined = {n.name for n in ast.walk(self.tree) if isinstance(n, Function)}
        others = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        return defined - others - {n.arg for n in ast.walk(self.tree) if isinstance(n, ast.arg)} - set(self.names)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.name_of(node.func) in names:
                yield node

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Returns the function around a node, or the module."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                return node
        return self.tree

    def statement_of(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """Returns the statements of the block that a statement is in."""
        return next(b for _, b in ast.iter_fields(self.parents[statement]) if isinstance(b, list) and statement in b)

    def within(self, node: ast.AST, kinds: type | tuple[type, ...]) -> Iterator[ast.AST]:
        """Yields the nodes of these kinds around a node, up to its function."""
        while node in self.parents and not isinstance(node, Function):
            node = self.parents[node]
            if isinstance(node, kinds):
                yield node

    def binding(self, name: ast.Name) -> ast.Assign | None:
        """Returns the one assignment that gives a variable its value, in the function of ``name`` or in the module, or None if
        there are several, or another kind of binding."""
        scope: ast.AST = self.scope_of(name)
        while True:
            stores = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and not isinstance(n.ctx, ast.Load)]
            stores = [n for n in stores if self.scope_of(n) is scope]
            arguments = [a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)] if isinstance(scope, Function) else []
            if stores or name.id in arguments:
                assign = self.parents[stores[0]] if len(stores) == 1 and name.id not in arguments else None
                return assign if isinstance(assign, ast.Assign) and assign.targets == stores else None
            if scope is self.tree:
                return None
            scope = self.scope_of(scope)

    def unused_name(self, wanted: str) -> str:
        bound = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)} | set(self.bindings)
        while wanted in bound:
            wanted += "_"
        return wanted


class Edits:
    """Replacements in a source's text. A replacement drops earlier ones inside its span."""

    def __init__(self, source: Source):
        self._source = source
        self._found: list[tuple[int, int, str]] = []
        self._removed: list[ast.stmt] = []

    def replace(self, span: tuple[int, int], text: str) -> None:
        begin, end = span
        self._found = [
            e for e in self._found if not (begin <= e[0] and e[1] <= end and begin < end and (e[0] < e[1] or begin < e[0] < end))
        ]
        self._found.append((begin, end, text))

    def remove(self, statement: ast.stmt) -> None:
        """Removes a statement with its lines. It becomes `pass` if its block has no other left, or if other code is on its lines."""
        source = self._source
        self._removed.append(statement)
        block = source.block_of(statement)
        if source.alone(statement) and (source.parents[statement] is source.tree or any(s not in self._removed for s in block)):
            self.replace(source.lines_span(statement), "")
        else:
            self.replace(source.span(statement), "pass")

    def covers(self, node: ast.AST) -> bool:
        begin, end = self._source.span(node)
        return any(b <= begin and end <= e for b, e, _ in self._found)

    def covers_position(self, position: int) -> bool:
        return any(b <= position < e for b, e, _ in self._found)

    def code(self, node: ast.AST) -> str:
        """Returns a node's code with the replacements inside it."""
        return self.text(*self._source.span(node))

    def text(self, begin: int, end: int) -> str:
        out, at = [], begin
        for b, e, new in sorted(self._found, key=lambda edit: edit[:2]):
            if begin <= b and e <= end and b >= at:
                out += [self._source.text[at:b], new]
                at = e
        return "".join([*out, self._source.text[at:end]])

    def apply(self) -> str:
        return self.text(0, len(self._source.text))
