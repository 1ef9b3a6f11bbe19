"""Checks the facts of oracle.json for this process's number of devices."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter

import guides
import torch
import training
from facts import NAMES, NUM_DEVICES, ORACLE, as_spec, check, device, facts, operand, same, see_all_shards, spec, xr, xs
from internals.spmd import world
from torch import nn

from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2


def sharding(f: dict) -> None:
    mesh = xs.Mesh(f.get("ids") or range(NUM_DEVICES), f["mesh"], f["axes"])
    s, shape = mesh.get_op_sharding(as_spec(f["spec"])), f["shape"]
    shards = "full" if s.is_replicated else [[[c.start, c.stop] for c in s.ranges(d, shape)] for d in range(NUM_DEVICES)]
    got = {"sharding": str(s), "type": s.type.name, "padded": list(s.tile(shape)), "shards": shards}
    got["replica"] = [s.replica(d) for d in range(NUM_DEVICES)]
    assert got == {k: f[k] for k in got}, f"{f['spec']} on {mesh}: {got}"


def mesh(f: dict) -> None:
    m = xs.Mesh(f.get("ids") or range(NUM_DEVICES), f["mesh"], f["axes"])
    got = [list(map(list, m.shape().items())), m.size(), m.get_logical_mesh().tolist(), str(m)]
    assert got == [f["items"], f["size"], f["logical"], f["text"]], got


def op(f: dict) -> None:
    m = xs.Mesh(range(8), (2, 2, 2), ("x", "y", "z"))
    hosts = [operand(i, s) for i, s in enumerate(f["shapes"])]
    there = [h.to(device) for h in hosts]
    for t, s in zip(there, f["specs"], strict=True):
        xs.mark_sharding(t, m, as_spec(s))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operators without a rule warn
        y = eval(f["code"], {**NAMES, **dict(zip("abc", there, strict=False))})
    want = eval(f["code"], {**NAMES, **dict(zip("abc", hosts, strict=False))})
    assert same(y, want, 1e-5), f"{f['code']}: {y} instead of {want}"
    assert [list(y.shape), str(y.dtype)] == [f["out_shape"], f["out_dtype"]]


class Holder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(shape))

    def forward(self):
        return torch.ones(8, 4, device=device)


def parameter(f: dict) -> None:
    unit = FSDPv2(Holder(f["shape"]), mesh=xs.Mesh(range(NUM_DEVICES), f["mesh"], f["axes"]), extra_data_axis=f["extra_data_axis"])
    got = [spec(unit.p), spec(unit())]
    assert got == [f["sharding"], f["output_8x4"]], got


def trained(f: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = training.run(f["id"], f["steps"])
    for key, want in f["torch"].items():
        scale = max(1.0, *map(abs, want))
        gaps = [abs(a - b) / scale for a, b in zip(got[key], want, strict=True)]
        assert max(gaps) < 2e-5, f"{key}: {got[key]} instead of {want}"


CHECKS = {"sharding": sharding, "mesh": mesh, "ops": op, "fsdpv2-parameters": parameter, "training": trained}
CHECKS |= {"documents": guides.document, "examples": guides.example}


def failures(wanted: set[str] | None = None) -> dict:
    """Checks facts. Returns how many hold in each section, and the errors of the others. ``wanted``: only these sections. Several
    processes check in step: then a fact must hold on all of them."""
    if xr.process_count() > 1:
        see_all_shards()
    held: Counter[str] = Counter()
    failed: list[str] = []
    # A mode that a section turns on stays on. So sections that need it off come first, and those that need it on last.
    order = {"before-use-spmd": -1, "auto-sharding": 1}
    for section in sorted((s for s in ORACLE if s != "about" and (wanted is None or s in wanted)), key=lambda s: order.get(s, 0)):
        if section != "before-use-spmd":
            xr.use_spmd(auto=section == "auto-sharding")
        for f in facts(section):
            wrong = None
            try:
                CHECKS.get(section, check)(f)
            except BaseException:  # BaseException, because CheckpointException is no Exception
                wrong = traceback.format_exc(limit=-3)
            on_ranks = {rank: text for rank, text in enumerate(world().passed(wrong)) if text is not None}
            if on_ranks:
                failed.append(f"{section} {f.get('id')}: {on_ranks}")
            else:
                held[section] += 1
    return {"held": dict(held), "failed": failed}
