"""Clipping by the norm of all gradients, sharded or not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from shoal import _native
from shoal._core.telemetry import note_norm
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
    once, with this rank's values. In a training with ``deterministic=True`` the sums are those of rows, whose bits do not depend on the
    shards; one all_reduce of a number per row follows. In all but the last part of a batch, such a training gets 0, and nothing is scaled.
    ``norm_type``: any order, ``inf`` and ``-inf``. ``foreach`` is accepted and ignored.

    Returns a plain 0-d tensor: fp64 if any gradient is, else fp32. With ``error_if_nonfinite`` a NaN or infinite norm raises NonFinite (an
    InvalidArgument and a RuntimeError) on every rank. On devices torch's operators compute norm and factor, and the host waits for neither,
    unless ``error_if_nonfinite`` is set. Raises Unimplemented for gradients that are sparse, on several devices, or of another
    dtype than float32, float64, bfloat16 and float16. Source: Pascanu et al., 2013.
    """
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    order = float(norm_type)
    if math.isnan(order) or math.isnan(float(max_norm)):
        raise InvalidArgument(f"max_norm = {max_norm}, norm_type = {norm_type}", hint="give numbers; float('inf') for the maximum norm")
    part = next((q for q in map(_part, parameters) if q is not None), None)
    if part is not None and not part.last:
        return torch.zeros(())
    device = local(parameters[0]).device if parameters else torch.device("cpu")
    for g in gradients:
        _check(g, device)
    if part is not None:
        norm = _joined(_sums_by_rows(parameters, order, device), order)
    elif _by_operators(device):
        norm = _joined(_sums_on_device(parameters, order, device), order)
    else:
        norm = _norm(parameters, order)
    if not any(g.dtype == torch.float64 for g in gradients):
        norm = norm.float()
    if error_if_nonfinite and not norm.isfinite():
        raise NonFinite(
            f"the norm of order {order:g} of the gradients is {norm.item()}",
            reason="NonFinite",
            hint="look for an overflow in the loss, or set error_if_nonfinite=False to scale by it anyway",
        )
    if norm.device.type == "cpu":  # the host would wait for a device
        note_norm(norm.item())
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    if _by_operators(device) and gradients:
        torch._foreach_mul_([local(g) for g in gradients], factor)
    elif gradients and factor.item() != 1:  # NaN differs from 1, too
        torch._foreach_mul_([local(g) for g in gradients], factor.item())
    return norm


def _by_operators(device: torch.device) -> bool:
    """True where the library has no kernels for the norm."""
    return device.type != "cpu"


def _check(g: torch.Tensor, device: torch.device) -> None:
    if g.layout != torch.strided or g.dtype not in DTYPES or local(g).device != device:
        raise Unimplemented(
            f"a gradient is {str(g.dtype)[6:]}, {str(g.layout)[6:]}, on {g.device}: shoal.optim.clip_grad_norm_ takes strided ones of "
            f"float32, float64, bfloat16 and float16 on one device, and others are on {device}",
            hint="use torch.nn.utils.clip_grad_norm_",
        )


def _norm(parameters: list[torch.Tensor], order: float) -> torch.Tensor:
    """The norm of the gradients' norms, in fp64, as torch defines it."""
    none = math.inf if order == -math.inf else 0.0
    sums = torch.tensor([none if p.grad is None else _power_sum(_laid_out(p), order) for p in parameters], dtype=torch.float64)
    for (mesh, axis), which in _axes(parameters).items():
        sums[which] = _over_ranks(sums[which], order, mesh.get_group(axis))
    return _joined(sums, order)


def _sums_on_device(parameters: list[torch.Tensor], order: float, device: torch.device) -> torch.Tensor:
    """The parameters' sums of powers over all ranks in fp64, by torch's operators. The host sends no indices to the device, because
    it would wait for that."""
    none = torch.full((), math.inf if order == -math.inf else 0.0, dtype=torch.float64, device=device)
    sums = []
    for p in parameters:
        g = None if p.grad is None else _laid_out(p)
        if g is None or g.numel() == 0:
            sums.append(none)
            continue
        norm = torch.linalg.vector_norm(g, order, dtype=torch.float64)
        sums.append(norm if order == 0 or math.isinf(order) else norm.pow(order))
    for (mesh, axis), which in _axes(parameters).items():
        over_ranks = _over_ranks(torch.stack([sums[i] for i in which]), order, mesh.get_group(axis))
        for i, one in zip(which, over_ranks.unbind(), strict=True):
            sums[i] = one
    return torch.stack(sums) if sums else torch.zeros((0,), dtype=torch.float64, device=device)


def _axes(parameters: list[torch.Tensor]) -> dict[tuple, list[int]]:
    """By mesh and axis: indices of the parameters that the axis shards. Parameters without a gradient here count, so all ranks have equal
    lists."""
    axes: dict[tuple, list[int]] = {}
    for i, p in enumerate(parameters):
        if isinstance(p, DTensor):
            for axis, placement in enumerate(p.placements):
                if not isinstance(placement, Replicate) and p.device_mesh.size(axis) > 1:
                    axes.setdefault((p.device_mesh, axis), []).append(i)
    return axes


def _joined(sums: torch.Tensor, order: float) -> torch.Tensor:
    """The norm of the parameters' norms, of which ``sums`` has the sums of powers."""
    if order == 0:
        return (sums != 0).sum().double()  # as in torch, the number of nonzero gradients
    if not math.isinf(order):
        sums = sums.sqrt() if order == 2 else sums.pow(1 / order)
    return torch.linalg.vector_norm(sums, order) if len(sums) > 0 else torch.zeros((), dtype=torch.float64)


def _part(p: torch.Tensor) -> Any:
    """The part of a batch in which a sharded parameter's gradients are; None outside of deterministic trainings."""
    unit = getattr(p, "_shoal_state", None)
    return None if unit is None else unit.settings.part


def _sums_by_rows(parameters: list[torch.Tensor], order: float, device: torch.device) -> torch.Tensor:
    """The parameters' sums of powers, first of each row of the sharded dim, then of all rows in their order: the same bits for any shards.
    The parameters are those of a model on one mesh of shards."""
    dims = [next((q.dim for q in p.placements if isinstance(q, Shard)), 0) if isinstance(p, DTensor) else 0 for p in parameters]
    counts = [p.shape[dim] if p.dim() > 0 else 1 for p, dim in zip(parameters, dims, strict=True)]
    rows = torch.zeros(sum(counts), dtype=torch.float64, device=device)
    of_parameter, mesh = rows.split(counts), next(p.device_mesh for p in parameters if isinstance(p, DTensor))
    for p, dim, mine in zip(parameters, dims, of_parameter, strict=True):
        if p.grad is None:
            continue
        if isinstance(p, DTensor):
            begin, end = p._shoal_state.data.own_bounds(p.shape[dim])  # type: ignore[attr-defined]
            mine = mine[begin:end]
        elif mesh.get_local_rank() != 0:  # a plain tensor counts once
            continue
        if _by_operators(device):
            power_sums_of_rows(_laid_out(p), dim, order, mine)
        else:
            _power_sums_of_rows(_laid_out(p), dim, order, mine)
    if mesh.size() > 1:
        dist.all_reduce(rows, group=mesh.get_group())  # exact: one rank has a row, and the others add 0
    once = order if math.isinf(order) else 1.0  # order 1 adds up these sums, none of which is negative
    none = math.inf if order == -math.inf else 0.0
    if _by_operators(device):
        missing = torch.full((), none, dtype=torch.float64, device=device)
        return torch.stack([missing if p.grad is None else _added(r, once) for p, r in zip(parameters, of_parameter, strict=True)])
    joined = [_native.power_sum("float64", r.data_ptr(), r.numel(), once, 1) for r in of_parameter]
    return torch.tensor([none if p.grad is None else s for p, s in zip(parameters, joined, strict=True)], dtype=torch.float64)


def _power_sums_of_rows(t: torch.Tensor, dim: int, order: float, out: torch.Tensor) -> None:
    if out.numel() == 0:
        return
    t = in_memory(t if dim == 0 else t.movedim(dim, 0).contiguous())
    rows, row_numel = out.numel(), t.numel() // out.numel()
    _native.row_power_sums(DTYPES[t.dtype], address_of(t), rows, row_numel, order, out.data_ptr(), num_threads())


# Elements of a gradient that become float64 at a time.
_AT_A_TIME = 1 << 22


def power_sums_of_rows(t: torch.Tensor, dim: int, order: float, out: torch.Tensor) -> None:
    """``_power_sums_of_rows`` by torch's operators, for devices. Element by element, because a reduction's order depends on the shape."""
    if out.numel() == 0 or t.numel() == 0:
        return
    t = t.movedim(dim, 0).reshape(out.numel(), -1)
    at_a_time = max(1, _AT_A_TIME // max(1, t.shape[1]))
    for piece, sums in zip(t.split(at_a_time), out.split(at_a_time), strict=True):
        powers = piece.double().abs_()
        if order == 0:
            powers = (powers != 0).double()
        elif not math.isinf(order):
            powers = powers.square_() if order == 2 else powers.pow_(order)
        sums.copy_(_added(powers, order if math.isinf(order) else 1.0))


def _added(t: torch.Tensor, order: float) -> torch.Tensor:
    """Adds along the last dim in halves, in an order that depends on its size only. With order ``inf`` or ``-inf``: the extreme value."""
    if math.isinf(order):
        return t.amax(-1) if order > 0 else t.amin(-1)
    while (size := t.shape[-1]) > 1:
        half = size // 2
        added = t[..., :half] + t[..., half : 2 * half]
        t = added if size % 2 == 0 else torch.cat([added, t[..., -1:]], dim=-1)
    return t.squeeze(-1)


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
