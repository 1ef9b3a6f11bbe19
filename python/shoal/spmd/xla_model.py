"""The logical device, and functions that scripts call once per step (``torch_xla.core.xla_model``)."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from shoal._core.telemetry import Activity, at
from shoal.spmd import runtime
from shoal.spmd._layout import processes as _processes
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.processes import world
from shoal.spmd._marks.loading import Loaded, placed_on_device, verify


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The one device that the program sees."""
    return DEVICE


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    return [str(DEVICE)] if runtime.is_spmd() else [f"xla:{i}" for i in range(runtime.global_runtime_device_count())]


def xla_device_hw(device: Any) -> str:
    return "CPU"


def is_master_ordinal(local: bool = True) -> bool:
    """True in the process that prints and writes for all."""
    return runtime.process_index() == 0


def get_local_ordinal() -> int:
    return runtime.process_index()


def get_ordinal() -> int:
    return runtime.process_index()


def xrt_world_size() -> int:
    return 1


_closures: list[tuple[Callable[..., Any], tuple]] = []


def add_step_closure(closure: Callable[..., Any], args: tuple = (), run_async: bool = False) -> None:
    """Runs a closure at the next step's end (``mark_step``, ``torch_xla.sync``, the next batch of an MpDeviceLoader), in the order of the
    calls. Closures of the last step run at the program's end."""
    if not _closures:
        atexit.unregister(mark_step)
        atexit.register(mark_step)
    _closures.append((closure, args))


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Ends a step: operators have run or are sent to the ranks now, then closures run."""
    if _processes.controller is not None:
        _processes.controller.flush()
    waiting, _closures[:] = _closures[:], []
    for closure, args in waiting:
        closure(*args)


def wait_device_ops(devices: Any = ()) -> None:
    """Waits until all recorded operators have run, and runs closures. Without ranks operators have run at once."""
    mark_step()
    if _processes.controller is not None:
        _processes.controller.wait()


def optimizer_step(optimizer: torch.optim.Optimizer, barrier: bool = False, optimizer_args: dict | None = None) -> Any:
    return optimizer.step(**(optimizer_args or {}))


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Prints to ``fd`` (default: stdout), in the first process."""
    if is_master_ordinal():
        print(*args, file=fd or sys.stdout, flush=flush)


def set_rng_state(seed: int | torch.Tensor, device: Any = None) -> None:
    """Sets the random state: ``seed`` is a number, or a state from get_rng_state."""
    torch.set_rng_state(seed) if isinstance(seed, torch.Tensor) else torch.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Returns torch.get_rng_state(), because the device uses the host's generator."""
    return torch.get_rng_state()


def send_cpu_data_to_device(data: Any, device: Any, input_sharding: Any = None) -> Any:
    """Copies host tensors to the device, with ``input_sharding`` (a ShardingSpec)."""
    loaded: list[Loaded] | None = [] if world().verifies else None
    placed = placed_on_device(data, input_sharding, loaded)
    verify(loaded)
    return placed


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Calls torch.save on ``data`` with its tensors on the host, in the first process unless ``master_only`` is False. All processes must
    call it."""
    with at(Activity.SAVE):
        on_host = _maybe_convert_to_cpu(data)
        if not master_only or is_master_ordinal():
            torch.save(on_host, file_or_path)
        rendezvous("xla_model.save")


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """Returns the same structure with its tensors on the host. Libraries call this function."""
    return tree_map(lambda a: a.detach().cpu() if convert and isinstance(a, torch.Tensor) else a, data)


def rendezvous(tag: str, payload: bytes = b"", replicas: Any = ()) -> list[bytes]:
    """Waits for all processes and returns their payloads."""
    return world().passed(payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Applies ``reduce_fn`` to the data of all processes. Device tensors arrive on the host."""
    return reduce_fn(world().passed(_maybe_convert_to_cpu(data)))


REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """Multiplies tensors by ``scale``: the program is the one participant, whose tensors have all rows. A list is changed in place."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    for t in inputs:
        t.mul_(scale)
    return None


def all_gather(value: torch.Tensor, dim: int = 0, groups: Any = None, output: Any = None, pin_layout: bool = True) -> torch.Tensor:
    """Returns the tensor itself, because there is one participant."""
    return value if output is None else output.copy_(value)


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True) -> None:
    """Does nothing: gradients are those of the whole batch."""


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Bytes of this host's memory: ``bytes_used`` by this process, ``bytes_limit`` of the machine."""
    page = os.sysconf("SC_PAGE_SIZE")
    used = int(Path("/proc/self/statm").read_text().split()[1]) * page
    return {"bytes_used": used, "bytes_limit": os.sysconf("SC_PHYS_PAGES") * page}


def set_replication(device: Any, devices: Any) -> None:
    """Does nothing: the program is the one participant of all_reduce."""


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Any = None, pin_layout: bool = True) -> None:
    """Does nothing: the program has one copy of each tensor."""


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the gradients of the optimizer's parameters. Libraries call this function."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Does nothing: the program has one copy of each parameter."""


def xla_real_devices(devices: Any = None) -> list[str]:
    """Names of the devices behind the logical one."""
    return [str(a["name"]) for a in runtime.global_runtime_device_attributes()]


class RateTracker:
    """A counter with rates: ``add(n)`` counts. ``rate()`` is the count per second since its last call, smoothed;
    ``global_rate()`` is that since the start."""

    def __init__(self, smooth_factor: float = 0.4):
        self._kept, self._begin = smooth_factor, time.monotonic()
        self._last, self._total, self._count, self._rate = self._begin, 0.0, 0.0, None

    def add(self, count: float) -> None:
        self._count += count
        self._total += count

    def rate(self) -> float:
        now = time.monotonic()
        fresh = self._count / max(now - self._last, 1e-9)
        self._rate = fresh if self._rate is None else self._kept * self._rate + (1 - self._kept) * fresh
        self._last, self._count = now, 0.0
        return self._rate

    def global_rate(self) -> float:
        return self._total / max(time.monotonic() - self._begin, 1e-9)
