"""The process group of a program with one process per device, made from the launcher's environment."""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch.distributed import distributed_c10d

from shoal._distributed.ranks import require_process_group
from shoal.exceptions import InvalidArgument


def ensure() -> None:
    """Initialises the default process group unless the program did. A later ``init_process_group`` of the program (for
    torch.distributed.checkpoint) finds the group and returns."""
    if dist.is_initialized():
        _check(dist.get_backend())
        return
    require_process_group()
    init = dist.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *args, **kwargs) -> None:
        if not dist.is_initialized():  # the program may have called destroy_process_group
            return init(backend, *args, **kwargs)
        _check(backend or "gloo")
        dist.init_process_group = distributed_c10d.init_process_group = init
        return None

    dist.init_process_group = distributed_c10d.init_process_group = init_process_group


def _check(backend: str) -> None:
    if "gloo" not in backend and "shoal" not in backend:
        raise InvalidArgument(
            f"the process group is of backend {backend!r}: SPMD moves shards itself and is not mixed with another library's collectives",
            hint="use a group for the CPU: torch.distributed.init_process_group('gloo')",
        )
