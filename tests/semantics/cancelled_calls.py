"""Functions that tests cancel, each at a gate or without resources, and one that cancels."""

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
    """Notes at the gate whether it was cancelled or finished."""
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
    """Cancels references in a list, because direct arguments would be resolved."""
    for ref in refs:
        ray.cancel(ref, **how)
