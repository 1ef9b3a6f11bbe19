"""Sentences of comments, docstrings and documents, each with its line, and the faults of their words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tidy.cpp_scan import mask
from tidy.python_scan import FUNCTIONS, statements

OPENINGS = re.compile(r"(who|what|whose|whether|of|nobody|none|that)\b", re.IGNORECASE)
WORDS = re.compile(r"\b(told|heard|nobody|whoever)\b", re.IGNORECASE)
CODE_SPAN = re.compile(r"(`+)([^`\n]+)\1")
DIRECTIVES = re.compile(r"(ruff|noqa|type:|fmt:|pragma|!)")  # comments that a program reads, such as ruff's
# A sentence ends at a blank line, a full stop before a capital, a colon before a line break, and before an item of a list.
ENDS = re.compile(r"\n\s*\n|(?<=[.!?])\s+(?=[A-Z`\"(*])|(?<=:)\s*\n|\n\s*(?=[-*|] )|``:\s")

PYTHON = re.compile(r'''#[^\n]*|"""(?:\\.|[^\\])*?"""|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*\'''', re.DOTALL)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)

Block = tuple[int, str]  # first line, text


def joined(comments: list[tuple[int, str, bool]]) -> list[Block]:
    """Joins comments (line, text, whether it has its line to itself) on consecutive lines into blocks."""
    blocks: list[tuple[int, str, int]] = []
    open_ended = False
    for line, text, own_line in comments:
        if own_line and open_ended and blocks[-1][2] == line - 1:
            first, before, _ = blocks.pop()
            blocks.append((first, f"{before}\n{text}", line))
        else:
            blocks.append((line, text, line + text.count("\n")))
        open_ended = own_line
    return [(first, text) for first, text, _ in blocks]


def of_cpp(text: str) -> list[Block]:
    lines = text.split("\n")
    comments = []
    for line, comment in mask(text)[1]:
        body = re.sub(r"^[ \t]*(///?<?|/\*\*?|\*/|\*)[ \t]?|\*/", "", comment, flags=re.MULTILINE)
        comments.append((line, body, lines[line - 1].lstrip().startswith(("//", "/*"))))
    return joined(comments)


def of_python(text: str, tree: ast.Module) -> list[Block]:
    found = []
    for node in [tree, *(child for child, _ in statements(tree))]:
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            value = node.body[0].value
            found.append((value.lineno, value.value))
    comments = []
    for token in PYTHON.finditer(text):
        body = token[0].lstrip("# ")
        if token[0].startswith("#") and not DIRECTIVES.match(body):
            own_line = not text[text.rfind("\n", 0, token.start()) + 1 : token.start()].strip()
            comments.append((text.count("\n", 0, token.start()) + 1, body, own_line))
    return found + joined(comments)


def of_hashes(text: str) -> list[Block]:
    """The comments of shell programs and Cap'n Proto schemas, which begin with a hash."""
    comments = []
    for number, line in enumerate(text.split("\n"), 1):
        if (found := re.search(r"(?:^|\s)#(?!!)\s*(.*)", line)) is not None:
            comments.append((number, found[1], line.lstrip().startswith("#")))
    return joined(comments)


def of_markdown(text: str) -> list[Block]:
    text = re.sub(r"^```.*?^```", lambda fence: "\n" * fence[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return [(1, text)]


def blocks(path: str, text: str, tree: ast.Module | None) -> list[Block]:
    if path.endswith(".md"):
        return of_markdown(text)
    if path.endswith((".cc", ".h", ".cu")):
        return of_cpp(text)
    return of_hashes(text) if tree is None else of_python(text, tree)


def sentences(path: str, text: str, tree: ast.Module | None = None) -> Iterator[tuple[int, str]]:
    """The sentences of a file's comments, docstrings or document, with the line on which each begins.

    `tree`: the syntax tree of a file in Python's syntax, which Starlark (BUILD, .bzl) has, too.
    """
    for first, block in blocks(path, text, tree):
        # A code span is one word: its full stops end no sentence.
        body = CODE_SPAN.sub(lambda span: re.sub(r"[.\s]", "_", span[0]), block)
        begin = 0
        for end, after in [end.span() for end in ENDS.finditer(body)] + [(len(body), len(body))]:
            raw = body[begin:end]
            sentence = " ".join(raw.split()).strip("*|- ")
            if sentence:
                yield first + body.count("\n", 0, begin + len(raw) - len(raw.lstrip())), sentence
            begin = after


def faults(sentence: str) -> list[str]:
    """The rules that a sentence breaks: "openings", "words"."""
    found = []
    if OPENINGS.match(sentence):
        found.append("openings")
    if WORDS.search(CODE_SPAN.sub("", sentence)):
        found.append("words")
    return found
