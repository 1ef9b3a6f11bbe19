"""Each verdict of scheduler/runs has its place in the order of verdict.cc and its row in docs/runs.md, in the same order."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "scheduler" / "runs"


def table(page):
    rows = page.split("| verdict | is given when | next |\n", 1)[1].split("\n\n", 1)[0]
    return [code for row in rows.splitlines()[1:] for code in re.findall(r"`(\w+)`", row.split("|")[1])]


def order(source):
    lists = re.findall(r"k(?:Order|Last)\[\] = \{(.*?)\}", source, re.DOTALL)
    assert len(lists) == 2
    return re.findall(r'"(\w+)"', lists[0] + lists[1])


def given(source):
    """The codes that functions give to a verdict: `v.code = "hang"`, or an argument of one of the functions named verdict_of."""
    return set(re.findall(r'\.code = (?:code == )?"(\w+)"', source)) | set(re.findall(r'verdict_of\([^;]*?"(\w+)"', source))


def test_the_page_lists_the_verdicts_in_their_order():
    assert table((ROOT / "docs" / "runs.md").read_text()) == order((SOURCES / "verdict.cc").read_text())


def test_each_verdict_that_a_function_gives_has_a_place():
    found = set.union(*(given((SOURCES / f"{name}.cc").read_text()) for name in ("stuck", "numbers", "resources", "slow")))
    assert {"dead_rank", "straggler", "memory", "not_finite"} <= found
    assert found <= set(order((SOURCES / "verdict.cc").read_text()))
