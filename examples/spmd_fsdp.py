"""FSDP by marking: a decoder-only model whose layers SpmdFullyShardedDataParallel splits over all devices, as the guide "FSDP using SPMD"
writes it. It learns this file, byte by byte, beside the same model in plain torch.

    SHOAL_SPMD_DEVICES=8 python spmd_fsdp.py
"""

import functools
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import shoal.spmd as xs
import shoal.spmd.parallel_loader as pl
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2
from shoal.spmd.fsdp import checkpoint_module
from shoal.spmd.fsdp.wrap import transformer_auto_wrap_policy

WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY, LENGTH, STEPS = 32, 4, 2, 2, 128, 32, 10


class Output:
    """The model's outputs: FSDPv2 asks shard_output which of them are activations."""

    def __init__(self, logits: torch.Tensor):
        self.logits = logits


class DecoderLayer(nn.Module):
    """Causal attention, in which heads share keys and values, and a gated MLP."""

    def __init__(self):
        super().__init__()
        per_head = WIDTH // HEADS
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * KV_HEADS * per_head, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)

    def forward(self, x):
        h = self.before_attention(x)
        q = self.q(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (KV_HEADS, -1)).transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1) for t in self.kv(h).chunk(2, -1))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        attended = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return Output(self.output(self.norm(x)))


def batches(rows: int) -> list[torch.Tensor]:
    """STEPS batches of ``rows`` random pieces of this file, each of LENGTH + 1 bytes."""
    text = torch.tensor(list(Path(__file__).read_bytes())).clamp(max=VOCABULARY - 1)
    starts = torch.randint(len(text) - LENGTH - 1, (STEPS, rows), generator=torch.Generator().manual_seed(1))
    return [torch.stack([text[i : i + LENGTH + 1] for i in of]) for of in starts]


def train(model: nn.Module, loader) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for ids in loader:
        optimizer.zero_grad()
        logits = model(ids[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        xm.optimizer_step(optimizer)
        xm.mark_step()
        losses.append(loss.item())
    return losses


def main():
    xr.use_spmd()
    num_devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(num_devices), (num_devices, 1), ("fsdp", "model"))

    def shard_output(output, mesh):
        activation = output.logits if isinstance(output, Output) else output
        xs.mark_sharding(activation, mesh, ("fsdp", None, None))

    def unit(module, **options):  # recomputes a layer's forward in the backward pass
        return FSDPv2(checkpoint_module(module), **options)

    torch.manual_seed(0)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderLayer})
    model = FSDPv2(Decoder(), mesh, shard_output, auto_wrap_policy=policy, auto_wrapper_callable=unit)
    xm.master_print(f"{sum(p.numel() for p in model.parameters())} parameters over {num_devices} devices")
    data = batches(2 * num_devices)
    loader = pl.MpDeviceLoader(data, xm.xla_device(), input_sharding=xs.ShardingSpec(mesh, ("fsdp", None)))
    losses = train(model, loader)
    for step, loss in enumerate(losses):
        xm.master_print(f"step {step} loss {loss:.6f}")

    torch.manual_seed(0)
    torch.testing.assert_close(losses, train(Decoder(), data), rtol=1e-5, atol=0)
    xm.master_print("as plain torch")


if __name__ == "__main__":
    main()
