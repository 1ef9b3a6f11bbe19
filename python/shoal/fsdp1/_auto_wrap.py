"""Auto-wrapping: the plan (the modules that become units, and their arguments) and its execution, innermost first."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.nn.parallel import DistributedDataParallel

from shoal.exceptions import InvalidArgument
from shoal.fsdp._module import FSDPModule
from shoal.fsdp1 import wrap
from shoal.fsdp1._names import is_unit
from shoal.fsdp1._precision import keep_in_fp32

Plan = dict[nn.Module, dict[str, Any]]


def check_mix(module: nn.Module, auto_wrap: bool) -> None:
    """Raises InvalidArgument for a module that DDP, ``fully_shard`` or torch's FSDP manages, or that is a unit already."""
    for name, m in module.named_modules():
        where = f"{name or 'the module'} ({m._get_name()})"
        if isinstance(m, DistributedDataParallel):
            raise InvalidArgument(
                f"{where} is wrapped in DistributedDataParallel: it keeps whole parameters on every rank and reduces them itself",
                hint="wrap the bare module (ddp.module): FSDP takes the place of DDP",
            )
        if isinstance(m, TorchFSDP) or (isinstance(m, TorchFSDPModule) and not isinstance(m, FSDPModule)):
            raise InvalidArgument(f"{where} is sharded by torch.distributed.fsdp", hint="shard the whole model with one of them")
        if isinstance(m, FSDPModule) and not is_unit(m):
            raise InvalidArgument(
                f"{where} is a unit of fully_shard already: FSDP's wrapper does not mix with it",
                hint="call fully_shard on the outer modules, too, or FullyShardedDataParallel on all of them",
            )
        if auto_wrap and is_unit(m):
            raise InvalidArgument(
                f"FSDP auto wrapping requires modules to not already have FSDP applied but found {name} in\n{module}\n"
                f"{where} is a unit already",
                hint="wrap by hand or by policy; ignored_states keeps a module out of both",
            )


def plan(root: nn.Module, policy: Any, ignored_modules: set[nn.Module], ignored: set[nn.Parameter], arguments: dict[str, Any]) -> Plan:
    """Returns the modules below ``root`` that the policy selects as units, with the arguments of each. Changes nothing.

    A module used in two places (a tied embedding) stays in the unit around both.
    """
    if policy is wrap.transformer_auto_wrap_policy or policy is wrap._transformer_auto_wrap_policy:
        wrap.transformer_auto_wrap_policy()  # raises TypeError, because the layer classes are missing
    shared = _used_outside(root)
    if hasattr(policy, "_run_policy"):
        found = {m: kwargs for m, kwargs in policy._run_policy(root, ignored_modules, arguments).items() if m is not root}
    elif callable(policy):
        found = {}
        _recurse(root, policy, ignored_modules, ignored, arguments, found, shared, is_root=True)
    else:
        raise TypeError(f"auto_wrap_policy should be a policy or a function, got {type(policy).__name__}")
    mixed_precision = arguments.get("mixed_precision")
    if mixed_precision is not None:
        classes = tuple(mixed_precision._module_classes_to_ignore)
        for m in root.modules():
            if m is not root and m not in ignored_modules and isinstance(m, classes):
                found[m] = {**found.get(m, arguments), "mixed_precision": None}
    left = [m for m in found if m in shared]
    for m in left:
        del found[m]
    if left:
        names = ", ".join(sorted(name for name, m in root.named_modules() if m in left))
        warnings.warn(f"{names}: shared with other modules, so the unit around them has the parameters", stacklevel=4)
    return found


def _recurse(module, policy, ignored_modules, ignored, arguments, found: Plan, shared, is_root: bool = False) -> int:
    """Adds units below ``module`` to the plan. Returns the number of parameters in them. Calls the policy as torch does."""
    numel = sum(p.numel() for p in module.parameters() if p not in ignored)
    if not policy(module=module, recurse=True, nonwrapped_numel=numel):
        return 0
    wrapped = sum(
        _recurse(child, policy, ignored_modules, ignored, arguments, found, shared)
        for child in module.children()
        if child not in ignored_modules
    )
    if is_root or not policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
        return wrapped
    found[module] = dict(arguments)
    return wrapped if module in shared else numel


def _used_outside(root: nn.Module) -> set[nn.Module]:
    """Returns modules that are also used elsewhere: they have two parents, or a parameter that a module outside of them has, too."""
    parents: dict[nn.Module, int] = {}
    owners: dict[int, set[nn.Module]] = {}
    for m in root.modules():
        for child in m._modules.values():
            if child is not None:
                parents[child] = parents.get(child, 0) + 1
        for p in m._parameters.values():
            if p is not None:
                owners.setdefault(id(p), set()).add(m)
    found = set()
    for m in root.modules():
        inside = set(m.modules())
        if parents.get(m, 0) > 1 or any(not owners[id(p)] <= inside for p in m.parameters()):
            found.add(m)
    return found


def execute(root: nn.Module, units: Plan, make: Callable[..., nn.Module], lowered: bool) -> None:
    """Replaces every module of the plan by a unit, innermost first. ``lowered``: the enclosing units compute in a lower precision than
    fp32."""

    def visit(module: nn.Module) -> None:
        for name, child in list(module._modules.items()):
            if child is None or is_unit(child):
                continue
            visit(child)
            if child in units:
                if lowered and units[child].get("mixed_precision") is None:
                    keep_in_fp32(child)
                setattr(module, name, make(child, **copy.copy(units[child])))

    visit(root)
