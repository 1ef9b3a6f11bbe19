"""Stochastic gradient descent in one pass over memory."""

from __future__ import annotations

from typing import Any

import torch

from shoal import _native
from shoal.optim import _kernels
from shoal.optim._fused import Fused, Scaling


class SGD(Fused, torch.optim.SGD):
    """SGD with momentum, dampening and Nesterov's momentum (Sutskever et al., 2013) as ``torch.optim.SGD`` computes it, fused.

    Parameters, devices, gradients, arguments, ``master_weights``, threads and errors are as for ``shoal.optim.Adam``. State:
    ``momentum_buffer`` with momentum, ``master_param`` with a master copy. State dicts are interchangeable with ``torch.optim.SGD``'s.
    """

    device_types = ("cpu", "cuda")
    has_operator = True

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        master_weights: bool | None = None,
        **options: Any,  # torch's further options: maximize, foreach, differentiable, fused
    ):
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, **options)
        self._set_master_weights(master_weights)

    def _keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _update(self, group: dict[str, Any], parameters: list[torch.Tensor], grad_scale: float) -> None:
        keys = self._keys(group)
        shards = []
        batches: dict[tuple, list[_native.UpdateRow]] = {}  # by True at the first step of the momentum, device, dtypes
        for p in parameters:
            state = self.state[p] if keys else self.state.get(p, {})
            first = bool(keys) and state.get("momentum_buffer") is None
            if first:
                state["momentum_buffer"] = self._new_state(p, group, "momentum_buffer")
            shard = self._shard(p, state, group, keys)
            if shard is not None:
                shards.append((p, shard))
                row = shard.row()
                if self._protection is not None:
                    row.step = self._protection.home(p, "step").data_ptr()
                batches.setdefault((first, shard.values.device, shard.dtypes()), []).append(row)
        for (first, device, dtypes), rows in batches.items():
            _kernels.kernels_on(device).sgd(
                dtypes,
                rows,
                lr=float(group["lr"]),
                momentum=group["momentum"],
                dampening=group["dampening"],
                weight_decay=float(group["weight_decay"]),
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                first=first,
                grad_scale=grad_scale,
                **self._record(),
            )
        self._written(shards, grad_scale)

    def _update_by_torch(self, group: dict[str, Any], parameters: list[torch.Tensor], scaling: Scaling) -> None:
        keys = self._keys(group)
        begun = {True: [], False: []} if keys else {True: parameters}
        for p in parameters if keys else ():
            begun[self.state[p].get("momentum_buffer") is not None].append(p)
        for has_momentum, some in begun.items():
            # A step that a GradScaler skips leaves a buffer of zeros, from which the next one begins with the gradient. Dampening would
            # weaken that gradient: only then the host waits to learn whether the first step is made.
            if not has_momentum and group["dampening"] and scaling.skips:
                continue
            for shards, gradients in self._shards_for_torch(group, some, keys, scaling.grad_scale is not None):
                device = shards[0].values.device
                torch._fused_sgd_(
                    [shard.updated for shard in shards],
                    gradients,
                    [shard.states[0] for shard in shards] if keys else [],
                    weight_decay=float(group["weight_decay"]),
                    momentum=group["momentum"],
                    lr=scaling.option_on(group["lr"], device),
                    dampening=group["dampening"],
                    nesterov=group["nesterov"],
                    maximize=group["maximize"],
                    is_first_step=not has_momentum,
                    **scaling.on(device),
                )
