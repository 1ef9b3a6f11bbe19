"""Facts of oracle.json and the names that their code uses. A fact is code with its result in torch_xla 2.9.0; README.md explains the
fields."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import math
import os
import re
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from internals.spmd import text_of as spec
from internals.spmd import type_of, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_module, distribute_tensor

import shoal.spmd as xs
from shoal.spmd import checkpoint as xc
from shoal.spmd import debugging
from shoal.spmd import parallel_loader as pl
from shoal.spmd import runtime as xr
from shoal.spmd import xla_model as xm
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2
from shoal.spmd.fsdp import checkpoint_module, wrap

ORACLE = json.loads((Path(__file__).parent / "oracle.json").read_text())
NUM_DEVICES = int(os.environ["SHOAL_SPMD_DEVICES"])

# Binding facts with another result in Shoal, each with its reason.
EXCEPTIONS = {
    "use-spmd-after-tensors-exist": "torch_xla loses the values of tensors that were made before use_spmd; Shoal keeps them",
    "load-wrong-shape": "torch_xla reads into a tensor of another shape without a word; Shoal raises",
    "is-dtensor": "XLAShardedTensor is no DTensor: code for DTensors would reach for its local tensor",
}
# Facts that have another result when the devices belong to several processes.
EXCEPTIONS_OF_PROCESSES = {"manager-no-group": "use_spmd has formed the group of the processes"}

if xr.addressable_runtime_device_count() == 1:
    EXCEPTIONS_OF_PROCESSES["minibatch-uneven"] = "any number of rows is even over a process's one device"

# Results that depend on the process, where there are several.
ANSWERS_OF_A_PROCESS = {
    "addressable-runtime-device-count": lambda w: w.per_process,
    "world": lambda w: [1, 0, 0, w.rank, w.num_processes, w.num_processes],
    "master": lambda w: [w.rank == 0, w.rank],
    "master-print": lambda w: "hello\n" if w.rank == 0 else "",
    "planner-split": lambda w: [["weight"], ["bias"], w.per_process + 1],  # one part for each device of the process
}
# Replacements in a fact's code, as (old, new), where there are several processes: each loads its own rows of the batch.
CODE_OF_A_PROCESS = {"minibatch-even": ("reshape(16, 3)", "reshape(16, 3).chunk(xr.process_count())[xr.process_index()]")}


def facts(section: str) -> list[dict]:
    """The binding facts of a section that are for this number of devices."""
    several = xr.process_count() > 1
    left_out = EXCEPTIONS | EXCEPTIONS_OF_PROCESSES if several else EXCEPTIONS
    found = [f for f in ORACLE[section] if f.get("binding", True) and f.get("devices", 8) == NUM_DEVICES and f.get("id") not in left_out]
    return list(map(_of_a_process, found)) if several else found


def _of_a_process(fact: dict) -> dict:
    key = fact.get("id")
    if key in ANSWERS_OF_A_PROCESS:
        return fact | {"result": ANSWERS_OF_A_PROCESS[key](world())}
    if key in CODE_OF_A_PROCESS:
        assert CODE_OF_A_PROCESS[key][0] in fact["code"]
        return fact | {"code": fact["code"].replace(*CODE_OF_A_PROCESS[key])}
    return fact


def see_all_shards() -> None:
    """Makes local_shards return the shards of all processes, in the order of devices. load_local_shards_ takes this process's own from
    such a list."""
    cls = xs.XLAShardedTensor
    own, load = cls.local_shards.fget, cls.load_local_shards_

    def load_own(t, shards):
        load(t, [s for s in shards if int(s.shard_device.rpartition(":")[2]) in world().devices])

    cls.local_shards = property(lambda t: [s for shards in world().passed(own(t)) for s in shards])
    cls.load_local_shards_ = load_own


# ---- names that code uses -------------------------------------------------------------------------------------------------------------

device = xm.xla_device()
xs.install()
import torch_xla  # noqa: E402  the one that install() makes


def H(*shape):
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def X(*shape):
    return H(*shape).to(device)


def plain(t):
    return spec(t) in ("", "{replicated}")


def kind(t):
    found = type_of(t)
    return None if found is None else found.name


def host(t):
    if isinstance(t, xs.XLAShardedTensor):
        t = t.global_tensor
    return t.detach().cpu() if isinstance(t, torch.Tensor) else torch.tensor(t)


def same(a, b, tolerance=0.0):
    a, b = host(a), host(b)
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


class Fn(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


class Fn2(nn.Module):
    def forward(self, x, scale=1.0):
        return x * scale


class L:
    def __init__(self, batch, n=1):
        self.batch, self.n = batch, n

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter([self.batch] * self.n)


NAMES = {
    "torch": torch,
    "np": np,
    "nn": nn,
    "copy": copy,
    "functools": functools,
    "os": os,
    "torch_xla": torch_xla,
    "xs": xs,
    "xr": xr,
    "xm": xm,
    "pl": pl,
    "FSDPv2": FSDPv2,
    "checkpoint_module": checkpoint_module,
    "wrap": wrap,
    "transformer_auto_wrap_policy": transformer_auto_wrap_policy,
    "device": device,
    "H": H,
    "X": X,
    "spec": spec,
    "plain": plain,
    "kind": kind,
    "same": same,
    "Net": Net,
    "Fn": Fn,
    "Fn2": Fn2,
    "L": L,
    "debugging": debugging,
    "xc": xc,
    "dist_cp": dcp,
    "dcp_save": lambda state, path: dcp.save(state, storage_writer=dcp.FileSystemWriter(path), planner=xc.SPMDSavePlanner()),
    "dcp_load": lambda state, path: dcp.load(state, storage_reader=dcp.FileSystemReader(path), planner=xc.SPMDLoadPlanner()),
    "chunks": lambda path: _chunks(path),
    "group": lambda: _group(),
    "show": lambda f, *args, **kwargs: _shown(f, args, kwargs),
    "attrs": lambda slices, dims: _attributes(slices, dims),
    "devtype": "xla",
    "init_device_mesh": init_device_mesh,
    "distribute_tensor": distribute_tensor,
    "distribute_module": distribute_module,
    "Shard": Shard,
    "Replicate": Replicate,
    "Partial": Partial,
}


_TRUE_ATTRIBUTES, _TRUE_HARDWARE = xr.global_runtime_device_attributes, xm.xla_device_hw


def _chunks(path):
    found = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    return sorted([n, sorted([list(c.offsets), list(c.sizes)] for c in getattr(m, "chunks", []))] for n, m in found.items())


def _group():
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _shown(f, args, kwargs):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        f(*args, **kwargs)
    return out.getvalue()


def _attributes(slices, dims):
    """Makes the devices TPUs with coordinates, of which x varies fastest, until the end of the fact."""
    per_slice = math.prod(dims)
    found = []
    for i in range(slices * per_slice):
        j = i % per_slice
        coords = [j % dims[0], j // dims[0] % dims[1], j // (dims[0] * dims[1])]
        found.append({"name": f"TPU:{i}", "core_on_chip": 0, "coords": coords, **({"slice_index": i // per_slice} if slices > 1 else {})})
    xr.global_runtime_device_attributes, xm.xla_device_hw = lambda: found, lambda device=None: "TPU"


def plainly(value):
    """Converts a value to the form that it has in oracle.json: tuples, sizes and tensors to lists, and so on."""
    if isinstance(value, torch.Tensor):
        return host(value).tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, OrderedDict):
        return [[plainly(k), plainly(v)] for k, v in value.items()]
    if isinstance(value, dict):
        return {k: plainly(v) for k, v in value.items()}
    if isinstance(value, slice):
        return [value.start, value.stop]
    if isinstance(value, xs.ShardingType):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plainly(v) for v in value]
    return "..." if value is ... else value


def close(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (a, b))
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) if numbers else a == b


def all_names() -> dict:
    names = dict(NAMES)
    if NUM_DEVICES == 8:
        names["mesh"] = xs.Mesh(np.arange(8), (4, 2), ("data", "model"))
        names["fmesh"] = xs.Mesh(np.arange(8), (8, 1), ("fsdp", "model"))
        names["dmesh"] = xs.Mesh(np.arange(8), (2, 4, 1), ("data", "fsdp", "tensor"))
    return names


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """An empty folder that all processes share until the last one leaves."""
    with tempfile.TemporaryDirectory() as own:
        try:
            yield world().passed(own)[0]
        finally:
            world().passed(None)


def check(fact: dict, names: dict | None = None) -> None:
    """Runs a fact's code and compares its result, or the class of its error. ``names``: the names that the code may use, by default all
    of this module."""
    xs.set_global_mesh(None)
    xr.global_runtime_device_attributes, xm.xla_device_hw = _TRUE_ATTRIBUTES, _TRUE_HARDWARE
    names = all_names() if names is None else names
    if dist.is_initialized() and xr.process_count() == 1:
        dist.destroy_process_group()
    with warnings.catch_warnings(), _folder() as names["tmp"]:
        warnings.simplefilter("ignore")
        if "error" not in fact:
            exec(fact["code"], names)
            got = plainly(names["result"])
            assert close(got, fact["result"]), f"{fact['code']}\n  gives {got}\n  not   {fact['result']}"
            return
        raised = None
        try:
            exec(fact["code"], names)
        except BaseException as error:  # BaseException, because CheckpointException is no Exception
            raised = error
        classes = [c.__name__ for c in type(raised).__mro__]
        assert fact["error"] in classes, f"{fact['code']}\n  raises {raised!r}, not {fact['error']}"
        assert words(fact) in str(raised), f"{fact['code']}\n  says {str(raised)!r}, not {words(fact)!r}"


def words(fact: dict) -> str:
    """The text of an error that programs match: torch_xla's, without the condition that its C++ code prints in front."""
    return re.sub(r"^Check failed: .*?: ", "", fact["message"]).removesuffix("...").strip('"')


def operand(i: int, shape: list[int]) -> torch.Tensor:
    k = torch.arange(math.prod(shape))
    return (((k * (7 + 4 * i) + 3 * i) % 23 - 11) / 8).reshape(shape)


def as_spec(entries: list) -> tuple:
    return tuple(tuple(e) if isinstance(e, list) else e for e in entries)
