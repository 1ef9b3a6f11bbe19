"""Functions that tests cancel while they wait at a gate or for resources, and a function that cancels others."""

import os

import pytest
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import TaskCancelledError


def is_cancelled(ref):
    with pytest.raises(TaskCancelledError, match="was cancelled"):
        ray.get(ref, timeout=GUARD_S)


@ray.remote(num_cpus=0)
def waits(gate, who="", name=""):
    ray.get(gate.arrive.remote(who or os.getpid(), name))
    return who


@ray.remote(num_cpus=0)
def stubborn(gate):
    try:
        ray.get(gate.arrive.remote("stubborn"))
    except KeyboardInterrupt:
        return "as it likes"


@ray.remote(num_cpus=0)
def tells(gate, name):
    """Notes at the gate that it was cancelled, or that it finished."""
    try:
        ray.get(gate.arrive.remote("begins", name))
    except KeyboardInterrupt:
        gate.note.remote("cancelled")
        raise
    gate.note.remote("done")


@ray.remote(num_cpus=0)
def plus_one(x):
    return x + 1


@ray.remote(num_cpus=0)
def cancels(refs, **how):
    """Cancels the references in a list; a reference that is itself an argument would be resolved."""
    for ref in refs:
        ray.cancel(ref, **how)
