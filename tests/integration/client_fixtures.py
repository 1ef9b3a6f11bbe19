"""Fixtures: a cluster for the module, and two actors in it."""

import pytest
from shared_actors import Log

import shoal

__all__ = ["cluster", "log", "other"]


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


@pytest.fixture
def log():
    actor = Log.remote()
    yield actor
    shoal.kill(actor)


@pytest.fixture
def other():
    actor = Log.remote()
    yield actor
    shoal.kill(actor)
