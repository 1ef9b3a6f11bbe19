"""The training runs of the oracle's section ``training``, on the logical device."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from facts import NUM_DEVICES, FSDPv2, checkpoint_module, device, transformer_auto_wrap_policy, xs
from torch import nn
from torch.nn import functional as F


def value(i: int, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    k = torch.arange(math.prod(shape))
    return (((k * 37 + i * 11) % 101 - 50) / 50 * scale).reshape(shape)


def initialise(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            ones = bool((p == 1).all())
            p.copy_(value(i, tuple(p.shape), 0.1) if p.dim() > 1 else value(i, tuple(p.shape), 0.01) + ones)
    return model


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 20), nn.Linear(20, 6)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.n, self.f = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 5)

    def forward(self, x):
        return self.f(torch.relu(self.n(self.c(x))).mean((2, 3)))


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(32, n, bias=False) for n in (32, 16, 16, 32))

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (p(x).view(b, s, -1, 8).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (t[:, :, None].expand(b, 2, 2, s, 8).reshape(b, 4, s, 8) for t in (k, v))
        weights = (q @ k.transpose(2, 3) / math.sqrt(8)).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, s, 32))


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            nn.Linear(32, 64, bias=False),
            nn.Linear(32, 64, bias=False),
            nn.Linear(64, 32, bias=False),
        )

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp, self.input_layernorm, self.post_attention_layernorm = Attention(), GatedMlp(), Norm(32), Norm(32)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(50, 32), nn.ModuleList([Layer(), Layer()])
        self.norm, self.output = Norm(32), nn.Linear(32, 50, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def unit_mesh() -> xs.Mesh:
    return xs.Mesh(np.arange(NUM_DEVICES), (NUM_DEVICES, 1), ("fsdp", "model"))


def marked(t: torch.Tensor, mesh: xs.Mesh, axes) -> torch.Tensor:
    t = t.to(device)
    xs.mark_sharding(t, mesh, (axes, *(None,) * (t.dim() - 1)))
    return t


def run(name: str, steps: int) -> dict[str, list[float]]:
    """Losses and gradients' norms of each step; for each final parameter, its sum and the sum of its squares."""
    mesh, axes = unit_mesh(), "fsdp"
    if name.startswith("decoder"):
        model = _decoder(mesh, "checkpointed" in name)
    elif name == "data-parallel-batch-norm":
        model = initialise(Conv()).to(device)
    elif name == "data-2-tensor-2-fsdp-2":
        mesh, axes = xs.Mesh(np.arange(8), (2, 2, 2), ("data", "tensor", "fsdp")), ("data", "fsdp")
        model = initialise(Mlp()).to(device)
        for p, of in ((model.a.weight, ("tensor", "fsdp")), (model.a.bias, ("tensor",)), (model.b.weight, ("fsdp", "tensor"))):
            xs.mark_sharding(p, mesh, of)
    elif name == "extra-data-axis":
        mesh, axes = xs.Mesh(np.arange(8), (2, 4, 1), ("data", "fsdp", "tensor")), ("data", "fsdp")
        model = FSDPv2(initialise(Mlp()).to(device), mesh=mesh, extra_data_axis="data")
    else:
        model = FSDPv2(initialise(Mlp()).to(device), mesh=mesh)
    optimizer = _optimizer(name, model.parameters())
    out: dict[str, list[float]] = {"losses": [], "gradient_norms": []}
    for s in range(steps):
        optimizer.zero_grad()
        parts = 2 if name == "fsdpv2-accumulate" else 1
        total = 0.0
        for p in range(parts):
            loss = _loss(name, model, s, p, mesh, axes) / parts
            loss.backward()
            total += loss.item()
        if name == "fsdpv2-sgd-clip":
            out["gradient_norms"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
        optimizer.step()
        out["losses"].append(total)
    out["parameter_sums"] = [p.double().sum().item() for p in model.parameters()]
    out["parameter_squares"] = [p.double().square().sum().item() for p in model.parameters()]
    return out


def _decoder(mesh: xs.Mesh, checkpointed: bool) -> nn.Module:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})

    def unit(m, **kwargs):
        return FSDPv2(checkpoint_module(m), **kwargs)

    return FSDPv2(
        initialise(Decoder()).to(device), mesh=mesh, auto_wrap_policy=policy, auto_wrapper_callable=unit if checkpointed else None
    )


def _optimizer(name: str, parameters) -> torch.optim.Optimizer:
    if name == "guide-fsdpv2" or name == "decoder-adam-1e-4":
        return torch.optim.Adam(parameters, lr=1e-4)
    if name.startswith("decoder"):
        return torch.optim.Adam(parameters, lr=1e-2)
    if name == "fsdpv2-adamw":
        return torch.optim.AdamW(parameters, lr=1e-2)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _loss(name: str, model: nn.Module, s: int, p: int, mesh: xs.Mesh, axes) -> torch.Tensor:
    if name.startswith("decoder"):
        k = torch.arange(16 * 12)
        ids, targets = (((k + shift) * 7 + s).reshape(16, 12) % 50 for shift in (0, 1))
        logits = model(marked(ids, mesh, axes))
        return F.cross_entropy(logits.view(-1, 50), marked(targets, mesh, axes).view(-1))
    if name == "data-parallel-batch-norm":
        classes = (torch.arange(16) + s) % 5
        return F.cross_entropy(model(marked(value(s, (16, 3, 6, 6), 1.0), mesh, axes)), classes.to(device))
    if name == "fsdpv2-uneven-batch":
        x, y = value(s, (13, 12), 1.0), value(s + 3, (13, 6), 1.0)
    else:
        x, y = value(7 * s + p, (16, 12), 1.0), value(5 * s + p + 3, (16, 6), 1.0)
    out = model(marked(x, mesh, axes))
    if name == "guide-fsdpv2":
        return out.sum()
    if name == "fsdpv2-sgd-clip":
        return F.cross_entropy(out, ((3 * torch.arange(16) + s + p) % 6).to(device))
    return F.mse_loss(out, y.to(device))
