import pytest
from fixtures import *  # noqa: F403
from semantics_actors import Gate, Recorder

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
