"""The state that the parts of a translation share: the script, its changes, and notes for the user."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from shoal._scripts.source import Edits, Note, Source, canonical

_LINE = 120  # columns
STATE_DICT = "torch.distributed.checkpoint.state_dict"


class Untranslatable(Exception):
    """A use of FSDP1 that has no counterpart in FSDP2, or that is not understood."""

    def __init__(self, node: ast.AST, rule: str, message: str, hint: str):
        super().__init__(message)
        self.node, self.rule, self.message, self.hint = node, rule, message, hint


@dataclass
class Work:
    source: Source
    edits: Edits = field(init=False)
    notes: list[Note] = field(default_factory=list)
    blockers: list[Note] = field(default_factory=list)  # with any of these, the script keeps FSDP1's class
    needs: dict[str, set[str]] = field(default_factory=dict)  # names to import, by module ("fsdp": that of FSDP2), some as "name as other"
    helpers: dict[str, str] = field(default_factory=dict)  # functions to add, by name
    consumed: list[ast.Name] = field(default_factory=list)  # uses of variables in whose place the value's translation stands now
    shift: int = 0  # columns by which code that is translated now moves to the left

    def __post_init__(self) -> None:
        self.edits = Edits(self.source)

    def need(self, module: str, name: str) -> str:
        """Imports a name, unless the script does so, and returns its name in this file. With the module "", ``name`` is itself a module."""
        wanted = f"fsdp:{name}" if module == "fsdp" else f"{module}.{name}" if module else name
        for local, dotted in self.source.top_names.items():
            if canonical(dotted) == wanted and self.source.bindings[local] == {wanted}:
                return local
        local = name if self.source.bindings.get(name, set()) <= {wanted} else self.source.unused_name(name)
        self.needs.setdefault(module, set()).add(name if local == name else f"{name} as {local}")
        return local

    def fsdp(self, name: str) -> str:
        return self.need("fsdp", name)

    def note(self, node: ast.AST, rule: str, message: str, hint: str, level: str = "check") -> None:
        self.notes.append(Note(node.lineno, rule, level, self.source.line(node.lineno), message, hint))

    def block(self, reason: Untranslatable) -> None:
        line = reason.node.lineno
        self.blockers.append(Note(line, reason.rule, "by hand", self.source.line(line), reason.message, reason.hint))

    def value(self, node: ast.expr) -> ast.expr:
        """Returns what a variable stands for, where it has one assignment, or the node itself. A caller that translates the value reports
        that by ``consume``."""
        while isinstance(node, ast.Name) and (assign := self.source.binding(node)):
            node = assign.value
        return node

    def consume(self, node: ast.expr) -> None:
        while isinstance(node, ast.Name) and (assign := self.source.binding(node)):
            self.consumed.append(node)
            node = assign.value

    def drop_consumed(self) -> None:
        """Removes the assignments of variables of which no use is left."""
        for assign in {self.source.binding(name): None for name in self.consumed}:
            name = assign.targets[0]
            scope = self.source.scope_of(assign)
            uses = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)]
            if all(any(use is c for c in self.consumed) for use in uses):
                self.remove(assign)

    def remove(self, statement: ast.stmt) -> None:
        self.edits.remove(statement)

    def replace_call(self, call: ast.Call, function: str, words: list[str]) -> None:
        """Puts another call in a call's place: on its line if that has room, else with a line per argument."""
        source = self.source
        (begin, end), statement = source.span(call), source.statement_of(call)
        before = source.text[source.line_start(call.lineno) : begin]
        behind = source.text[end : source.line_start(call.end_lineno + 1)].rstrip()
        room = _LINE + self.shift - len(before) - len(behind)
        indent = (source.indent(statement) or "")[self.shift :]
        self.edits.replace((begin, end), call_text(function, words, indent, source.newline, room))

    def comments_in(self, node: ast.AST) -> list[str]:
        begin, end = self.source.span(node)
        return [text for at, text in self.source.comments if begin <= at < end and not self.edits.covers_position(at)]


def operand(code: str) -> str:
    """Returns an expression's code with parentheses, unless it binds tighter than every operator and cannot end at a line's end."""
    try:
        tree = ast.parse(code).body
    except SyntaxError:
        return f"({code})"
    kinds = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set)
    single = len(tree) == 1 and isinstance(tree[0], ast.Expr) and isinstance(tree[0].value, kinds)
    return code if single else f"({code})"


def right_side(code: str) -> str:
    """Returns an expression's code as an assignment or a condition can have it, where line breaks need brackets."""
    try:
        single = len(ast.parse(f"_ = {code}").body) == 1 and len(ast.parse(f"if {code}: pass").body) == 1
    except SyntaxError:
        single = False
    return code if single else f"({code})"


def keywords_text(arguments: list[tuple[str, str]]) -> list[str]:
    return [f"{name}={text}" for name, text in arguments]


def call_text(function: str, words: list[str], indent: str, newline: str, room: int) -> str:
    """Returns a call, on one line if that needs at most ``room`` columns, else with a line per argument."""
    line = f"{function}({', '.join(words)})"
    if len(line) <= room or len(words) < 2:
        return line
    inner = newline + indent + "    "
    return f"{function}({inner}{f',{inner}'.join(words)},{newline}{indent})"


def statement_text(function: str, words: list[str], indent: str, newline: str) -> str:
    return call_text(function, words, indent, newline, _LINE - len(indent))
