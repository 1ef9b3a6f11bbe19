"""Two-dimensional training: weights and activations of linear layers are split over the mesh's axes ``fsdp`` and ``model`` by marks alone.

    SHOAL_SPMD_DEVICES=8 python spmd_2d.py

The first layer of a block has columns split over ``model``. The second one consumes them, so its product is a sum over ``model``. Both
weights are also split over ``fsdp``, as the batch is.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm

WIDTH, HIDDEN, BLOCKS, STEPS = 16, 64, 2, 10


class Mlp(nn.Module):
    """Blocks of two linear layers each. ``mark(tensor, spec)`` is called for their activations."""

    def __init__(self, mark):
        super().__init__()
        self.norm, self.up, self.down, self.mark = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), mark

    def forward(self, x):
        columns = F.gelu(self.up(self.norm(x)))
        self.mark(columns, ("fsdp", "model"))
        out = x + self.down(columns)
        self.mark(out, ("fsdp", None))
        return out


def network(mark) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Mlp(mark) for _ in range(BLOCKS)))


def train(model: nn.Module, batches) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.roll(1, dims=1))
        loss.backward()
        optimizer.step()
        xm.mark_step()
        losses.append(loss.item())
    return losses


def main():
    xr.use_spmd()
    device, num_devices = xm.xla_device(), xr.global_runtime_device_count()
    model_axis = 2 if num_devices % 2 == 0 else 1
    mesh = xs.Mesh(np.arange(num_devices), (num_devices // model_axis, model_axis), ("fsdp", "model"))

    def mark(t, spec):
        return xs.mark_sharding(t, mesh, spec)

    model = network(mark).to(device)
    for block in model:
        mark(block.up.weight, ("model", "fsdp"))  # shape (HIDDEN, WIDTH)
        mark(block.up.bias, ("model",))
        mark(block.down.weight, ("fsdp", "model"))
    first = xs.XLAShardedTensor(model[0].up.weight)
    xm.master_print(f"mesh {dict(mesh.shape())}; a device holds {tuple(first.local_shards[0].data.shape)} of {tuple(first.shape)}")

    data = torch.randn(STEPS, 4 * num_devices, WIDTH, generator=torch.Generator().manual_seed(1))
    marked = [x.to(device) for x in data]
    for x in marked:
        mark(x, ("fsdp", None))
    losses = train(model, marked)
    for step, loss in enumerate(losses):
        xm.master_print(f"step {step} loss {loss:.6f}")
    plain = network(lambda t, spec: None)
    torch.testing.assert_close(losses, train(plain, data), rtol=1e-5, atol=1e-6)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)
    xm.master_print("as plain torch")


if __name__ == "__main__":
    main()
