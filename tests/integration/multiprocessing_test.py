"""Ranks that a script starts itself, with torch.multiprocessing and a process group of its own: spawned, or forked."""

import sys

import pytest
from launching.leftovers import wait_until

TRAIN = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
import shoal.fsdp

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2))

def step(model, optimizer, x):
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

def work(rank, world, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    model = build()
    shoal.fsdp.fully_shard(model[0])
    shoal.fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = [step(model, optimizer, torch.ones(2, 4)) for _ in range(3)]
    plain = build()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    expected = [step(plain, optimizer, torch.ones(2, 4)) for _ in range(3)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(work, args=(2, sys.argv[2]), nprocs=2, start_method=sys.argv[1])
    print("trained")
"""


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_ranks_of_torch_multiprocessing_train(shoal_command, how, tmp_path):
    script = shoal_command.script(TRAIN, "train.py")
    run = shoal_command.program([sys.executable, str(script), how, str(tmp_path / "store")])
    assert run.code() == 0, run.err
    assert "trained" in run.out
    wait_until(lambda: not list(shoal_command.home.iterdir()), 5, "the end of the session")
