"""AdamW, one pass over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from shoal import _native
from shoal.exceptions import Unimplemented


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019) as ``torch.optim.AdamW`` computes it, fused: parameters, gradients and both moments are read
    once and written once.

    For fp32 CPU parameters, sharded (``DTensor``s of ``fully_shard``: each rank updates its rows) or plain. The state dict has the keys of
    ``torch.optim.AdamW`` (``step``, ``exp_avg``, ``exp_avg_sq``). Raises ValueError for options out of range, Unimplemented for options
    of ``torch.optim.AdamW`` that it has not got (``maximize``, ``amsgrad``, also in a state dict), TypeError for other dtypes or devices.
    """

    def __init__(self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2):
        for name, value, low, high in (
            ("lr", lr, 0, None),
            ("beta1", betas[0], 0, 1),
            ("beta2", betas[1], 0, 1),
            ("eps", eps, 0, None),
            ("weight_decay", weight_decay, 0, None),
        ):
            if not (value >= low and (high is None or value < high)):
                raise ValueError(f"{name} = {value} is out of range")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @staticmethod
    def check_options(options: dict[str, Any]) -> None:
        """Raises Unimplemented when a group with these options would be updated otherwise than they say."""
        asked = [name for name in ("maximize", "amsgrad") if options.get(name)]
        if options.get("decoupled_weight_decay") is False and options.get("weight_decay"):
            asked.append("weight_decay as of Adam (added to the gradient)")
        if asked:
            raise Unimplemented(f"shoal.optim.AdamW has no {' and no '.join(asked)}", hint="use torch.optim.AdamW")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.check_options(param_group)
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            self.check_options(group)
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            work: dict[int, list] = {}  # by step: parameters that were added later count their own
            keep = []
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["step"] += 1
                shard = [_local(t) for t in (p, p.grad, state["exp_avg"], state["exp_avg_sq"])]
                if shard[0].numel() == 0:
                    continue
                for t in shard:
                    if t.dtype != torch.float32 or t.device.type != "cpu" or not t.is_contiguous():
                        raise TypeError(f"shoal.optim.AdamW updates contiguous fp32 tensors on the CPU, not {t.dtype} on {t.device}")
                keep.append(shard)
                work.setdefault(int(state["step"].item()), []).append((*(t.data_ptr() for t in shard), shard[0].numel()))
            for step, shards in work.items():
                _native.adamw(shards, float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"], step)
            for shard in keep:  # autograd shall see that the parameter changed
                torch._C._autograd._unsafe_set_version_counter([shard[0]], [shard[0]._version + 1])
        return loss


def _local(t: torch.Tensor) -> torch.Tensor:
    return t._local_tensor if isinstance(t, DTensor) else t.detach()
