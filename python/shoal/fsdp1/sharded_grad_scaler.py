"""Loss scaling over ranks: all ranks skip a step together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as _ShardedGradScaler
from torch.distributed.tensor import DTensor

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(_ShardedGradScaler):
    """``torch.amp.GradScaler`` for sharded gradients: an infinite or NaN value on any rank of ``process_group`` skips the step on all.

    ``device``: the parameters' device type. The other arguments are ``torch.amp.GradScaler``'s. Semantics:
    torch.distributed.fsdp.sharded_grad_scaler.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: dist.ProcessGroup | None = None,
        **others,
    ):
        if "device_type" in others:
            raise TypeError("a GradScaler has no device_type: its first argument is device")
        if others:
            raise TypeError(f"ShardedGradScaler has no argument {next(iter(others))}")
        super().__init__(
            device or ("cuda" if torch.cuda.is_available() else "cpu"),
            init_scale,
            backoff_factor,
            growth_factor,
            growth_interval,
            enabled,
            process_group if process_group is not None else dist.group.WORLD,
        )

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool = True
    ) -> dict[torch.device, torch.Tensor]:
        """Unscales this rank's rows in place and combines ``found_inf`` over ranks. An optimizer that unscales by itself does not
        communicate, so that this must happen here."""
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    rows = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                    if rows.numel():
                        torch._amp_foreach_non_finite_check_and_unscale_([rows], found_inf, inv_scale)
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=self.process_group)
        return {found_inf.device: found_inf}
