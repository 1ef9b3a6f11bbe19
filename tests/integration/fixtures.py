"""Fixtures of every folder whose tests start clusters (in its conftest.py): a SHOAL_HOME for a test or a module, and the command in it."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from command import Command
from leak_check import Leftovers
from warm import warm_site

__all__ = ["home", "module_home", "shoal_command"]

# Tests must not depend on the environment of the developer who runs them.
for name in [n for n in os.environ if n.startswith("SHOAL_") and n not in ("SHOAL_PYTHON", "SHOAL_SEED", "SHOAL_SEEDS")]:
    del os.environ[name]
os.environ["SHOAL_MEMORY_USAGE_THRESHOLD"] = "0"  # the node ends no worker because of the memory that other processes use
os.environ["SHOAL_TASK_RETRY_DELAY_MS"] = "10"  # a short delay; tests of the delay itself set another
sys.dont_write_bytecode = True


def home_of_its_own(*warm):
    base = Path(tempfile.mkdtemp(prefix="shoal-test."))
    home = base / "home"
    home.mkdir(mode=0o700)
    os.environ["SHOAL_HOME"] = str(home)
    path = os.environ.get("PYTHONPATH", "")
    if warm:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [warm_site(base / "site", *warm), path]))
    leftovers = Leftovers(home)
    try:
        yield home
        leftovers.assert_nothing()
    finally:
        del os.environ["SHOAL_HOME"]
        os.environ["PYTHONPATH"] = path
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def home():
    """A SHOAL_HOME for one test. It is an error if a process or file of the test outlives it."""
    yield from home_of_its_own()


@pytest.fixture(scope="module")
def module_home(request):
    """A SHOAL_HOME as `home`, for all tests of a module, which share a cluster."""
    yield from home_of_its_own("pytest", *(["numpy"] if hasattr(request.module, "np") else []))


@pytest.fixture
def shoal_command(home):
    command = Command(home)
    yield command
    command.end()
