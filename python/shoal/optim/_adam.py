"""Adam and AdamW in one pass over memory."""

from __future__ import annotations

from typing import Any

import torch

from shoal import _native
from shoal.optim import _kernels
from shoal.optim._fused import Fused, Scaling
from shoal.optim._local import local


class Adam(Fused, torch.optim.Adam):
    """Adam (Kingma and Ba, 2015; AMSGrad: Reddi et al., 2018) as ``torch.optim.Adam`` computes it, fused. One pass reads and writes
    parameters, gradients and moments once, with up to ``torch.get_num_threads()`` threads.

    Parameters: on the CPU or CUDA devices, float32, float64, bfloat16 or float16, plain or ``DTensor`` (each rank updates its rows, without
    communication). On a device the update is a kernel on torch's current stream (*unverified on hardware*). Torch's fused operator takes
    its place if this build has no kernels for CUDA, and under a GradScaler, whose tensors it reads without a wait of the host.
    Gradients may have another of these dtypes. Arithmetic is fp32 (fp64 for float64); subnormal values count as zero.

    Arguments are torch's; ``lr`` is a float or a tensor of one element. ``fused`` and ``foreach`` are accepted and ignored;
    ``capturable=True`` and ``differentiable=True`` raise Unimplemented. ``master_weights``: with None or True, bfloat16 and float16
    parameters have an fp32 copy and fp32 moments. With False they have neither, as in torch.

    State: ``step``, ``exp_avg``, ``exp_avg_sq``, with ``amsgrad`` ``max_exp_avg_sq``, with a master copy ``master_param``. State dicts are
    interchangeable with ``torch.optim.Adam``'s. Raises ValueError for options out of range, Unimplemented for other dtypes and devices,
    InvalidArgument for sparse gradients and parameters with gaps.
    """

    device_types = ("cpu", "cuda")
    has_operator = True

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        master_weights: bool | None = None,
        **options: Any,  # torch's further options: foreach, maximize, capturable, differentiable, fused; Adam: decoupled_weight_decay
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
        self._set_master_weights(master_weights)

    def _keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def _update(self, group: dict[str, Any], parameters: list[torch.Tensor], grad_scale: float) -> None:
        keys = self._keys(group)
        shards = []
        batches: dict[tuple, list[_native.UpdateRow]] = {}  # by the device and dtypes of their arrays
        for p in parameters:
            state = self.state[p]
            for key in keys:
                if key not in state:
                    state[key] = self._new_state(p, group, key)
            step = state.get("step")
            if step is None or step.dtype != torch.float32 or not step.is_cpu:
                count = 0.0 if step is None else step.item()
                if self._protection is None:
                    step = torch.tensor(count, dtype=torch.float32, device="cpu")
                else:
                    step = self._protection.home(p, "step").fill_(count)
                state["step"] = step
            shard = self._shard(p, state, group, keys)
            if shard is None:
                self._count(step)
            else:
                shards.append((p, shard))
                row = shard.row()
                row.step = step.data_ptr()
                batches.setdefault((shard.values.device, shard.dtypes()), []).append(row)
        beta1, beta2 = group["betas"]
        for (device, dtypes), rows in batches.items():
            _kernels.kernels_on(device).adam(
                dtypes,
                rows,
                lr=float(group["lr"]),
                beta1=float(beta1),
                beta2=float(beta2),
                eps=group["eps"],
                weight_decay=float(group["weight_decay"]),
                decoupled=group["decoupled_weight_decay"],
                maximize=group["maximize"],
                grad_scale=grad_scale,
                **self._record(),
            )
        self._written(shards, grad_scale)

    def _update_by_torch(self, group: dict[str, Any], parameters: list[torch.Tensor], scaling: Scaling) -> None:
        keys = self._keys(group)
        steps: dict[torch.device, list[torch.Tensor]] = {}
        for p in parameters:
            state, device = self.state[p], local(p).device
            if (step := state.get("step")) is None:
                step = torch.zeros((), dtype=torch.float32, device=device)
            state["step"] = step.to(device, torch.float32)
            steps.setdefault(device, []).append(state["step"])
        for counts in steps.values():
            torch._foreach_add_(counts, 1)
        operator = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        step_of = {id(local(p)): self.state[p]["step"] for p in parameters}
        for shards, gradients in self._shards_for_torch(group, parameters, keys, scaling.grad_scale is not None):
            device = shards[0].values.device
            states: list[list[torch.Tensor]] = [[shard.states[i] for shard in shards] for i in range(len(keys))]
            operator(
                [shard.updated for shard in shards],
                gradients,
                *(states if group["amsgrad"] else [*states, []]),
                [step_of[id(shard.values)] for shard in shards],
                amsgrad=group["amsgrad"],
                lr=scaling.option_on(group["lr"], device),
                beta1=float(group["betas"][0]),
                beta2=float(group["betas"][1]),
                weight_decay=float(group["weight_decay"]),
                eps=group["eps"],
                maximize=group["maximize"],
                **scaling.on(device),
            )
        for device, counts in steps.items():
            if (found_inf := scaling.on(device)["found_inf"]) is not None:
                torch._foreach_sub_(counts, [found_inf] * len(counts))


class AdamW(Adam, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter, 2019) as ``torch.optim.AdamW`` computes it: ``shoal.optim.Adam`` with decoupled weight decay. State
    dicts are interchangeable with ``torch.optim.AdamW``'s."""

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        master_weights: bool | None = None,
        **options: Any,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, master_weights=master_weights, **options)
