"""A driver that writes one FSDP step by hand, with futures: shoal submit examples/graph_driver.py, or python examples/graph_driver.py.

A small GPT (two blocks of 64 features, 0.1 M parameters) without a process group or torchrun. Two workers hold the shards. The graph is
sent to them once, and only losses come back.
"""

import torch
import torch.nn.functional as F
from torch import nn

import shoal
from shoal.fsdp import graph

D, HEADS, VOCAB, SEQ, BATCH = 64, 2, 256, 32, 4
UNITS, STEPS = ["embed", "blocks.0", "blocks.1", "head"], 12


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(SEQ, D)

    def forward(self, ids):
        return self.tok(ids) + self.pos.weight[: ids.shape[1]]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(2, (3, HEADS, D // HEADS)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


def model():
    torch.manual_seed(0)
    return dict(zip(UNITS, [Embed(), Block(), Block(), nn.Sequential(nn.LayerNorm(D), nn.Linear(D, VOCAB, bias=False))], strict=True))


def batch(rank, step):
    start = torch.randint(0, VOCAB, (BATCH, 1), generator=torch.Generator().manual_seed(1000 * step + rank))
    # a pattern that the model can learn: each number is three more than the one before
    tokens = (start + 3 * torch.arange(SEQ + 1)) % VOCAB
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def write_step():
    step = graph.Step(UNITS)
    x, ahead = None, step.unshard(UNITS[0])
    for u, following in zip(UNITS, [*UNITS[1:], None], strict=True):
        w, ahead = ahead, step.unshard(following, after=x) if following else None  # the unit after u is prefetched while u computes
        x = step.forward(u, x, after=w)
        if following:
            step.reshard(u, after=x)  # the last unit stays unsharded, because its backward comes next
    g, reduced = step.loss(x), []
    for u, following in zip(UNITS[::-1], [*UNITS[-2::-1], None], strict=True):
        w, ahead = ahead, step.unshard(following, after=g) if following else None
        g = step.backward(u, g, after=w)
        reduced.append(step.reduce_scatter(u, g))  # u's reduction runs while the unit before u computes its backward
        step.reshard(u, after=g)
    committed = step.commit(after=reduced)
    for u in UNITS:
        step.update(u, after=committed)
    return step


if __name__ == "__main__":
    ranks = graph.place(model, batch, loss, num_workers=2, optimizer=graph.AdamW(lr=3e-3))
    ranks.send(write_step())  # or with .passes(micro_batches=2, recompute=["blocks.0"], optimizer_in_backward=True)
    for i, losses in enumerate([ranks.step() for _ in range(STEPS)]):  # all steps are in flight: only losses are awaited
        print(f"step {i:2}  loss {sum(shoal.get(losses)) / len(losses):.6f}")
    ranks.to_perfetto("out/graph_driver.json")
    print("out/graph_driver.json: open it at https://ui.perfetto.dev")
