"""The devices that the program sees, and whether it sees them as one."""

from __future__ import annotations

import os
import sys

import torch

from shoal._core.variables import variable
from shoal.spmd._layout.processes import Processes, world

SWITCH = "XLA_USE_SPMD"  # torch_xla's variable, which programs read and delete
# Set beside the switch by use_spmd(). A child process inherits both, so that its import of shoal.spmd does not switch SPMD on.
BY_CALL = "XLA_USE_SPMD_BY_CALL"
_begun = False


def begin() -> None:
    """Makes the program see its devices as one. If several processes run the program, all of them adopt rank 0's random states."""
    if not _begun and isinstance(world(), Processes):
        world().begin()
    see_one()


def see_one(one: bool = True) -> None:
    global _begun
    _begun = one
    if one:
        if not _is_on():
            os.environ[SWITCH] = os.environ[BY_CALL] = "1"
        run_eagerly()
        torch.backends.mha.set_fastpath_enabled(False)  # the fast path, in eval mode, would make nested tensors


def run_eagerly() -> None:
    """Makes torch.compile run functions as they are: dynamo would trace this package's Python instead of their operators."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")


def is_spmd() -> bool:
    """True after use_spmd(), unless the program has deleted XLA_USE_SPMD since."""
    return _begun and _is_on()


def has_begun() -> bool:
    """True after use_spmd()."""
    return _begun


def is_switched_on() -> bool:
    """True if the environment asks for SPMD before the program calls use_spmd()."""
    return _is_on() and BY_CALL not in os.environ


def _is_on() -> bool:
    return os.environ.get(SWITCH, "").upper() in ("1", "ON", "TRUE", "Y", "YES")


def global_runtime_device_count() -> int:
    """The number of devices with shards."""
    return world().num_devices


def addressable_runtime_device_count() -> int:
    """The number of this process's devices."""
    return len(world().devices)


def global_device_count() -> int:
    """The number of devices that the program sees: one under SPMD."""
    return 1 if is_spmd() else world().num_devices


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
    return int(variable("LOCAL_WORLD_SIZE", count)) if count > 1 else 1


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
