"""Checks the constructor's arguments and translates them into those of ``fully_shard``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffload as _CPUOffload
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._errors import OtherType
from shoal.fsdp._parameters.mesh import shards_of
from shoal.fsdp1.api import BackwardPrefetch, MixedPrecision, ShardingStrategy

HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
_KEEPS_PARAMETERS = (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)

# Argument names that programs use and FSDP lacks, each with its replacement.
_UNKNOWN = {
    "flatten_parameters": "it was FairScale's: leave it out, parameters are never flattened",
    "reshard_after_forward": "pass sharding_strategy=ShardingStrategy.FULL_SHARD (True) or SHARD_GRAD_OP (False)",
    "move_params_to_cpu": "pass cpu_offload=CPUOffload(offload_params=True)",
    "compute_dtype": "pass mixed_precision=MixedPrecision(param_dtype=...)",
    "mp_policy": "it belongs to fully_shard: pass mixed_precision=MixedPrecision(...)",
    "offload_policy": "it belongs to fully_shard: pass cpu_offload=CPUOffload(offload_params=True)",
    "ignored_params": "pass ignored_states=...",
    "ignored_parameters": "pass ignored_states=...",
    "mesh": "pass device_mesh=...",
    "device_ids": "it belongs to DistributedDataParallel: pass device_id=...",
    "find_unused_parameters": "it belongs to DistributedDataParallel: leave it out, a parameter without a gradient counts as zero",
}


def renamed(others: dict[str, Any], auto_wrap_policy: Any) -> Any:
    """Returns the auto-wrap policy, which programs may also pass under the argument's former name. Raises TypeError for other unknown
    arguments."""
    if "fsdp_auto_wrap_policy" in others:
        if auto_wrap_policy is not None:
            raise TypeError("fsdp_auto_wrap_policy is the former name of auto_wrap_policy: pass only the latter")
        warnings.warn("fsdp_auto_wrap_policy is now called auto_wrap_policy", FutureWarning, stacklevel=3)
        auto_wrap_policy = others.pop("fsdp_auto_wrap_policy")
    for name in others:
        instead = f": {_UNKNOWN[name]}" if name in _UNKNOWN else ""
        raise TypeError(f"FullyShardedDataParallel has no argument {name}{instead}")
    return auto_wrap_policy


def strategy_of(given: ShardingStrategy | str | None) -> ShardingStrategy:
    if given is None:
        return ShardingStrategy.FULL_SHARD
    if isinstance(given, str):
        if given not in ShardingStrategy.__members__:
            raise InvalidArgument(f"there is no sharding strategy {given!r}", hint=f"there are {', '.join(ShardingStrategy.__members__)}")
        warnings.warn(f"sharding_strategy={given!r} is taken as ShardingStrategy.{given}: write that", FutureWarning, stacklevel=3)
        return ShardingStrategy[given]
    if not isinstance(given, ShardingStrategy):
        raise TypeError(f"sharding_strategy should be a ShardingStrategy, got {type(given).__name__}")
    return given


def check(name: str, value: Any, types: type | tuple[type, ...], *, optional: bool = True) -> None:
    if (value is None and optional) or isinstance(value, types):
        return
    wanted = " or ".join(t.__name__ for t in (types if isinstance(types, tuple) else (types,)))
    raise TypeError(f"{name} should be a {wanted}{' or None' if optional else ''}, got {type(value).__name__}")


def check_all(
    *,
    cpu_offload: Any,
    mixed_precision: Any,
    backward_prefetch: Any,
    param_init_fn: Any,
    device_mesh: Any,
    **flags: Any,
) -> None:
    check("cpu_offload", cpu_offload, _CPUOffload)
    check("mixed_precision", mixed_precision, MixedPrecision)
    check("backward_prefetch", backward_prefetch, BackwardPrefetch)
    check("device_mesh", device_mesh, DeviceMesh)
    if param_init_fn is not None and not callable(param_init_fn):
        raise OtherType(
            f"Expected {param_init_fn} to be callable but got {type(param_init_fn)}: param_init_fn should be a function of a module"
        )
    for name, value in flags.items():
        check(name, value, bool, optional=False)


def device_of(module: nn.Module, ignored: set[nn.Parameter], device_id: int | str | torch.device | None) -> torch.device:
    """The unit's device: ``device_id``, or its parameters' device. A number is an accelerator's index, or the CPU without accelerators.
    Raises Unimplemented for a device that is neither the CPU nor a CUDA device, InvalidArgument for one that is not this rank's."""
    device = _chosen_device(module, ignored, device_id)
    if device.type == "cpu":
        return device
    leave = 'pass device_id=torch.device("cpu"), or leave torch its FSDP1: no install(), no SHOAL_FSDP'
    if device.type != "cuda":
        raise Unimplemented(f"FSDP on {device}: only the CPU and CUDA devices are supported", hint=leave)
    if not torch.cuda.is_available():
        raise InvalidArgument(f"FSDP on {device}: torch finds no CUDA device here", hint=leave)
    current = torch.cuda.current_device()
    if device.index not in (None, current):
        raise InvalidArgument(
            f"FSDP on {device}, but this rank's current device is cuda:{current}", hint=f"call torch.cuda.set_device({device.index}) before"
        )
    return torch.device("cuda", current)


def _chosen_device(module: nn.Module, ignored: set[nn.Parameter], device_id: int | str | torch.device | None) -> torch.device:
    if device_id is not None:
        if isinstance(device_id, bool) or not isinstance(device_id, (int, str, torch.device)):
            raise TypeError(f"device_id should be a number or a torch.device, got {type(device_id).__name__}")
        if isinstance(device_id, int):
            kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            if kind is None:
                _warn_of_no_accelerator(device_id)
            return torch.device(kind.type, device_id) if kind is not None else torch.device("cpu")
        return torch.device(device_id)
    for p in module.parameters():
        if p not in ignored and p.device.type not in ("cpu", "meta"):
            return p.device
    return torch.device("cpu")


@cache  # warns once, because all units of a model have the same argument
def _warn_of_no_accelerator(device_id: int) -> None:
    warnings.warn(
        f'device_id={device_id} counts accelerators, and there is none here: FSDP trains on the CPU, as with device_id=torch.device("cpu")',
        stacklevel=5,
    )


def fully_shard_arguments(
    strategy: ShardingStrategy, mesh: DeviceMesh, mixed_precision: MixedPrecision | None, cpu_offload: _CPUOffload | None
) -> dict[str, Any]:
    """Translates FSDP1's arguments into FSDP2's. The wrapper casts inputs itself, because FSDP2 has no ``cast_root_forward_inputs``."""
    arguments: dict[str, Any] = {"mesh": shards_of(mesh), "reshard_after_forward": False if strategy in _KEEPS_PARAMETERS else None}
    if mixed_precision is not None:
        arguments["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=mixed_precision.param_dtype, reduce_dtype=mixed_precision.reduce_dtype, cast_forward_inputs=False
        )
    if cpu_offload is not None and cpu_offload.offload_params:
        arguments["offload_policy"] = CPUOffloadPolicy()
    return arguments


def ignored_of(
    module: nn.Module, ignored_modules: Iterable[nn.Module] | None, ignored_states: Iterable[nn.Parameter | nn.Module] | None
) -> tuple[set[nn.Module], set[nn.Parameter]]:
    """Returns the ignored (modules, parameters): those given, all below them, and those that inner units ignore."""
    if ignored_modules is not None and ignored_states is not None:
        raise InvalidArgument("Cannot pass both ignored_modules and ignored_states at the same time. Please just pass ignored_states.")
    name = "ignored_modules" if ignored_modules is not None else "ignored_states"
    given = ignored_modules if ignored_modules is not None else ignored_states
    try:
        items = list(given) if given is not None else []
    except TypeError:
        raise TypeError(f"{name} should be an iterable, got {type(given).__name__}") from None
    kinds = (nn.Module,) if name == "ignored_modules" else (nn.Module, nn.Parameter)
    if len({isinstance(item, nn.Module) for item in items}) > 1 or not all(isinstance(item, kinds) for item in items):
        wanted = "nn.Module" if name == "ignored_modules" else "all nn.Parameter or all nn.Module"
        types = sorted({type(item) for item in items}, key=repr)
        raise OtherType(f"{name} expects {wanted} list elements but got types {types}")
    if any(hasattr(item, "_fsdp_wrapped_module") for item in items):
        raise InvalidArgument("`ignored_modules` should not include FSDP modules", hint="ignore the module before it is wrapped")
    modules = {m for item in items if isinstance(item, nn.Module) for m in item.modules()}
    parameters = {item for item in items if isinstance(item, nn.Parameter)}
    parameters |= {p for m in modules for p in m._parameters.values() if p is not None}
    for inner in module.modules():
        parameters |= inner.__dict__.get("_ignored_params", set())
        modules |= inner.__dict__.get("_ignored_modules", set())
    return modules, parameters
