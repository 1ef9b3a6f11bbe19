"""Links and cited paths of the documents, and the lengths that the documents keep."""

import functools
import os
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]  # the source tree; resolve() because Bazel runs this file by a link
OUTPUTS = {"dist", "out", "__pycache__"}
DECISIONS = ROOT / "docs" / "decisions"
MOST_WORDS = {"README.md": 500, "ARCHITECTURE.md": 2400}
DECISION_WORDS = 150
SOURCES = {".h", ".cc", ".py", ".capnp", ".bzl", ".md", ""}


def files() -> list[Path]:
    found = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = sorted(n for n in inner if n not in OUTPUTS and not n.startswith((".venv", ".git", "bazel-")))
        found += [Path(folder, n) for n in sorted(names)]
    return found


FILES = files()
PAGES = [p for p in FILES if p.suffix == ".md"]
CITING = [p for p in PAGES if p.name != "COVERAGE.md"]  # COVERAGE.md abbreviates the paths that it cites


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """A page's text without its code blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page.read_text()))
    out = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue  # a link to another site
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            out.append(link)
    return out


@functools.cache
def members() -> dict[str, str]:
    """By class of the product: the texts of its folders, in which its members' names stand. Names that torch has, too, are left out."""
    texts: dict[Path, str] = {}
    for path in FILES:
        if path.suffix in (".h", ".cc", ".py") and "tests" not in path.parts:
            texts[path.parent] = texts.get(path.parent, "") + path.read_text()
    found: dict[str, str] = {}
    for text in texts.values():
        for name in set(re.findall(r"^\s*(?:class|struct) (\w+)\b(?! *;)", text, re.MULTILINE)) - {"Tensor", "Module", "Optimizer"}:
            found[name] = found.get(name, "") + text
    return found


def missing_members(page: Path) -> list[str]:
    """Members, cited as `Class.member` or `Class::member`, of which no folder with such a class knows the name."""
    cited = re.findall(r"`(([A-Z]\w+)(?:\.|::)(\w+))(?:\(\))?`", page.read_text())
    return [all_of_it for all_of_it, cls, member in cited if cls in members() and not re.search(rf"\b{member}\b", members()[cls])]


def missing_paths(page: Path) -> list[str]:
    cited = re.findall(r"`([a-z_.][\w.\-]*/[\w./\-]*)`", page.read_text())
    places = (ROOT, page.parent)
    out = []
    for path in cited:
        folder = path.partition("/")[0]
        ours = any((place / folder).is_dir() for place in places)  # paths in other folders are those of users and outputs
        if ours and Path(path).suffix in SOURCES and not any((place / path).exists() for place in places):
            out.append(path)
    return out


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_member_that_a_page_cites_exists(page):
    assert missing_members(page) == []


@pytest.mark.parametrize("page", CITING, ids=name_of)
def test_every_path_that_a_page_cites_exists(page):
    assert missing_paths(page) == []


@pytest.mark.parametrize("page", MOST_WORDS)
def test_a_first_page_stays_short(page):
    assert len((ROOT / page).read_text().split()) <= MOST_WORDS[page]


def test_a_decision_stays_short_and_is_in_the_index_once():
    decisions = [p for p in DECISIONS.glob("*.md") if p.name != "README.md"]
    assert {p.name: n for p in decisions if (n := len(p.read_text().split())) > DECISION_WORDS} == {}
    listed = re.findall(r"^- \[(.+)\]\(([\w-]+\.md)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed, key=lambda row: row[1]) == sorted(
        ((p.read_text().splitlines()[0].removeprefix("# "), p.name) for p in decisions), key=lambda row: row[1]
    )


def test_every_decision_that_a_file_cites_exists():
    gone = {}
    for path in FILES:
        if path.suffix in SOURCES and path.name != Path(__file__).name:
            cited = re.findall(r"docs/decisions/([\w-]+\.md)", path.read_text(errors="replace"))
            gone |= {name_of(path): name for name in cited if not (DECISIONS / name).exists()}
    assert gone == {}


def test_the_glossary_has_each_term_once_and_its_rooms_in_order():
    rooms = (ROOT / "GLOSSARY.md").read_text().split("\n## ")[1:]
    tables = [re.findall(r"^\| ([^|]+) \| [A-Z]", room, re.MULTILINE) for room in rooms]
    terms = [term.lower() for table in tables for term in table]
    assert len(terms) >= 40
    assert sorted(terms) == sorted(set(terms))
    for table in tables:
        assert table == sorted(table, key=lambda term: (term.lower().replace("-", " "), term))


def test_the_site_has_the_lists_of_the_pages():
    """Python-Markdown wants four spaces per level, and an empty line before a list."""
    converted = runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))["for_python_markdown"]
    page = "Order:\n- a\n  - b\n    goes on\n\n      code\n\nEnd\n  no list\n\n```\nx:\n- y\n  - z\n```\n1. one\n"
    assert converted(page) == (
        "Order:\n\n- a\n    - b\n      goes on\n\n        code\n\nEnd\n  no list\n\n```\nx:\n- y\n  - z\n```\n\n1. one\n"
    )


def test_the_reference_has_each_module_that_a_page_imports():
    modules = runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))["MODULES"]
    text = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"^ *(?:import|from) (shoal\.[a-z]\w*)", text, re.MULTILINE)) <= set(modules)
