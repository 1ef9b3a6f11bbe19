"""Builds the documentation's site: python docs/site/build.py ROOT

It copies the repository's Markdown pages, and the files to which they link, into out/site-pages, with the same paths. So a link works there
as it does in the repository. It adds a page per module of the reference and a table of the schemas, and calls `mkdocs build --strict`.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# The public modules; mkdocstrings reads their docstrings.
MODULES = (
    "shoal",
    "shoal.fsdp",
    "shoal.fsdp1",
    "shoal.optim",
    "shoal.checkpoint",
    "shoal.train",
    "shoal.ray",
    "shoal.trackers",
    "shoal.collective",
    "shoal.torch",
    "shoal.spmd",
    "shoal.dag",
    "shoal.job_submission",
    "shoal.exceptions",
)
SCHEMAS = Path("docs/schemas")
LINK = re.compile(r"\]\(([^)\s#]+)")
ITEM = re.compile(r"( *)([-*]|\d+\.) ")
FENCE = re.compile(r" *```")


def main(root: Path) -> int:
    pages = root / "out" / "site-pages"
    shutil.rmtree(pages, ignore_errors=True)
    for file in sorted(wanted(root)):
        to = pages / file.relative_to(root)
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            to.write_text(for_python_markdown(file.read_text()))
        else:
            shutil.copy(file, to)
    with (pages / SCHEMAS / "README.md").open("a") as page:
        page.write(table_of_schemas(pages / SCHEMAS))
    (pages / "reference").mkdir()
    for module in MODULES:
        (pages / "reference" / f"{module}.md").write_text(f"# {module}\n\n::: {module}\n    options: {{show_root_heading: false}}\n")
    listed = "".join(f"\n      - {module}: reference/{module}.md" for module in MODULES)
    config = root / "out" / "mkdocs.yml"  # beside the pages, because MkDocs takes paths from its file's folder
    text = (FOLDER / "mkdocs.yml").read_text().replace("Reference: []", f"Reference:{listed}")
    config.write_text(text.replace("../../out/", "").replace("../../", "../"))
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config]).returncode


def wanted(root: Path) -> set[Path]:
    """Returns the Markdown pages, the other files to which they link, and the schemas."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True)
    files = {root / name for name in names.stdout.splitlines()}
    pages = {f for f in files if f.suffix == ".md" and f.exists()}
    linked = {(page.parent / link).resolve() for page in pages for link in LINK.findall(page.read_text())}
    return pages | (linked & files) | {f for f in files if f.parent == root / SCHEMAS and f.exists()}


def table_of_schemas(folder: Path) -> str:
    """Returns the rows that the repository's page lacks, because they would repeat the files."""
    lines = {f.name: json.loads(f.read_text()).get("x-commands", []) for f in sorted(folder.glob("*.json"))}
    rows = (f"| [{name}]({name}) | {', '.join(f'`{line}`' for line in commands)} |\n" for name, commands in lines.items())
    return "\n| file | printed by |\n|---|---|\n" + "".join(rows)


def for_python_markdown(text: str) -> str:
    """Writes lists as Python-Markdown expects them: four spaces per level where GitHub takes two, and an empty line before a list."""
    out: list[str] = []
    fenced = listed = False
    for line in text.split("\n"):
        inside = listed and line.startswith("  ")
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            item = ITEM.match(line)
            if item and not listed and out and out[-1].strip():
                out.append("")
            listed = bool(item) or (listed and (inside or not line.strip()))
            inside = listed and line.startswith("  ")
        out.append("  " + line if inside else line)
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
