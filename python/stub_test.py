"""The stub ``shoal/_native.pyi`` has the bindings' names, signatures and docstrings, as nanobind generates them."""

import difflib
import os
import subprocess
import sys
from pathlib import Path

import shoal

STUB = Path(shoal.__file__).with_name("_native.pyi")


def test_the_stub_is_the_bindings(tmp_path):
    made = tmp_path / "_native.pyi"
    paths = os.pathsep.join(p for p in sys.path if p)
    argv = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "shoal._native", "-o", str(made)]
    subprocess.run(argv, check=True, env={**os.environ, "PYTHONPATH": paths})
    known, now = STUB.read_text().splitlines(), made.read_text().splitlines()
    changes = "\n".join(difflib.unified_diff(known, now, "python/shoal/_native.pyi", "the bindings", lineterm=""))
    assert not changes, f"the bindings changed without their stub; `./dev stub` writes it anew\n{changes}"
