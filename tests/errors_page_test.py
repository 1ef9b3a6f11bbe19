"""docs/errors.md has each error that a user can see, with the codes of the places that raise it, and no others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]  # the source tree; resolve() because Bazel runs this file by a link
PAGE = ROOT / "docs" / "errors.md"
FOLDERS = ["actors", "fsdp", "python", "runtime", "scheduler", "storage"]
CODES = {
    "Cancelled": "cancelled",
    "Unavailable": "unavailable",
    "DeadlineExceeded": "deadline_exceeded",
    "ResourceExhausted": "resource_exhausted",
    "InvalidArgument": "invalid_argument",
    "NotFound": "not_found",
    "DataLoss": "data_loss",
    "Unimplemented": "unimplemented",
    "Internal": "internal",
}
CODE_OF = {name: code for code, both in CODES.items() for name in (code, both)}

# Reasons that no user sees, with the place that takes them out.
INTERNAL = {
    "AnotherNode": "a node takes it as the end of the other one (scheduler/node/peers/peer_nodes.cc)",
    "Left": "a worker of a training ends by it (python/shoal/train/_elastic_gang.py)",
    "NobodyDied": "a worker of a training raises its own error in place of it (python/shoal/train/_elastic_gang.py)",
    "NotReached": "the head places the process elsewhere (scheduler/head/head_actions.cc)",
    "StreamOver": "it is the end of the iteration (python/shoal/_objects/streams.py, actors/api/context/stream.cc)",
}
# Reasons that reach with_reason by a function's parameter, with the file that has the literal.
PASSED = {
    "MessageStalled": "runtime/net/socket/budget.cc",
    "MessageTooSlow": "runtime/net/socket/budget.cc",
}

SOURCES = [
    (path, path.read_text())
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".h", ".cc", ".cu", ".py")
    and not re.search(r"(_test\.(cc|py)|fixture\.(h|cc|py))$|/(conformance|fake|sim)/", str(path))
]
CONSTANTS = {name: value for _, text in SOURCES for name, value in re.findall(r'constexpr const char\* (k\w+) = "(\w+)"', text)}


def raised() -> list[tuple[str, str | None, str]]:
    """(reason, code or None where the statement does not show one, place) of each place in the sources."""
    found = []
    for path, text in SOURCES:
        for match in re.finditer(r"with_reason\(((?:[^()]|\([^()]*\))*)\)|\breason=(\"[A-Z]\w*\")", text):
            argument = match[1] or match[2] or ""
            names = re.findall(r'"([A-Z]\w*)"', argument) + [CONSTANTS[k] for k in re.findall(r"\bk\w+", argument) if k in CONSTANTS]
            statement = re.split(r"[;{}]\s*\n|\breturn\b|\braise\b|\bcase\b", text[max(0, match.start() - 1000) : match.start()])[-1]
            codes = [CODE_OF[w] for w in re.findall(r"\b(\w+)\(", statement) if w in CODE_OF]
            place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            found += [(name, codes[0] if len(set(codes)) == 1 else None, place) for name in names]
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose first heading is this one."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    assert table, heading
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()]


def listed() -> set[tuple[str, str]]:
    return {(reason, code) for row in rows("error") for code, reason in re.findall(r"`(\w+)/(\w+)`", row[0])}


def test_each_reason_of_the_sources_is_on_the_page():
    reasons = {reason for reason, _ in listed()}
    missing = sorted({f"{name} ({place})" for name, _, place in raised() if name not in reasons | INTERNAL.keys()})
    assert not missing, "docs/errors.md lacks them"


def test_each_reason_of_the_page_is_in_the_sources():
    assert {reason for reason, _ in listed()} - {name for name, _, _ in raised()} - PASSED.keys() == set()
    for name, path in PASSED.items():
        assert f'"{name}"' in (ROOT / path).read_text()


def test_a_reason_stands_there_with_each_code_of_the_sources():
    pairs = listed()
    found = {(name, code): place for name, code, place in raised() if code and name not in INTERNAL}
    missing = sorted(f"{code}/{name} ({place})" for (name, code), place in found.items() if (name, code) not in pairs)
    assert not missing, "docs/errors.md lacks them"


def test_reasons_that_no_user_sees_are_raised_and_not_on_the_page():
    assert INTERNAL.keys() <= {name for name, _, _ in raised()}
    assert not INTERNAL.keys() & {reason for reason, _ in listed()}


def test_the_codes_are_those_of_the_sources():
    names = re.findall(r'return "(\w+)";', (ROOT / "runtime/core/error.cc").read_text())
    assert [row[0].strip("`") for row in rows("code")] == list(dict.fromkeys(names))


def test_rows_are_sorted_and_whole():
    table = rows("error")
    assert all(len(row) == 4 and all(row) for row in table)
    reasons = [re.search(r"/(\w+)`", row[0])[1] for row in table]
    assert reasons == sorted(reasons)


@pytest.mark.parametrize("name", sorted(re.findall(r"\bk\w+ = (\d+),", (ROOT / "scheduler/cli/output.h").read_text()), key=int))
def test_exit_codes_of_commands_are_on_the_page(name):
    assert name in [row[0] for row in rows("exit code")]
