import pytest
from cast import Gate, Recorder
from fixtures import *  # noqa: F403

import shoal as ray


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    """One cluster for the module."""
    ray.init(num_cpus=8)
    yield
    ray.shutdown()


def _ends(actor):
    yield actor
    ray.kill(actor)


@pytest.fixture
def recorder():
    yield from _ends(Recorder.remote())


@pytest.fixture
def gate():
    yield from _ends(Gate.remote())
