"""A small model, its batches, and the comparison of its gradients with those of the plain model, for the tests of FSDP2."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

WORLD = 2


class Net(nn.Module):
    """Blocks that run ``times`` times per forward. ``reentrant``: the kind of checkpoint under which each run is; None: without a
    checkpoint."""

    def __init__(self, reentrant=None, times=1):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, 7)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7)) for _ in range(3))
        self.head = nn.Linear(7, 5)
        self.reentrant, self.times = reentrant, times

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            for _ in range(self.times):
                x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def shard(model, **options):
    from shoal.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def rank():
    return torch.distributed.get_rank()


def batch(step, of_rank):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + of_rank))


def loss_of(model, step=0, of_rank=None):
    return model(batch(step, rank() if of_rank is None else of_rank)).square().mean()


def full(t):
    return None if t is None else t.full_tensor() if hasattr(t, "full_tensor") else t


def expect_gradients(model, plain, loss):
    """Compares gradients. ``loss(model, rank)`` is this rank's loss; the plain model's loss is the mean over all ranks."""
    for p in plain.parameters():
        p.grad = None
    (sum(loss(plain, r) for r in range(WORLD)) / WORLD).backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        got = full(p.grad)
        assert (got is None) == (q.grad is None), f"{name}: {got} is not {q.grad}"
        if got is not None:
            torch.testing.assert_close(got, q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"gradient of {n}: {m}")


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t
