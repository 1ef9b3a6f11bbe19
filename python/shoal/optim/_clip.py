"""Clipping by the norm of all gradients, sharded or not."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from shoal import _native
from shoal._objects.tensors import address_of, in_memory
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.optim._local import DTYPES, local
from shoal.optim._threads import num_threads


class NonFinite(InvalidArgument, RuntimeError):
    """Error for a norm that is NaN or infinite. It is also a RuntimeError, as in torch."""


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scales all gradients in place so that their joint norm is at most ``max_norm``. Returns the norm before, the same on every rank.

    The result is that of ``torch.nn.utils.clip_grad_norm_`` on the gathered gradients: the factor is ``max_norm / (norm + 1e-6)``, at most
    1. Parameters may be any mix of plain tensors and ``DTensor``s of any placements and meshes; shards may be empty.
    Collective: every rank calls it with the same parameters; gradients may be missing on some ranks. Each rank sums over its shards in
    fp64. One all_reduce follows per mesh axis that shards a parameter, of one number per parameter. Plain and replicated gradients count
    once, with this rank's values. ``norm_type``: any order, ``inf`` and ``-inf``. ``foreach`` is accepted and ignored.

    Returns a plain 0-d tensor: fp64 if any gradient is, else fp32. With ``error_if_nonfinite`` a NaN or infinite norm raises NonFinite (an
    InvalidArgument and a RuntimeError) on every rank. Raises Unimplemented for gradients that are sparse, not on the CPU, or of another
    dtype than float32, float64, bfloat16 and float16. Source: Pascanu et al., 2013.
    """
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    order = float(norm_type)
    if math.isnan(order) or math.isnan(float(max_norm)):
        raise InvalidArgument(f"max_norm = {max_norm}, norm_type = {norm_type}", hint="give numbers; float('inf') for the maximum norm")
    for g in gradients:
        _check(g)
    norm = _norm(parameters, order)
    if not any(g.dtype == torch.float64 for g in gradients):
        norm = norm.float()
    if error_if_nonfinite and not norm.isfinite():
        raise NonFinite(
            f"the norm of order {order:g} of the gradients is {norm.item()}",
            reason="NonFinite",
            hint="look for an overflow in the loss, or set error_if_nonfinite=False to scale by it anyway",
        )
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0).item()
    if gradients and factor != 1:  # NaN differs from 1, too
        torch._foreach_mul_([local(g) for g in gradients], factor)
    return norm


def _check(g: torch.Tensor) -> None:
    if g.layout != torch.strided or g.dtype not in DTYPES or g.device.type != "cpu":
        raise Unimplemented(
            f"a gradient is {str(g.dtype)[6:]}, {str(g.layout)[6:]}, on {g.device}: shoal.optim.clip_grad_norm_ takes strided ones of "
            "float32, float64, bfloat16 and float16 on the CPU",
            hint="use torch.nn.utils.clip_grad_norm_",
        )


def _norm(parameters: list[torch.Tensor], order: float) -> torch.Tensor:
    """The norm of the gradients' norms, in fp64, as torch defines it."""
    none = math.inf if order == -math.inf else 0.0
    sums = torch.tensor([none if p.grad is None else _power_sum(_laid_out(p), order) for p in parameters], dtype=torch.float64)
    # By mesh and axis: indices of the parameters that the axis shards. Parameters without a gradient here count, so all ranks have equal
    # lists.
    axes: dict[tuple, list[int]] = {}
    for i, p in enumerate(parameters):
        if isinstance(p, DTensor):
            for axis, placement in enumerate(p.placements):
                if not isinstance(placement, Replicate) and p.device_mesh.size(axis) > 1:
                    axes.setdefault((p.device_mesh, axis), []).append(i)
    for (mesh, axis), which in axes.items():
        sums[which] = _over_ranks(sums[which], order, mesh.get_group(axis))
    if order == 0:
        return (sums != 0).sum().double()  # as in torch, the number of nonzero gradients
    if not math.isinf(order):
        sums = sums.sqrt() if order == 2 else sums.pow(1 / order)
    return torch.linalg.vector_norm(sums, order) if len(sums) > 0 else torch.zeros((), dtype=torch.float64)


def _over_ranks(sums: torch.Tensor, order: float, group: dist.ProcessGroup) -> torch.Tensor:
    if not math.isinf(order):
        dist.all_reduce(sums, group=group)
        return sums
    # The norm of order inf is a maximum, and that of order -inf a maximum of negated values. MAX may drop NaN, so NaN flags are reduced
    # alongside.
    sign, nan = math.copysign(1.0, order), sums.isnan()
    both = torch.cat([sign * sums.masked_fill(nan, 0.0), nan.double()])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    sums, nan = both.chunk(2)
    return (sign * sums).masked_fill(nan != 0, math.nan)


def _laid_out(p: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of the gradient. A gradient whose placements differ from the parameter's (it may be Partial) is
    redistributed."""
    g = p.grad
    if isinstance(g, DTensor) and g.placements != p.placements:
        g = g.redistribute(p.device_mesh, p.placements)
    return local(g)


def _power_sum(t: torch.Tensor, order: float) -> float:
    t = in_memory(t)
    return _native.power_sum(DTYPES[t.dtype], address_of(t), t.numel(), order, num_threads())
