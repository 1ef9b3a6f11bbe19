"""Eight simulated devices by torch_xla's names, and a small model that tests train on them."""
# ruff: noqa: E402  imports of torch_xla come after install()

from __future__ import annotations

import os

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import numpy as np
import torch
from torch import nn

import shoal.spmd

shoal.spmd.install()

import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

xr.use_spmd()
DEVICE = xm.xla_device()
MESH = xs.Mesh(np.arange(8), (8, 1), ("fsdp", "model"))
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


def batch() -> torch.Tensor:
    x = X.to(DEVICE)
    xs.mark_sharding(x, MESH, ("fsdp", None))
    return x


def trained(model, x, step=lambda f: f, context=lambda: torch.autocast("cpu", enabled=False), optimizer=torch.optim.AdamW):
    """The losses of three steps."""
    optimizer = optimizer(model.parameters(), lr=1e-2)

    def one(x):
        optimizer.zero_grad()
        with context():
            loss = model(x).float().square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        return loss.detach()

    one = step(one)
    return [one(x).item() for _ in range(3)]
