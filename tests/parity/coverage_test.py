"""The tests that COVERAGE.md names exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMED = sorted(set(re.findall(r"`(\w+)::(\w+)`", (HERE / "COVERAGE.md").read_text())))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_named_test_exists(file, name):
    assert re.search(rf"^def {name}\(", (HERE / f"{file}.py").read_text(), re.MULTILINE), f"{file}.py has no {name}"
