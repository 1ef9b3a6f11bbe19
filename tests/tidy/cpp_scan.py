"""Sizes of C++ functions and classes by a scan of braces: no preprocessor, no types.

It understands the C++ of this repository. A file whose braces do not match raises ValueError.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>^[ \t]*\#(?:\\\n|(?!//|/\*)[^\n])*)
      | (?P<literal>(?<!\w)(?:u8|u|U|L)?R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      | (?P<number>(?<!\w)\d(?:'?[\w.])*)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
LABEL = re.compile(r"\s*(?:public|private|protected)\s*:(?!:)")
CLASS = re.compile(
    r"(?:^|\s)(?:class|struct|union)(?:\s+(?:\[\[.*?\]\]|alignas\s*\(\)))*(?:\s+(?P<name>[\w:]+))?\s*(?:final\s*)?(?:(?<!:):(?!:).*)?$",
    re.DOTALL,
)
TEST_CASE = re.compile(r"\bTEST(?:_F|_P)?\s*\(\s*(\w+)\s*,\s*(\w+)")
NO_MEMBER = re.compile(r"(?:using|typedef|friend|static_assert|enum|extern|class|struct|union)\b")


@dataclass
class Class:
    """A class and its size. Constructors, destructors and deleted or defaulted functions are no methods; static variables are no fields."""

    name: str
    line: int
    methods: int = 0
    fields: int = 0


@dataclass
class Function:
    name: str
    line: int
    lines: int


@dataclass
class Scope:
    kind: str  # namespace, class, function, block (of a function), value (an initializer or an enumeration)
    name: str
    head: int = 0  # offset at which the text before its brace begins
    statement: int = 0  # offset at which the statement being read begins
    parentheses: int = 0  # open parentheses of that statement
    members: Class | None = None


@dataclass
class Scan:
    classes: list[Class] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)


def mask(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Returns the text with blanks, at the same offsets, for comments, directives and the inside of literals; and the comments with
    their lines."""
    comments = []

    def blank(token: re.Match[str]) -> str:
        if token.lastgroup == "number":
            return token[0]
        if token.lastgroup == "comment":
            comments.append((text.count("\n", 0, token.start()) + 1, token[0]))
        blanks = re.sub(r"[^\n]", " ", token[0])
        return f'"{blanks[1:-1]}"' if token.lastgroup in ("literal", "mark") else blanks

    return TOKENS.sub(blank, text), comments


def flat(head: str) -> str:
    """A declaration without the inside of its parentheses, braces and angle brackets: "f() const", "Map a_}"."""
    head = re.sub(r"\boperator\s*(?:\(\s*\)|[^\w\s(]+)", "operator_", head).replace("->", "  ")
    for inside, left in ((r"\{[^{}]*\}", "}"), (r"\((?:[^()]|\(\x00\))*\)", "(\x00)"), (r"<[^<>;]*>", "")):
        before = None
        while before != head:
            before, head = head, re.sub(inside, left, head)
    return head.replace("\x00", "")


def strip_labels(statement: str) -> str:
    """Removes access labels and `template`, which precede a member's declaration."""
    while (label := LABEL.match(statement)) is not None:
        statement = statement[label.end() :]
    return re.sub(r"^\s*template\b(?:\s*requires\s*\(\))?\s*", "", statement).strip()


def kind_of(head: str, parent: Scope) -> tuple[str, str]:
    """The kind and name of the scope that a brace opens; `head`: the text before that brace."""
    short = strip_labels(flat(head))
    if parent.parentheses == 0 and "=" not in short and (found := CLASS.search(short)) is not None and "enum" not in short.split():
        return "class", found["name"] or ""
    if parent.kind not in ("namespace", "class"):
        return "block", ""
    if re.match(r'(inline\s+)?namespace\b|extern\s*"\s*"$', short):
        return "namespace", ""
    initializes = re.search(r"\)[\s\w()]*(?<!:):(?!:)", short) is not None and re.search(r"\w$", short) is not None
    if parent.parentheses or "(" not in short or "=" in short or initializes or re.search(r"\brequires\s*\(\)$", short):
        return "value", ""
    if (test := TEST_CASE.search(head)) is not None:
        return "function", f"{test[1]}.{test[2]}"
    return "function", (re.search(r"([~\w:]+)\s*\(", short) or ["", ""])[1]


def is_method(short: str, of: Class) -> bool:
    return re.search(rf"(?:~|(?<![\w~])){re.escape(of.name.rpartition('::')[2])}\s*\(|=\s*(?:delete|default)$", short) is None


def count_member(declaration: str, into: Class) -> None:
    """Adds a member that has no body to the class's methods or fields."""
    short = strip_labels(flat(declaration))
    if not short or NO_MEMBER.match(short):
        return
    if "(" in short.partition("=")[0]:
        into.methods += is_method(short, into)
    elif re.match(r"(?:inline\s+|constexpr\s+)*static\b", short) is None:
        into.fields += short.count(",") + 1


def scan(text: str) -> Scan:
    """The classes and functions of a source file, local ones included. A function inside another function counts as part of that one."""
    code = mask(text)[0]
    starts = [0] + [newline.end() for newline in re.finditer(r"\n", code)]
    found, stack = Scan(), [Scope("namespace", "")]

    def line_of(offset: int) -> int:
        return bisect_right(starts, offset)

    def qualified(name: str) -> str:
        return "::".join([scope.name for scope in stack if scope.kind == "class" and scope.name] + [name])

    for mark in re.finditer(r"[{}();]", code):
        scope, offset = stack[-1], mark.start()
        if mark[0] == "(":
            scope.parentheses += 1
        elif mark[0] == ")":
            scope.parentheses -= 1
        elif mark[0] == ";" and scope.parentheses == 0:
            if scope.members is not None:
                count_member(code[scope.statement : offset], scope.members)
            scope.statement = offset + 1
        elif mark[0] == "{":
            head = code[scope.statement : offset]
            kind, name = kind_of(head, scope)
            begin = scope.statement
            while (label := LABEL.match(code, begin)) is not None:
                begin = label.end()
            begin += len(code[begin:offset]) - len(code[begin:offset].lstrip())
            members = None
            if kind == "class":
                members = Class(qualified(name), line_of(begin))
                found.classes.append(members)
            elif kind == "function" and scope.members is not None:
                scope.members.methods += is_method(strip_labels(flat(head)), scope.members)
            stack.append(Scope(kind, name, begin, offset + 1, 0, members))
        elif mark[0] == "}":
            ended = stack.pop()
            if not stack or ended.parentheses != 0:
                raise ValueError(f"line {line_of(offset)}: a brace or parenthesis without its partner")
            if ended.kind == "function":
                found.functions.append(Function(qualified(ended.name), line_of(ended.head), line_of(offset) - line_of(ended.head) + 1))
            if ended.kind in ("namespace", "function") or (ended.kind == "block" and stack[-1].parentheses == 0):
                stack[-1].statement = offset + 1
    if len(stack) != 1:
        raise ValueError(f"line {line_of(stack[-1].head)}: a brace that is not closed")
    return found
