"""Faults that are planted in fully_shard's transfers. The late device reports each, and on CUDA luck may hide it."""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from compared_runs import Net, make_apis, sharded, train
from fsdp2_test import case
from late_device import Faults, LateDevice, LateStreams, without
from launching.trained import check, run, worlds

SEEDS = range(20)


def replicas_in_bf16(api):
    return train(api, sharded(api, Net(), mesh=api.mesh_2d, mp_policy=api.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)))


BLOCKS, MIXED = case["blocks_and_root"].function, case["dtypes_mixed_in_one_unit"].function
REPLICAS = case["replicas_of_shards"].function


class Planted(NamedTuple):
    """A line that a method lacks, while a function runs."""

    function: Callable
    method: str
    line: str
    report: str  # a part of the late device's report
    instead: str = "pass"


GATHER, REDUCE = "_allgather_base_", "_reduce_scatter_base_"
EARLY = "self._accumulate(stream)\nself._accumulate = lambda stream: None\nwith stream:"
PLANTED = {
    "memory that the computation still reads": Planted(
        BLOCKS, "InPlaceGather.__init__", "memory.wait()", f"{GATHER} .* on stream gather writes"
    ),
    "a gather before its packing": Planted(BLOCKS, "PackedGather.__init__", "packed.wait()", f"{GATHER} .* on stream gather writes"),
    "a mixed gather before its packing": Planted(MIXED, "MixedGather.__init__", "packed.wait()", f"{GATHER} .* on stream gather writes"),
    "parameters before their gather": Planted(BLOCKS, "PackedGather.finish", "self._mark.wait()", f"stream present reads .*{GATHER}"),
    "mixed ones before their gather": Planted(MIXED, "MixedGather.finish", "self._mark.wait()", f"stream present reads .*{GATHER}"),
    "a gather before the optimizer": Planted(
        BLOCKS, "PackedGather.__init__", "transfers.rows.wait()", "on stream pack reads .* on stream present"
    ),
    "a mixed gather before the optimizer": Planted(
        MIXED, "MixedGather.__init__", "transfers.rows.wait()", "on stream pack reads .* on stream present"
    ),
    "a buffer freed before it is unpacked": Planted(
        BLOCKS, "Transfers._free", "read.wait()", "may get the freed memory .* on stream present"
    ),
    "a reduction before its packing": Planted(BLOCKS, "Reduction.__init__", "mark.wait()", f"{REDUCE} .* on stream reduce reads"),
    "packed gradients freed before their reduction": Planted(
        BLOCKS, "Reduction._free_packed", "self._mark.wait()", f"may get the freed memory .*{REDUCE}"
    ),
    "replicas before their packing": Planted(
        REPLICAS, "Reduction.reduce_replicas", "summed.wait()", "allreduce_ .* on stream replicas writes"
    ),
    "accumulation before the reduction": Planted(
        REPLICAS, "Reduction.finish", "with stream:", "on stream present writes .*allreduce_ .* on stream replicas", EARLY
    ),
    "sums freed before they are accumulated": Planted(
        replicas_in_bf16, "Reduction.finish", "reduced.wait()", "may get the freed memory .* on stream replicas"
    ),
    "an optimizer before the accumulation": Planted(
        BLOCKS, "Transfers.finish", "mark.wait()", "on stream present reads .* on stream reduce"
    ),
}


def _report(planted, seed):
    from internals import fsdp

    device = LateDevice(seed, torch.distributed.get_rank())
    fsdp.transfers.forget()
    fsdp.transfers.opens = lambda _: LateStreams(device)
    owner, method = planted.method.split(".")
    fsdp.gather.PACKED_BELOW = 256 if owner == "InPlaceGather" else 256 << 10
    try:
        with without(getattr(fsdp, owner), method, planted.line, planted.instead), device:
            planted.function(make_apis()["ours"])
    except Faults as faults:
        return str(faults)
    return None


def _find(planted):
    report = next(filter(None, (_report(planted, seed) for seed in SEEDS)), "no fault")
    assert re.search(planted.report, report), report


def all_faults():
    from internals.fsdp import leave_arenas

    leave_arenas()
    return run({name: functools.partial(_find, planted) for name, planted in PLANTED.items()})


failed = worlds(all_faults)


@pytest.mark.parametrize("name", PLANTED)
def test_fault(name, failed):
    check(name, failed(2))
