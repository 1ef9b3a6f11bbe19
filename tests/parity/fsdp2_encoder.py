"""A model with blocks that may be skipped and an encoder that may be called on its own, and its training beside the plain model."""

import torch
from fsdp2_net import WORLD, batch, full, rank
from torch import nn


class Net(nn.Module):
    def __init__(self, width=7):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, width)) for _ in range(3))
        self.encoder = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 5)
        self.skipped = set()

    def forward(self, x):
        x = self.inp(x)
        for i, block in enumerate(self.blocks):
            if i not in self.skipped:
                x = x + block(x)
        return self.head(self.encoder(x))

    def generate(self, x):
        return self.head(self.encoder(self.inp(x)))


def same_as_plain(model, plain, loss=lambda model, step, r: model(batch(step, r)).square().mean(), steps=2, rtol=1e-4, lr=0.1):
    """Trains both models, and compares gradients and parameters after each step. The plain model's loss is the mean over all ranks."""
    optimizers = [torch.optim.SGD(m.parameters(), lr=lr) for m in (model, plain)]
    for step in range(steps):
        loss(model, step, rank()).backward()
        (sum(loss(plain, step, r) for r in range(WORLD)) / WORLD).backward()
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            got = full(p.grad)
            assert (got is None) == (q.grad is None), f"{name}: {got} is not {q.grad}"
            if got is not None:
                torch.testing.assert_close(got, q.grad, rtol=rtol, atol=1e-5, msg=lambda m, n=name: f"gradient of {n}: {m}")
        for o in optimizers:
            o.step()
            o.zero_grad()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(full(p), q, rtol=rtol, atol=1e-5, msg=lambda m, n=name: f"parameter {n}: {m}")
