"""Data-parallel training: a small residual network with batch normalisation, whose images a sharded loader splits over all devices.

    SHOAL_SPMD_DEVICES=8 python spmd_resnet.py

The model is not marked, so it is whole on every device. Statistics and gradients are those of the whole batch, as in plain torch, with
which it is compared.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import shoal.spmd as xs
import shoal.spmd.parallel_loader as pl
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm

WIDTH, CLASSES, SIZE, STEPS = 8, 4, 8, 10


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.a, self.b = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.short = nn.Identity() if before == width else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.norm_a(self.a(x)))
        return F.relu(self.norm_b(self.b(h)) + self.short(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    blocks = [Block(WIDTH, WIDTH, 1), Block(WIDTH, 2 * WIDTH, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * WIDTH, CLASSES))


def images(rows: int) -> TensorDataset:
    """Noise with one brighter quarter, which determines the class."""
    random = torch.Generator().manual_seed(1)
    classes = torch.randint(CLASSES, (rows,), generator=random)
    x = torch.randn(rows, 3, SIZE, SIZE, generator=random)
    half = SIZE // 2
    for image, c in zip(x, classes.tolist(), strict=True):
        image[:, c // 2 * half : (c // 2 + 1) * half, c % 2 * half : (c % 2 + 1) * half] += 3
    return TensorDataset(x, classes)


def train(model: nn.Module, loader) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses = []
    model.train()
    for x, classes in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), classes)
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, loader) -> float:
    model.eval()
    right = [(model(x).argmax(1) == classes).float().mean().item() for x, classes in loader]
    return sum(right) / len(right)


def main():
    xr.use_spmd()
    device, num_devices = xm.xla_device(), xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(num_devices), (num_devices,), ("data",))
    host_loader = DataLoader(images(STEPS * 2 * num_devices), batch_size=2 * num_devices, drop_last=True)
    # Four-dimensional tensors are split along the first dimension; others (the classes) are whole on every device.
    loader = pl.MpDeviceLoader(host_loader, device, input_sharding=xs.ShardingSpec(mesh, ("data", None, None, None)))

    model, plain = network().to(device), network()
    losses, expected = train(model, loader), train(plain, host_loader)
    for step, loss in enumerate(losses):
        xm.master_print(f"step {step} loss {loss:.6f}")
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    found = accuracy(model, loader)
    assert found == accuracy(plain, host_loader)
    xm.master_print(f"accuracy {found:.2f}, as plain torch")


if __name__ == "__main__":
    main()
