"""Muon: updates by orthogonalised momentum."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from shoal.optim._fused import Fused, gradient_of, state_of
from shoal.optim._local import local


class Muon(Fused, torch.optim.Muon):
    """Muon (Jordan et al., 2024; Liu et al., arXiv 2502.16982) as ``torch.optim.Muon`` computes it, also on sharded matrices.

    Parameters: 2-D, on the CPU or CUDA devices (*unverified on hardware*), float32, float64, bfloat16 or float16, plain or ``DTensor``s.
    Momentum and weight decay use each rank's rows. Newton and Schulz's iteration needs the whole matrix, which is gathered in bfloat16, the
    iteration's dtype.
    If one mesh axis shards the matrices, its ranks take turns: one rank runs the iteration and broadcasts the result. If several axes do,
    each rank runs it. ``step`` is therefore collective: every rank needs gradients for the same parameters. At most one whole matrix per
    rank of the axis is held at a time, in bfloat16.

    Arguments, state (``momentum_buffer``) and state dicts are torch's; ``master_weights`` is ``shoal.optim.Adam``'s. Raises ValueError
    for options out of range, InvalidArgument for sparse gradients, Unimplemented for other dtypes and devices.
    """

    device_types = ("cpu", "cuda")

    def __init__(self, params, lr: float | torch.Tensor = 1e-3, *args: Any, master_weights: bool | None = None, **options: Any):
        super().__init__(params, lr, *args, **options)
        self._set_master_weights(master_weights)

    def _keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _update(self, group: dict[str, Any], parameters: list[torch.Tensor], grad_scale: float) -> None:
        together: list[torch.Tensor] = []  # matrices whose iterations run at once, at most one per rank of the mesh axis
        for p in parameters:
            axis = _axis(p)
            if together and (axis != _axis(together[0]) or axis is None or len(together) == axis[0].size(axis[1])):
                self._update_some(together, group, grad_scale)
                together = []
            together.append(p)
        if together:
            self._update_some(together, group, grad_scale)

    def _update_some(self, parameters: list[torch.Tensor], group: dict[str, Any], grad_scale: float) -> None:
        axis = _axis(parameters[0])
        rank = 0 if axis is None else axis[0].get_local_rank(axis[1])
        mine = torch.empty(0)
        for i, p in enumerate(parameters):
            whole = _whole(p, self._momentum(p, group, grad_scale))
            if i == rank:
                mine = _orthogonal(whole, group["ns_coefficients"], group["ns_steps"], group["eps"])
        for i, p in enumerate(parameters):
            result = mine if i == rank else torch.empty(p.shape, dtype=torch.bfloat16, device=p.device)
            if axis is not None:
                dist.broadcast(result, group=axis[0].get_group(axis[1]), group_src=i)
            self._apply(p, result, group)

    def _momentum(self, p: torch.Tensor, group: dict[str, Any], grad_scale: float) -> torch.Tensor:
        """Updates the momentum. Returns this rank's rows of the update before orthogonalisation, in bfloat16."""
        values, g, state = self._values(p), gradient_of(p), self.state[p]
        if grad_scale != 1:
            g.div_(grad_scale)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = self._new_state(p, group, "momentum_buffer")
        buffer = state_of(state, "momentum_buffer", values)
        g = g.to(buffer.dtype)
        buffer.lerp_(g, 1 - group["momentum"])
        return (g.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer).bfloat16()

    def _apply(self, p: torch.Tensor, update: torch.Tensor, group: dict[str, Any]) -> None:
        if isinstance(p, DTensor):
            everywhere = DTensor.from_local(update, p.device_mesh, [Replicate()] * p.device_mesh.ndim, run_check=False)
            update = local(everywhere.redistribute(p.device_mesh, p.placements))
        lr, values = float(group["lr"]), self._values(p)
        master = self._master(p, values) if self._has_master(p, group) else values
        master.mul_(1 - lr * group["weight_decay"])
        master.add_(update, alpha=-lr * _lr_ratio(group["adjust_lr_fn"], *p.shape))
        if master is not values:
            values.copy_(master)


def _axis(p: torch.Tensor) -> tuple[DeviceMesh, int] | None:
    """Returns the mesh axis that shards ``p``, if exactly one does, else None."""
    if not isinstance(p, DTensor):
        return None
    axes = [i for i, placement in enumerate(p.placements) if not isinstance(placement, Replicate) and p.device_mesh.size(i) > 1]
    return (p.device_mesh, axes[0]) if len(axes) == 1 else None


def _whole(p: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    if not isinstance(p, DTensor):
        return update
    return DTensor.from_local(update, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()).full_tensor()


def _orthogonal(x: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> torch.Tensor:
    """Newton and Schulz's quintic iteration, in bfloat16, which brings the singular values of a matrix close to 1."""
    a, b, c = coefficients
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).contiguous()


def _lr_ratio(adjust: str | None, rows: int, columns: int) -> float:
    """The factor of the learning rate that equalises updates over shapes: Jordan's rule, or Liu's for "match_rms_adamw"."""
    return 0.2 * math.sqrt(max(rows, columns)) if adjust == "match_rms_adamw" else math.sqrt(max(1, rows / columns))
