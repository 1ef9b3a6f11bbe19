"""Devices of the program (``torch_xla.runtime``)."""

from __future__ import annotations

import os

from shoal._core.telemetry import may_record
from shoal.exceptions import InvalidArgument
from shoal.spmd._auto import choice as _choice
from shoal.spmd._controller import workers as _workers
from shoal.spmd._layout import devices as _devices
from shoal.spmd._layout import processes as _processes
from shoal.spmd._layout.devices import (
    addressable_device_count,
    addressable_runtime_device_count,
    device_type,
    global_device_count,
    global_ordinal,
    global_runtime_device_attributes,
    global_runtime_device_count,
    initialize_cache,
    is_bf16_supported,
    is_spmd,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    using_pjrt,
    world_size,
)

__all__ = [
    "addressable_device_count",
    "addressable_runtime_device_count",
    "device_type",
    "global_device_count",
    "global_ordinal",
    "global_runtime_device_attributes",
    "global_runtime_device_count",
    "initialize_cache",
    "is_bf16_supported",
    "is_spmd",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "use_spmd",
    "using_pjrt",
    "world_size",
]


def use_spmd(auto: bool = False, memory_budget: int | str | None = None, workers: int | None = None) -> None:
    """Makes the program see its devices as one. Sets XLA_USE_SPMD, as torch_xla does: deleting the variable makes ``is_spmd`` False.

    If several processes run the program, all of them adopt rank 0's random states. ``auto`` (or XLA_AUTO_SPMD=1): the first call of a
    module chooses specs for unmarked tensors, within ``memory_budget`` per device; see shoal.spmd.auto_shard. ``workers``:
    the number of processes with the devices, which Shoal places on its cluster and this program drives. Its default is
    ``SHOAL_SPMD_WORKERS``; 0 stands for no such processes."""
    if workers is not None and _devices.has_begun():
        _check_same(workers)
    workers = _num_workers() if workers is None else workers
    if workers and not _devices.has_begun():
        _workers.begin(workers)
        _devices.see_one()
    else:
        _devices.begin()
    if may_record():
        from shoal.spmd._fsdp import run_record  # late: loads FSDPv2's wrapper, which other programs do not need

        run_record.begin()
    if auto or os.environ.get("XLA_AUTO_SPMD") == "1":
        os.environ["XLA_AUTO_SPMD"] = "1"
        _choice.enable(memory_budget)


def _check_same(workers: int) -> None:
    """Raises InvalidArgument if a later call of use_spmd asks for another number of workers than the first."""
    there = 0 if _processes.controller is None else _processes.controller.num_ranks
    if workers != there:
        raise InvalidArgument(
            f"use_spmd(workers={workers}) follows an earlier call of use_spmd, which gave the program {there or 'no'} workers",
            hint="pass workers= in the first call, or set SHOAL_SPMD_WORKERS",
        )


def _num_workers() -> int:
    text = os.environ.get("SHOAL_SPMD_WORKERS", "")
    if text and not text.isdecimal():
        raise InvalidArgument(f"SHOAL_SPMD_WORKERS is {text!r}", hint="give the number of processes that the program drives")
    return int(text or 0)
