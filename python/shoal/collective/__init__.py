"""Collectives over torch tensors, among the ranks of a mesh: in shared memory where they share a host.

``import shoal.collective as sc`` and, on every rank, ``sc.all_reduce(tensor)``. Every function takes

- ``group``: a one-dimensional ``DeviceMesh``, a ``ProcessGroup``, a :class:`Group`, or None for the default process group, which is
  initialised from the environment if need be. Ranks are counted within it.
- ``async_op``: True returns a :class:`Work` at once, and the operation goes on while the caller computes; the tensors may be used again
  after ``work.wait()``.
- ``label`` and ``step``: what the operation is called in errors and warnings, for example a node of a step graph and its step.
- ``timeout``: seconds, by default ``SHOAL_TIMEOUT`` (600).

Ranks make the same calls in the same order. Where they do not, every rank raises ``InvalidArgument`` that names both calls, or who waits
for whom; a rank that died is named by ``ActorDiedError``. After such an error the group is at its end (``Group.reform`` goes on without the
lost). Tensors are on the CPU, of any dtype but quantised ones; float32, float64, float16, bfloat16, int8, uint8, int32, int64 and bool are
reduced, in the order of ranks and half precision in float32, others raise ``Unimplemented``.
"""

from shoal.collective._functions import (
    Window,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    read,
    recv,
    reduce_scatter,
    send,
    window,
)
from shoal.collective._group import Group, Work, group

__all__ = [
    "Group",
    "Window",
    "Work",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "group",
    "read",
    "recv",
    "reduce_scatter",
    "send",
    "window",
]
