"""Ranges of torch.profiler and NVTX have the names of the units, in one run of two ranks."""

import itertools
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from fsdp2_encoder import Net
from fsdp2_net import WORLD, batch, rank, shard
from launching.trained import Uses, check, ranks, run
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from shoal.fsdp import fully_shard
from shoal.optim import AdamW

use = Uses()
UNITS = ["root", "blocks.0", "blocks.1", "blocks.2"]


def events_of(model, step):
    """The events of one step, by name in the order of their begins, behind a step that is not profiled."""
    optimizer = AdamW(model.parameters(), lr=1e-3)
    for recorded in (False, True):
        with profile(activities=[ProfilerActivity.CPU]) if recorded else contextmanager(lambda: (yield None))() as found:
            step(model)
            optimizer.step()
            optimizer.zero_grad()
    return sorted(found.events(), key=lambda e: e.time_range.start)


def spans(events, what):
    """The ranges of this kind in the order of their begins: unit, begin, end."""
    begin = f"shoal::{what} ("
    return [(e.name[len(begin) : -1], e.time_range.start, e.time_range.end) for e in events if e.name.startswith(begin)]


def backward(model):
    model(batch(0, rank())).square().mean().backward()


@use
def a_profile_has_forward_backward_unshards_and_reductions_of_each_unit():
    events = events_of(shard(Net()), backward)
    forward, backwards = spans(events, "forward"), spans(events, "backward")
    assert [unit for unit, _, _ in forward] == UNITS
    assert [unit for unit, _, _ in backwards] == ["root", *reversed(UNITS[1:])]
    for unit, begin, end in forward[1:]:  # inside of the root's
        assert forward[0][1] <= begin <= end <= forward[0][2], unit
    for (unit, _, end), (after, begin, _) in itertools.pairwise(backwards[1:]):
        assert end <= begin, (unit, after)
    assert sorted(unit for unit, _, _ in spans(events, "unshard")) == sorted(UNITS * 2)
    assert sorted(unit for unit, _, _ in spans(events, "reduce")) == sorted(UNITS)
    assert sorted(unit for unit, _, _ in spans(events, "finish_reduce")) == sorted(UNITS)
    names = [e.name for e in events]
    assert names.count("shoal::end_backward") == 1
    assert names.count("Optimizer.step#AdamW.step") == 1
    assert names.index("shoal::open_window") > names.index("Optimizer.step#AdamW.step")


@use
def kernels_lie_in_the_range_of_their_unit():
    events = events_of(shard(Net()), backward)
    (block,) = [s for s in spans(events, "forward") if s[0] == "blocks.1"]
    assert [e.name for e in events if e.name == "aten::linear" and block[1] <= e.time_range.start <= e.time_range.end <= block[2]]


@use
def recomputed_forwards_have_ranges_inside_of_the_backward():
    class Recomputed(torch.nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    net = Net()
    net.blocks = torch.nn.Sequential(*map(Recomputed, net.blocks))
    for recomputed in net.blocks:
        fully_shard(recomputed.block)
    events = events_of(fully_shard(net), backward)
    first, again = [s for s in spans(events, "forward") if s[0] == "blocks.1.block"]
    (around,) = [s for s in spans(events, "backward") if s[0] == "blocks.1.block"]
    assert first[2] <= around[1] <= again[1] <= again[2] <= around[2]


@use
def a_range_ends_where_an_exception_leaves_it():
    model = shard(Net())
    backward(model)
    model.zero_grad()
    handle = model.blocks[1].register_forward_hook(lambda *_: 1 / 0)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        with pytest.raises(ZeroDivisionError):
            model(batch(0, rank()))
        with record_function("after"):
            pass
    handle.remove()
    (after,) = [e for e in found.events() if e.name == "after"]
    forward = spans(found.events(), "forward")
    assert {unit for unit, _, _ in forward} == {"root", "blocks.0", "blocks.1"}
    assert all(end <= after.time_range.start for _, _, end in forward)
    backward(model)  # without a profiler


@use
def nothing_is_recorded_without_a_profiler():
    counted = []
    enter = record_function.__enter__
    record_function.__enter__ = lambda self: counted.append(self.name) or enter(self)
    try:
        model = shard(Net())
        for _ in range(2):
            backward(model)
    finally:
        record_function.__enter__ = enter
    assert [name for name in counted if name.startswith("shoal::")] == []


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)


NVTX = """
import torch
import torch.distributed as dist

names, open_ranges = [], set()

def start(name):
    names.append(name)
    open_ranges.add(len(names))
    return len(names)

torch.cuda.is_initialized = lambda: INITIALIZED
torch.cuda.nvtx.range_start, torch.cuda.nvtx.range_end = start, open_ranges.remove
from shoal.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
fully_shard(model[0])
fully_shard(model)
model(torch.ones(1, 4)).sum().backward()
print(sorted(set(names)), open_ranges)
"""


@pytest.mark.parametrize(("variable", "initialized", "recorded"), [("1", True, True), ("0", True, False), ("1", False, False)])
def test_nvtx_has_the_same_ranges_if_it_is_wanted_and_there_is_a_device(variable, initialized, recorded):
    program = NVTX.replace("INITIALIZED", str(initialized))
    env = os.environ | {"SHOAL_NVTX": variable}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    each = [f"shoal::{what} ({unit})" for what in ("backward", "finish_reduce", "forward", "reduce", "unshard") for unit in ("0", "root")]
    assert done.stdout == f"{sorted([*each, 'shoal::end_backward']) if recorded else []} set()\n"
