"""Every snippet of the tutorial and the how-tos (docs/howto), run in the order of its page, in one folder per page."""

import re
from pathlib import Path

import pytest
from snippets import Shell, snippets_of

ROOT = next(p for p in (Path(), Path(__file__).parents[2]) if (p / "docs" / "tutorial.md").exists())
PAGES = [Path("docs/tutorial.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs" / "howto").glob("*.md"))]
WITHOUT_COMMANDS = {"sbatch": "Slurm", "kubectl": "Kubernetes", "pip": "install", "deepspeed": "DeepSpeed", "ray": "Ray"}


def test_all_code_is_in_blocks_that_can_be_run():
    assert len(PAGES) == 8
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert re.findall(r"^    \S", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE) == []
        snippets = snippets_of(str(page), text)
        assert {s.language for s in snippets} <= {"python", "sh"}
        assert any(s.not_run is None for s in snippets)
        for left_out in (s for s in snippets if s.not_run):
            words = {word for name, word in WITHOUT_COMMANDS.items() if re.search(rf"\b{name}\b", left_out.text)}
            assert any(word in left_out.not_run for word in words), (page, left_out.not_run)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_does_what_it_says(page, home, tmp_path):
    run = Shell(tmp_path)
    for snippet in snippets_of(str(page), (ROOT / page).read_text()):
        if snippet.not_run:
            continue
        lines = snippet.text
        if snippet.language == "python":
            (tmp_path / snippet.file).write_text(snippet.text)
            lines = snippet.command or ""
        out = run(lines)
        if snippet.prints is not None:
            assert out == snippet.prints
