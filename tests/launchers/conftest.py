import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from launching.fixtures import home, module_home, shoal_command

import shoal

__all__ = ["home", "module_home", "python", "shoal_command"]

HERE = Path(__file__).parent
PACKAGE = Path(shoal.__file__).parents[1]
REQUIREMENTS = next(p for p in (Path("requirements-launchers.txt"), HERE.parents[1] / "requirements-launchers.txt") if p.exists())
SWITCH = next(p for p in (PACKAGE / "wheel" / "shoal-fsdp.pth", HERE.parents[1] / "python" / "wheel" / "shoal-fsdp.pth") if p.exists())


@pytest.fixture(scope="session")
def python(tmp_path_factory) -> str:
    """Makes an environment with Ray and TorchX, the packages of this one, and the wheel's .pth file. $TEST_LAUNCHERS: a folder in which to
    keep it."""
    kept = os.environ.get("TEST_LAUNCHERS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("launchers") / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    native = Path(shoal._native.__file__).parents[1]
    (site / "shoal-test.pth").write_text(f"{PACKAGE}\n{native}\n{sysconfig.get_paths()['purelib']}\n{SWITCH.read_text()}")
    words = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", REQUIREMENTS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"the packages of {REQUIREMENTS.name} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(python)
