"""Fixtures of tests that start clusters, for the conftest.py of a folder: a SHOAL_HOME, the command in it, a cluster, actors."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import shoal
from launching.actors import Log
from launching.commands import Command
from launching.leftovers import Leftovers
from launching.warm import warm_site

# Tests must not depend on the environment of the developer who runs them.
_KEPT = ("SHOAL_PYTHON", "SHOAL_SEED", "SHOAL_SEEDS", "SHOAL_SPMD_WALKS")
for name in [n for n in os.environ if n.startswith("SHOAL_") and n not in _KEPT]:
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


@pytest.fixture(scope="module")
def module_cluster(module_home):
    """A cluster with this process as its driver, for all tests of a module: pytestmark = pytest.mark.usefixtures("module_cluster")."""
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


@pytest.fixture
def log():
    """An actor in that cluster."""
    actor = Log.remote()
    yield actor
    shoal.kill(actor)


other = log  # a second one
