"""Collectives on torch tensors, over the ranks of a mesh; ranks of one host use shared memory.

``import shoal.collective as sc`` and, on every rank, ``sc.all_reduce(tensor)``. Every function takes

- ``group``: a one-dimensional ``DeviceMesh``, a ``ProcessGroup``, a :class:`Group`, or None for the default process group, which is
  initialised from the environment if needed. Rank arguments are positions in the group.
- ``async_op``: with True, the function returns a :class:`Work` at once, and the operation continues in the background. The tensors may be
  used again after ``work.wait()``.
- ``label`` and ``step``: the name of the operation in errors and warnings, for example a node of a step graph and its step.
- ``timeout``: seconds, by default ``SHOAL_TIMEOUT`` (600).

Ranks have to make the same calls in the same order. Otherwise every rank raises an ``InvalidArgument`` that names both calls, or the
waiting and the missing ranks. ``ActorDiedError`` names a rank that died. After such an error the group is unusable; ``Group.reform`` makes
a group of the remaining ranks.
Tensors are on the CPU, or each rank's on its CUDA device (*unverified on hardware*), of any dtype except quantised ones. Reductions support
float32, float64, float16, bfloat16, int8, uint8, int32, int64 and bool, and raise ``Unimplemented`` for others. They add in the order of
ranks, half precision in float32; NCCL has an order of its own. On devices an operation is ordered with the current stream, and ``window``
and ``read`` raise ``Unimplemented``.
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
