"""Ranks over two nodes, on one host and on two: torchrun's variables, where ranks meet, and what they share."""

import json

import pytest
from launching.commands import LIMIT_S
from launching.two_nodes import KINDS, two_nodes

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
PLACES = [
    ["0", "3", "0", "2", "0", "2"],
    ["1", "3", "1", "2", "0", "2"],
    ["2", "3", "0", "1", "1", "2"],
]  # the values of NAMES in each of three ranks that need two CPUs each

# A loop whose ranks print their variables. Each of the two sums needs all ranks.
LOOP = f"""
import json, os

def loop():
    import torch, torch.distributed as dist
    import shoal.collective
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mine, ours = torch.tensor([1.0]), torch.tensor([10.0])
    dist.all_reduce(mine)
    shoal.collective.all_reduce(ours)
    places = [None] * 3
    dist.all_gather_object(places, [os.environ[name] for name in {NAMES!r}])
    if dist.get_rank() == 0:
        print("seen", json.dumps([places, os.environ["MASTER_ADDR"], int(mine), int(ours)]), flush=True)
"""

TRAINER = """
import shoal
from shoal.train import ScalingConfig, Trainer

def trained():
    loop()
    return shoal.get_runtime_context().get_node_id()

if __name__ == "__main__":
    shoal.init(address=os.environ["HEAD"])
    nodes = Trainer(trained, scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"CPU": 2})).fit().returns
    print("host of rank 0:", *{n["host"] for n in shoal.nodes() if n["id"] == nodes[0]})
    assert nodes[0] == nodes[1] != nodes[2], nodes
"""

# A driver of more ranks than one node has CPUs for.
DRIVEN = """
import os
import torch
import shoal
import shoal.spmd as xs, shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm

if __name__ == "__main__":
    shoal.init(address=os.environ["HEAD"])
    xr.use_spmd()
    t = torch.arange(10.0).to(xm.xla_device())
    xs.mark_sharding(t, xs.get_1d_mesh("x"), ("x",))
    print("sum", t.sum().item())
"""


@pytest.fixture(scope="module", params=KINDS)
def nodes(request):
    yield from two_nodes(request.param)


def seen(text: str):
    (line,) = (line for line in text.splitlines() if "seen " in line)
    return json.loads(line.partition("seen ")[2])


@pytest.mark.parametrize("on", ["a", "b"])
def test_ranks_of_a_trainer_meet_at_rank_0_wherever_the_driver_is(nodes, on):
    driver = getattr(nodes, on).driver(LOOP + TRAINER, HEAD=nodes.address)
    assert driver.code(LIMIT_S) == 0, driver.err
    (host,) = (line.split()[-1] for line in driver.out.splitlines() if line.startswith("host of rank 0:"))
    assert seen(driver.out) == [PLACES, host, 3, 30]


def test_ranks_of_a_job_have_the_same_variables(nodes):
    done = nodes.a("submit", "--num-workers", "3", "--num-cpus", "2", nodes.a.script(LOOP + "loop()"))
    assert done.returncode == 0, done.stderr
    places, _, *sums = seen(done.stdout)
    assert (places, sums) == (PLACES, [3, 30])


@pytest.mark.parametrize("on", ["a", "b"])
def test_a_driven_program_has_ranks_on_both_nodes(nodes, on):
    driver = getattr(nodes, on).driver(DRIVEN, HEAD=nodes.address, SHOAL_SPMD_WORKERS="5")
    assert driver.code(LIMIT_S) == 0, driver.err
    assert "sum 45.0\n" in driver.out
