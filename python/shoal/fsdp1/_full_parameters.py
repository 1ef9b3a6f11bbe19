"""``summon_full_params``: replaces the sharded parameters by whole ones inside a ``with`` block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shoal.exceptions import DeadlineExceeded, InvalidArgument, Unimplemented
from shoal.fsdp._engine.optimizers import write
from shoal.fsdp._errors import SummonedInside
from shoal.fsdp1._names import is_unit
from shoal.fsdp1.api import ShardingStrategy


def units_of(module: nn.Module) -> list[nn.Module]:
    """Returns the FSDP units in a tree of modules, outermost first."""
    return [m for m in module.modules() if is_unit(m)]


@contextmanager
def unsharded(unit: nn.Module) -> Iterator[None]:
    """Holds the lease on one unit, whose modules then have whole parameters. Every rank must enter; a timeout names the missing rank."""
    try:
        unit.unshard()
    except DeadlineExceeded as error:
        hint = "whole parameters are gathered: every rank must call this, not one inside `if rank == 0:` (rank0_only does that)"
        raise DeadlineExceeded(error.message, reason=error.reason, hint=hint, context=error.context) from None
    try:
        yield
    finally:
        unit.reshard()


def whole_values(unit: nn.Module, keep: bool = True, joined: bool = False) -> dict[nn.Parameter, torch.Tensor]:
    """Returns copies of one unit's whole parameters in their own dtype, by sharded parameter; empty unless ``keep``. With tensor
    parallelism they are DTensors of its mesh, or plain if ``joined``. Every rank must call it."""
    values = {}
    with unsharded(unit):
        shown = {m.parameter: m.module._parameters[m.attribute].detach() for m in unit._managed}
        for p, t in shown.items():
            if t.dtype == p.dtype:
                values[p] = copied(t) if joined and isinstance(t, DTensor) else t.clone() if keep else None
    # the unsharded parameter has a lower precision, so the shards are gathered
    for p, t in shown.items():
        if t.dtype != p.dtype:
            whole = copied(p.detach())
            values[p] = rows_of(whole, t) if isinstance(t, DTensor) and not joined else whole
    return values if keep else {}


def copied(t: DTensor) -> torch.Tensor:
    """Returns a whole copy of a DTensor, because ``full_tensor`` of a replicated one is the live tensor. Every rank must call it."""
    whole = t.full_tensor()
    return whole.clone() if whole.untyped_storage().data_ptr() == t.to_local().untyped_storage().data_ptr() else whole


def rows_of(whole: torch.Tensor, like: DTensor) -> DTensor:
    """Shards a whole tensor as ``like`` is: every rank takes its rows of its own copy. A DTensor of another mesh is gathered first."""
    whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def first_rank(unit: nn.Module) -> bool:
    """Returns True on the first rank of the unit's mesh, the rank of ``rank0_only``."""
    return not any(unit._mesh.get_coordinate() or ())


def _check(units: list[nn.Module], writeback: bool, rank0_only: bool, offload_to_cpu: bool, with_grads: bool) -> None:
    if torch._C._current_graph_task_id() != -1 or any(u._get_fsdp_state().forwarding for u in units):
        raise SummonedInside(
            "Cannot manually unshard parameters during forward/backward: gradients of the copies would be lost",
            hint="enter summon_full_params before the forward, under torch.no_grad()",
        )
    if writeback and rank0_only:
        raise Unimplemented(
            "writeback=True and rank0_only=True is not supported yet: other ranks would write nothing",
            hint="pass writeback=False, or all ranks",
        )
    if with_grads and offload_to_cpu:
        raise Unimplemented(
            f"with_grads={with_grads}, use_orig_params=True, offload_to_cpu={offload_to_cpu} is not supported yet",
            hint="leave out one of them",
        )
    if offload_to_cpu and any(u.sharding_strategy is ShardingStrategy.NO_SHARD for u in units):
        raise Unimplemented("offload_to_cpu=True and NO_SHARD is not supported yet", hint="leave out offload_to_cpu")
    if offload_to_cpu and not rank0_only:
        warnings.warn("offload_to_cpu without rank0_only: every rank of a host gets a copy in its memory", stacklevel=4)


@contextmanager
def summon_full_params(
    module: nn.Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Gives modules whole parameters inside the block, as plain tensors, copied on every rank. The end restores the sharded ones.

    ``recurse``: include all units below ``module``. ``writeback``: keep writes to the copies; every rank stores its own rows.
    ``rank0_only``: only the first rank gets whole parameters. ``with_grads``: include whole ``.grad``. ``offload_to_cpu``: the copies lie
    in host memory.
    Every rank must enter and leave it, outside of forward and backward.
    Raises AssertionError inside a forward or backward. Raises NotImplementedError for combinations that FSDP1 refuses (writeback with
    rank0_only, with_grads with offload_to_cpu).
    """
    units = [u for u in (units_of(module) if recurse else [module] if is_unit(module) else []) if not u._summoned]
    _check(units, writeback, rank0_only, offload_to_cpu, with_grads)
    copies: dict[nn.Parameter, nn.Parameter] = {}
    try:
        for unit in units:
            shown = not rank0_only or first_rank(unit)
            values = whole_values(unit, keep=shown)
            for m in unit._managed:
                p = m.parameter
                grad = copied(p.grad) if with_grads and p.grad is not None and p not in copies else None
                if not shown:
                    continue
                if p not in copies:
                    value = values[p].cpu() if offload_to_cpu else values[p]
                    copies[p] = nn.Parameter(value, requires_grad=p.requires_grad)
                    copies[p].grad = grad
                m.module._parameters[m.attribute] = copies[p]
            unit._summoned = unit._get_fsdp_state().replaced = True
        yield
    finally:
        for unit in units:
            if unit._summoned:
                unit._summoned = unit._get_fsdp_state().replaced = False
                for m in unit._managed:
                    m.module._parameters[m.attribute] = m.parameter
        if writeback and copies:
            _write_back(module, copies)


@torch.no_grad()
def _write_back(module: nn.Module, copies: dict[nn.Parameter, nn.Parameter]) -> None:
    with write(module):
        for p, copy in copies.items():
            if copy.shape != p.shape:
                raise InvalidArgument(f"a parameter of shape {tuple(p.shape)} was given the shape {tuple(copy.shape)}")
            p.to_local().copy_(rows_of(copy.data, p).to_local())
            if p.grad is not None and copy.grad is not None:
                p.grad.to_local().copy_(rows_of(copy.grad, p.grad).to_local())
