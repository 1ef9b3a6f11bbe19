"""Models for units_program.py, their training beside plain torch, and changes by which the rows of a batch depend on each other."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2

warnings.filterwarnings("ignore")
xr.use_spmd()
N, DEVICE = xr.global_runtime_device_count(), xm.xla_device()
MESH = xs.Mesh(np.arange(N), (N, 1), ("fsdp", "model"))


class Block(nn.Module):
    def __init__(self, width: int = 12, after=lambda x: x):
        super().__init__()
        self.norm, self.up, self.down, self.after = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width), after

    def forward(self, x):
        return self.after(x + self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """A model of two blocks. ``after``: a function of its output; ``inside``: one within each block. ``loss``: the forward ends with the
    mean of squares."""

    def __init__(self, after=lambda x: x, inside=lambda x: x, loss: bool = False, buffer: bool = False):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(5, 12), nn.ModuleList(Block(12, inside) for _ in range(2)), nn.Linear(12, 7)
        self.after, self.loss = after, loss
        if buffer:
            self.register_buffer("scale", torch.linspace(0.5, 1.5, 12))

    def forward(self, x):
        x = self.first(x)
        if hasattr(self, "scale"):
            x = x * self.scale
        for block in self.blocks:
            x = block(x)
        x = self.after(self.last(x))
        return x.square().mean() if self.loss else x


def wrapped(model: nn.Module, inner: bool = True, outer: bool = True) -> nn.Module:
    if inner:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = FSDPv2(block, MESH)
    return FSDPv2(model, MESH) if outer else model.to(DEVICE)


def rows(s: int, count: int = 4) -> torch.Tensor:
    return torch.randn(count * N, 5, generator=torch.Generator().manual_seed(s))


def marked(x: torch.Tensor) -> torch.Tensor:
    x = x.to(DEVICE)
    xs.mark_sharding(x, MESH, ("fsdp", None))
    return x


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.to(DEVICE)


def loss_of(model, x):
    y = model(x)
    return y if y.dim() == 0 else (y.square().mean(1) * 1.5).mean()


def train(model, put, *, optimizer=None, loss=loss_of, batches=None, steps=4, parts=1, clip=False):
    """Trains, and returns losses, the last gradients and the final parameters."""
    made = (optimizer or (lambda ps: torch.optim.AdamW(ps, lr=0.05)))([p for p in model.parameters() if p.requires_grad])
    found = []
    for s in range(steps):
        for part in range(parts):
            x = put(batches[s % len(batches)] if batches else rows(10 * s + part))
            value = loss(model, x) / parts
            value.backward()
            found.append(value.detach().cpu().view(1))
        if clip:
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).detach().cpu().view(1))
        grads = [p.grad.detach().cpu().clone().flatten() for p in model.parameters() if p.grad is not None]
        made.step()
        made.zero_grad()
    return [*found, *grads, *(p.detach().cpu().clone().flatten() for p in model.parameters())]


def double(make, change=lambda m: None, wrap=wrapped, before=lambda m: None, put=None, **options):
    """Trains the model in plain torch and wrapped. Returns the largest difference, and the reason why the wrapped one ran operator by
    operator."""
    torch.manual_seed(3)
    plain = make()
    ours = copy.deepcopy(plain)
    before(plain), before(ours)
    ours = wrap(ours)
    change(plain), change(ours)
    torch.manual_seed(4)
    want = train(plain, lambda x: x.clone(), **options)
    torch.manual_seed(4)
    got = train(ours, put or marked, **options)
    assert len(want) == len(got), (len(want), len(got))
    gap = max(float((a - b).abs().max()) if a.numel() else 0.0 for a, b in zip(got, want, strict=True))
    return gap, reason_of(ours)


def reason_of(model) -> str | None:
    unit = next(m._unit for m in model.modules() if isinstance(m, FSDPv2))
    return unit.reason


def freeze(model) -> None:
    next(p for n, p in model.named_parameters() if n.endswith("first.weight")).requires_grad_(False)


def with_penalty(model, x):
    return loss_of(model, x) + 0.01 * sum(p.square().sum() for p in model.parameters())


def twice(model, x):
    return loss_of(model, x) + loss_of(model, x.flip(1))


def differentiable_input(model, x):
    x = x.detach().requires_grad_()
    y = loss_of(model, x)
    (g,) = torch.autograd.grad(y, x, create_graph=False, retain_graph=True)
    return y + 0.1 * g.detach().square().sum()


class Scaled(Net):
    """A model with a second input, which the function ``scale`` applies to the first."""

    def __init__(self, scale):
        super().__init__()
        self.scaled = scale

    def forward(self, x, y):
        return super().forward(x) * self.scaled(y)


def with_scale(shape):
    """A loss that calls the model with a second input, which is replicated on all devices and requires a gradient."""

    def loss(model, x):
        y = torch.linspace(-1, 1, shape[0] * shape[1], dtype=x.dtype, device=x.device).view(shape).requires_grad_()
        value = (model(x, y).square().mean(1) * 1.5).mean()
        (g,) = torch.autograd.grad(value, y, retain_graph=True)
        return value + g.detach().square().sum()

    return loss


class Keeping(Net):
    """A model whose forward depends on its state: a buffer that it assigns, a count, a gate that opens later."""

    def __init__(self):
        super().__init__(buffer=True)
        self.calls, self.centred, self.open = 0, False, 0.0

    def forward(self, x):
        if self.centred:
            x = x - x.mean(0)
        return super().forward(x)


class Counting(Keeping):
    def forward(self, x):
        self.calls, self.scale = self.calls + 1, self.scale * 1.1
        return super().forward(x) * (1 + 0.1 * self.calls)


class Noisy(Keeping):
    def forward(self, x):
        return super().forward(x) + self.open * torch.randn(x.shape[0], 7, device=x.device)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.linspace(0.5, 1.5, 12))

    def forward(self, x):
        return torch.tanh(x * self.by)


class Again(nn.Module):
    """A module that checkpoints an inner module with a buffer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 12), Scale(), nn.Linear(12, 7))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


class NetAgain(Net):
    """A model that checkpoints its blocks, which may be wrapped themselves."""

    def forward(self, x):
        x = self.first(x)
        with set_checkpoint_early_stop(False):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
        return self.last(x)


class Normalised(torch.autograd.Function):
    """A function whose backward uses the norm of all gradients, and so the whole batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


def later(change, make=Keeping):
    """A loss that changes the model after some calls of one kind."""

    def loss(model, x):
        value = loss_of(model, x)
        model.seen = getattr(model, "seen", 0) + 1
        if model.seen == 2:
            change(getattr(model, "module", model))
        return value

    return double(make, loss=loss, optimizer=plain_descent)


def opened(model) -> None:
    model.open = 1.0


def centred(model) -> None:
    model.centred = True


class Telling(Net):
    """A model whose result depends on an object that the program changes."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(both=False)

    def forward(self, x):
        y = super().forward(x)
        return torch.cat((y, y.sin()), 1) if self.config.both else y


def both_asked(model) -> None:
    model.config.both = True


def hooked(model) -> None:
    model.blocks[0].register_forward_hook(lambda m, args, out: out - out.mean(0))


def many(x):
    if x.shape[0] == 1:
        raise RuntimeError("one row is too few")
    return x


class Hooked(Net):
    """A model with a tensor hook that reads the gradients of the whole batch."""

    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda g: g - g.mean(0))
        return y


class Below(Net):
    """A model with a reentrant checkpoint, which hides the backward of its region."""

    def forward(self, x):
        return checkpoint(Normalised.apply, super().forward(x), use_reentrant=True)


KEPT: list[torch.Tensor] = []


class Remembering(Net):
    """A model that keeps tensors. ``places``: returns the container for them, given the module."""

    def __init__(self, places):
        super().__init__()
        self.store, self.stats, self.places = {"a": [[]]}, SimpleNamespace(a=[]), places

    def forward(self, x):
        y = super().forward(x)
        self.places(self).append(y)
        return y * 2


class Center(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Posted(Keeping):
    def __init__(self):
        super().__init__()
        self.post = nn.Identity()

    def forward(self, x):
        return self.post(super().forward(x))


def plain_descent(ps):  # not Adam: a bias before a subtracted mean has only rounding noise as its gradient
    return torch.optim.SGD(ps, lr=0.1)
