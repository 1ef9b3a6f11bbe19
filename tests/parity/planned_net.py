"""A small model and its batches, for the tests of planned steps."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import shoal.optim

WORLD, STEPS = 2, 5


class Net(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(4))
        self.head = nn.Linear(8, 5)
        self.checkpointed = checkpointed

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def sharded(**options):
    from shoal.fsdp import fully_shard

    model = Net(**options)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def batch(step, micro=0):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * step + 10 * micro + torch.distributed.get_rank()))


def adamw(model, **options):
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3, "weight_decay": 0.0},
    ]
    return shoal.optim.AdamW(groups, lr=1e-2, **options)


def sgd(model):
    return shoal.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
