import pytest
from counted_actors import Holder
from graphs import compiled, stages
from internals.core import pool
from launching.fixtures import home, module_home, shoal_command
from semantics_actors import GUARD_S, Gate, Recorder, Tries
from two_zones import run

import shoal as ray

__all__ = ["compiled", "home", "module_home", "run", "shoal_command", "stages"]


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


@pytest.fixture
def holder():
    yield from _ends(Holder.remote())


@pytest.fixture
def tries():
    yield from _ends(Tries.remote())


@pytest.fixture
def workers_stay(monkeypatch):
    """Idle workers of functions do not end during a test, even on a slow machine."""
    monkeypatch.setattr(pool.FunctionPool, "IDLE_S", GUARD_S)
