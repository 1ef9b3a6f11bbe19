"""Devices of the program (``torch_xla.runtime``)."""

from __future__ import annotations

import os
import sys
from functools import cache

import torch

from shoal.exceptions import InvalidArgument, Unimplemented

_spmd = False


@cache
def _num_devices() -> int:
    text = os.environ.get("SHOAL_SPMD_DEVICES", "")
    if not text:
        return len(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) == 0:
        raise InvalidArgument(f"SHOAL_SPMD_DEVICES is {text!r}", hint="give the number of devices that this process plays")
    return int(text)


def use_spmd(auto: bool = False) -> None:
    """From now on the program sees its devices as one. ``auto``: Shoal chooses shardings; not there yet."""
    global _spmd
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Unimplemented(
            f"SPMD over the {os.environ['WORLD_SIZE']} processes of this job is not there yet: each would play all devices",
            hint="run the program as one process; SHOAL_SPMD_DEVICES says how many devices it plays",
        )
    if auto:
        raise Unimplemented("use_spmd(auto=True) is not there yet", hint="mark parameters and inputs with mark_sharding")
    _spmd = True
    run_eagerly()


def run_eagerly() -> None:
    """Functions of torch.compile run as they are: dynamo would trace this package's Python instead of their operators."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")


def is_spmd() -> bool:
    return _spmd


def global_runtime_device_count() -> int:
    """Devices that shards are spread over."""
    return _num_devices()


def addressable_runtime_device_count() -> int:
    """Devices of this process."""
    return _num_devices()


def global_device_count() -> int:
    """Devices that the program sees: one under SPMD."""
    return 1 if _spmd else _num_devices()


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
    return 0


def process_count() -> int:
    return 1


def local_process_count() -> int:
    return 1


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """Per device its name."""
    return [{"name": f"CPU:{i}"} for i in range(_num_devices())]


def device_type() -> str:
    return "CPU"


def using_pjrt() -> bool:
    return True


def is_bf16_supported() -> bool:
    return True


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Nothing: there are no compiled programs to keep."""
