"""A driver that writes one FSDP step by hand, with futures: shoal submit examples/graph_driver.py, or python examples/graph_driver.py.

No process group, no torchrun: two workers hold the shards, the graph is sent to them once, and only losses come back.
"""

import torch
from torch import nn

import shoal
from shoal.fsdp import graph

UNITS, STEPS = ["up", "mix", "down"], 12


def model():
    torch.manual_seed(0)
    up, mix = nn.Sequential(nn.Linear(64, 512), nn.GELU()), nn.Sequential(nn.Linear(512, 512), nn.GELU())
    return {"up": up, "mix": mix, "down": nn.Sequential(nn.Linear(512, 32), nn.Tanh())}


def batch(rank, step):
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x[:, :32].sin()


def write_step():
    step = graph.Step(UNITS)
    x, ahead = None, step.unshard(UNITS[0])
    for u, following in zip(UNITS, [*UNITS[1:], None], strict=True):
        w, ahead = ahead, step.unshard(following, after=x) if following else None  # prefetched while u computes
        x = step.forward(u, x, after=w)
        if following:
            step.reshard(u, after=x)  # the last unit's backward is next: it stays whole
    g, reduced = step.loss(x), []
    for u, following in zip(UNITS[::-1], [*UNITS[-2::-1], None], strict=True):
        w, ahead = ahead, step.unshard(following, after=g) if following else None
        g = step.backward(u, g, after=w)
        reduced.append(step.reduce_scatter(u, g))  # while the unit before it computes
        step.reshard(u, after=g)
    committed = step.commit(after=reduced)
    for u in UNITS:
        step.update(u, after=committed)
    return step


if __name__ == "__main__":
    ranks = graph.place(model, batch, nn.functional.mse_loss, num_workers=2, optimizer=graph.AdamW(lr=1e-3))
    ranks.send(write_step())
    for i, losses in enumerate([ranks.step() for _ in range(STEPS)]):  # all steps are under way: nothing is awaited but losses
        print(f"step {i:2}  loss {sum(shoal.get(losses)) / len(losses):.6f}")
    ranks.to_perfetto("out/graph_driver.json")
    print("out/graph_driver.json: open it at https://ui.perfetto.dev")
