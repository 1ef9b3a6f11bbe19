"""Training with the batch split over devices: each device computes its part, and devices communicate only for sums over the batch."""

from __future__ import annotations

import os

os.environ["SHOAL_SPMD_DEVICES"] = "8"

from collections import Counter

import gpt
import pytest
import torch
from internals.spmd import Array, execution
from torch import nn
from torch.nn import functional as F
from training import Decoder, initialise, run

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm

xr.use_spmd()
DEVICE = xm.xla_device()
MESH = xs.Mesh(range(8), (8,), ("data",))
# Operators that may run on replicated tensors, each with its reason.
EXCEPTIONS = {"aten.bernoulli_.float": "the random stream is one: dropout equals that of the unsharded program"}


class Convolutions(nn.Module):
    """The layers of a ResNet: a stem with pooling, a block with a shortcut, and a head with dropout."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2, bias=False), nn.BatchNorm2d(16))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, x):
        x = self.stem(x)
        return self.head(F.relu(self.block(x) + self.shortcut(x)))


def tokens(vocabulary: int, length: int):
    def batch(size: int, generator: torch.Generator):
        shape = (size, length)
        return [torch.randint(0, vocabulary, shape, generator=generator) for _ in range(2)]

    return batch


def images(size: int, generator: torch.Generator):
    return torch.randn(size, 3, 16, 16, generator=generator), torch.randint(0, 10, (size,), generator=generator)


MODELS = {
    "gpt": (lambda: gpt.build(gpt.CONFIGS["T"]), tokens(256, 32)),
    "decoder": (lambda: initialise(Decoder()), tokens(50, 12)),
    "convolutions": (Convolutions, images),
}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
}


def trained(model: str, optimizer: str, size: int, on_device) -> tuple[list[float], list[torch.Tensor]]:
    """Returns losses and gradients' norms, and the final parameters and running statistics."""
    make, batch = MODELS[model]
    torch.manual_seed(0)
    module = make()
    if on_device is not None:
        module.to(DEVICE)
    chosen, numbers = OPTIMIZERS[optimizer](module.parameters()), []
    for step in range(3):
        x, y = batch(size, torch.Generator().manual_seed(step))
        if on_device is not None:
            x, y = on_device(x), on_device(y)
        chosen.zero_grad()
        out = module(x)
        loss = F.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=optimizer != "adamw")
        chosen.step()
        numbers += [loss.item(), norm.item()]
    return numbers, [t.detach().cpu() for t in module.state_dict().values()]


def split(t: torch.Tensor) -> torch.Tensor:
    t = t.to(DEVICE)
    xs.mark_sharding(t, MESH, ("data", *(None,) * (t.dim() - 1)))
    return t


@pytest.fixture
def seen(monkeypatch):
    """Counts the operators that ran on replicated tensors, and those that resharded split tensors."""
    found = {"whole": Counter(), "moved": Counter()}
    replicate, resharded = execution._replicate, Array.resharded

    def counted(func, *args):
        found["whole"][str(func)] += 1
        return replicate(func, *args)

    def moved(self, sharding, label="reshard"):
        if sharding != self.sharding and not self.sharding.is_replicated:
            found["moved"][label] += 1
        return resharded(self, sharding, label)

    monkeypatch.setattr(execution, "_replicate", counted)
    monkeypatch.setattr(Array, "resharded", moved)
    return found


CASES = [*(("gpt", o) for o in OPTIMIZERS), ("decoder", "foreach"), ("convolutions", "adamw"), ("convolutions", "sgd")]


@pytest.mark.parametrize(("model", "optimizer"), CASES)
def test_no_operator_needs_whole_tensors(model, optimizer, seen):
    expected = trained(model, optimizer, 16, None)
    ours = trained(model, optimizer, 16, split)
    torch.testing.assert_close(ours[0], expected[0], rtol=2e-6, atol=0)
    torch.testing.assert_close(ours[1], expected[1], rtol=1e-4, atol=2e-5)  # looser, because Adam divides by small numbers
    assert set(seen["whole"]) <= set(EXCEPTIONS)
    assert set(seen["moved"]) <= set(EXCEPTIONS)
    assert model != "convolutions" or seen["whole"], "dropout is seen"


@pytest.mark.parametrize("name", ["decoder-adam-1e-2", "fsdpv2-sgd-clip", "data-2-tensor-2-fsdp-2"])
def test_split_parameters_gather_weights_only(name, seen):
    run(name, 2)
    assert not seen["whole"]


@pytest.mark.parametrize("model", MODELS)
def test_uneven_batches_give_the_same_losses(model):
    for size in (15, 11):  # 15 and 11 rows on 8 devices: a part is shorter than the others, or parts are empty
        expected, ours = (trained(model, "sgd", size, place)[0] for place in (None, split))
        torch.testing.assert_close(ours, expected, rtol=2e-6, atol=0)
