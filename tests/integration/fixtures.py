"""A SHOAL_HOME for a test or a module, and the command in it. (Fixtures of every folder that starts clusters: see its conftest.py.)"""

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

# Tests do not depend on the developer's own environment.
for name in [n for n in os.environ if n.startswith("SHOAL_") and n != "SHOAL_PYTHON"]:
    del os.environ[name]
os.environ["SHOAL_MEMORY_USAGE_THRESHOLD"] = "0"  # nor on the memory use of other processes
os.environ["SHOAL_TASK_RETRY_DELAY_MS"] = "10"  # tests of the delay set their own
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
    """A SHOAL_HOME for one test. Processes and files that outlive the test are an error."""
    yield from home_of_its_own()


@pytest.fixture(scope="module")
def module_home(request):
    """As `home`, for a module whose tests share a cluster."""
    yield from home_of_its_own("pytest", *(["numpy"] if hasattr(request.module, "np") else []))


@pytest.fixture
def shoal_command(home):
    command = Command(home)
    yield command
    command.end()
