"""A small model in FSDP1's wrapper, and the training functions of its tests."""

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(7, 7), nn.BatchNorm1d(7)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.lin(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def predict(self, x):
        return self(x).argmax(1)


def sharded(module=None, **arguments):
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1.wrap import ModuleWrapPolicy

    arguments.setdefault("auto_wrap_policy", ModuleWrapPolicy({Block}))
    return FSDP(module if module is not None else Net(), **arguments)


def rank():
    return dist.get_rank()


def batch(step, of_rank):
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * step + of_rank))


def train(model, optimizer, steps=2, first=0):
    for step in range(first, first + steps):
        model(batch(step, rank())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def trained(**arguments):
    model = sharded(**arguments)
    optimizer = adam(model)
    train(model, optimizer)
    return model, optimizer


def whole(model):
    """Whole parameters, gathered by DTensor instead of the code under test."""
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}


def expect_equal(a, b):
    assert list(a) == list(b)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
