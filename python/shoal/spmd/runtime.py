"""Devices of the program (``torch_xla.runtime``)."""

from __future__ import annotations

import os
import sys

import torch

from shoal.exceptions import InvalidArgument
from shoal.spmd import _world
from shoal.spmd._world import Processes, world

_spmd = False


def use_spmd(auto: bool = False, memory_budget: int | str | None = None, workers: int | None = None) -> None:
    """Makes the program see its devices as one.

    If several processes run the program, all of them adopt rank 0's random states. ``auto`` (or XLA_AUTO_SPMD=1): the first call of a
    module chooses specs for unmarked tensors, within ``memory_budget`` per device; see shoal.spmd.auto_shard. ``workers``:
    the number of processes with the devices, which Shoal places on its cluster and this program drives. Its default is
    ``SHOAL_SPMD_WORKERS``; 0 stands for no such processes."""
    global _spmd
    if workers is not None and _spmd:
        _check_same(workers)
    workers = _workers() if workers is None else workers
    if workers and not _spmd:
        from shoal.spmd import _controller  # imports Shoal's actors, which other programs do not need

        _controller.begin(workers)
    elif not _spmd and isinstance(world(), Processes):
        world().begin()
    _spmd = True
    if auto or os.environ.get("XLA_AUTO_SPMD") == "1":
        from shoal.spmd import _auto

        os.environ["XLA_AUTO_SPMD"] = "1"
        _auto.enable(memory_budget)
    run_eagerly()
    torch.backends.mha.set_fastpath_enabled(False)  # in eval mode torch.nn.TransformerEncoder would make nested tensors


def _check_same(workers: int) -> None:
    """Raises unless a later call of use_spmd wants the same number of workers."""
    there = 0 if _world.controller is None else _world.controller.num_ranks
    if workers != there:
        raise InvalidArgument(
            f"use_spmd(workers={workers}) comes after a call of use_spmd, since when the program has {there or 'no'} workers",
            hint="pass workers= in the first call, or set SHOAL_SPMD_WORKERS",
        )


def _workers() -> int:
    text = os.environ.get("SHOAL_SPMD_WORKERS", "")
    if text and not text.isdecimal():
        raise InvalidArgument(f"SHOAL_SPMD_WORKERS is {text!r}", hint="give the number of processes that the program drives")
    return int(text or 0)


def run_eagerly() -> None:
    """Makes torch.compile run functions as they are: dynamo would trace this package's Python instead of their operators."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")


def is_spmd() -> bool:
    return _spmd


def global_runtime_device_count() -> int:
    """The number of devices with shards."""
    return world().num_devices


def addressable_runtime_device_count() -> int:
    """The number of this process's devices."""
    return len(world().devices)


def global_device_count() -> int:
    """The number of devices that the program sees: one under SPMD."""
    return 1 if _spmd else world().num_devices


def local_device_count() -> int:
    return global_device_count()


def addressable_device_count() -> int:
    return global_device_count()


def world_size() -> int:
    return 1


def global_ordinal() -> int:
    return 0


def local_ordinal() -> int:
    return 0


def process_index() -> int:
    """The rank of this process among those that run the program."""
    return world().rank


def process_count() -> int:
    return world().num_processes


def local_process_count() -> int:
    """The number of processes on this host."""
    count = world().num_processes
    return int(os.environ.get("LOCAL_WORLD_SIZE", count)) if count > 1 else 1


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """The name of each device."""
    return [{"name": f"CPU:{i}"} for i in range(world().num_devices)]


def device_type() -> str:
    return "CPU"


def using_pjrt() -> bool:
    return True


def is_bf16_supported() -> bool:
    return True


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Does nothing: there are no compiled programs to keep."""
