"""Modules, functions and helpers of torch_xla that scripts use beside training, and those that are refused."""
# ruff: noqa: E402  imports of torch_xla come after install()

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard

import shoal.spmd
from shoal.exceptions import Unimplemented

shoal.spmd.install()

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
import torch_xla.utils.checkpoint
from script_model import DEVICE, MESH, X, batch, net
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, checkpoint_module
from torch_xla.distributed.fsdp.utils import apply_xla_patch_to_nn_linear
from torch_xla.distributed.fsdp.wrap import recursive_wrap, size_based_auto_wrap_policy
from torch_xla.experimental.custom_kernel import flash_attention
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.experimental.spmd_fully_sharded_data_parallel import _prepare_spmd_partition_spec as partition_spec_of
from torch_xla.test import test_utils
from torch_xla.utils import utils as xu


def test_calls_between_processes_and_reports():
    ran = []
    xmp.spawn(lambda index, word: ran.append((index, word)), args=("go",))
    assert ran == [(0, "go")]
    assert xm.mesh_reduce("loss", torch.tensor(3.0, device=DEVICE), lambda found: sum(found) / len(found)).device.type == "cpu"
    assert xm.rendezvous("saved", b"x") == [b"x"]
    assert torch.equal(xm.all_reduce(xm.REDUCE_SUM, batch(), scale=0.5).cpu(), X * 0.5)
    state = xm.get_rng_state()
    first = torch.rand(3, device=DEVICE).cpu()
    xm.set_rng_state(state)
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), first)
    assert 0 < xm.get_memory_info(DEVICE)["bytes_used"] < xm.get_memory_info(DEVICE)["bytes_limit"]
    met.clear_all()
    with xp.StepTrace("step"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batch().nonzero()
    assert "aten.nonzero.default has no rule" in str(said[0].message)
    assert met.metrics_report() == "Counter: aten.nonzero.default\n  Value: 1\n"
    assert met.counter_value("aten.nonzero.default") == 1
    with pytest.raises(Unimplemented, match="SpmdFullyShardedDataParallel"):
        XlaFullyShardedDataParallel(net())


def test_closures_run_at_the_end_of_their_step():
    ran = []
    for i, _ in enumerate(pl.MpDeviceLoader([X, X, X], DEVICE)):
        assert ran == list(range(i))
        xm.add_step_closure(ran.append, (i,))
    assert ran == [0, 1, 2]
    xm.add_step_closure(ran.append, (3,))
    xm.wait_device_ops()
    assert ran == [0, 1, 2, 3]


def test_the_rate_is_counts_per_second():
    tracker = xm.RateTracker()
    tracker.add(10)
    first = tracker.rate()
    assert first >= tracker.global_rate() > 0
    assert tracker.rate() == pytest.approx(0.4 * first)


def test_helpers_of_training_scripts(monkeypatch, capsys):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=500)
    model, wrapped = recursive_wrap(apply_xla_patch_to_nn_linear(net(), xs.xla_patched_nn_linear_forward), policy, checkpoint_module)
    assert wrapped == 16 * 32 + 32  # the first layer alone has this many parameters, and exceeds the policy's limit of 500
    assert torch.equal(model(X), net()(X))
    assert [partition_spec_of(torch.ones(2, 3), shard_maximal=m) for m in (False, True)] == [("fsdp", None), (None, "fsdp")]
    assert partition_spec_of(torch.ones(2), "data") == (("data", "fsdp"),)
    monkeypatch.setenv("STEPS", "3")
    assert [xu.getenv_as("STEPS", int), xu.getenv_as("STEPS", bool), xu.getenv_as("NO_STEPS", int, 5)] == [3, True, 5]
    assert [xu.check_env_flag("STEPS"), xu.check_env_flag("NO_STEPS", "1")] == [False, True]
    test_utils.print_training_update(DEVICE, 3, torch.tensor(0.5, device=DEVICE), 10.0, 9.0, epoch=1)
    test_utils.print_test_update(DEVICE, 75.0, epoch=1)
    assert re.fullmatch(
        r"Training Device=xla:0 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=9.00 Epoch=1 Time=\S+\n"
        r"Test Device=xla:0 Epoch=1 Accuracy=75.00 Time=\S+\n",
        capsys.readouterr().out,
    )
    with pytest.warns(UserWarning, match=r"torch\.profiler\.profile"):
        xp.start_server(9012)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [(), ("segments",), ("bias",), ("segments", "bias")], ids=str)
@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_flash_attention_is_attention(causal, options):
    random = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(8, 2, n, 4, generator=random) for n in (5, 6, 6))
    scores, given = q @ k.mT * 0.5, {}
    if "bias" in options:
        given["ab"] = torch.randn(8, 2, 5, 6, generator=random)
        scores = scores + given["ab"]
    if causal:
        scores = scores.masked_fill(torch.ones(5, 6, dtype=torch.bool).triu(1), -torch.inf)
    if "segments" in options:
        given |= {
            "q_segment_ids": torch.tensor([[0, 0, 1, 1, 1]]).repeat(8, 1),
            "kv_segment_ids": torch.tensor([[0, 0, 1, 1, 1, 1]]).repeat(8, 1),
        }
        scores = scores.masked_fill(given["q_segment_ids"][:, None, :, None] != given["kv_segment_ids"][:, None, None], -torch.inf)
    there = {name: t.to(DEVICE) for name, t in given.items()}
    spec = ("fsdp", None, None, None)
    out = flash_attention(*(t.to(DEVICE) for t in (q, k, v)), causal, sm_scale=0.5, partition_spec=spec, mesh=MESH, **there)
    torch.testing.assert_close(out.cpu(), scores.softmax(-1) @ v)
    assert torch_xla._XLAC._get_xla_sharding_spec(out) == "{devices=[8,1,1,1]0,1,2,3,4,5,6,7}"


def test_libraries_find_torch_xla():
    assert importlib.util.find_spec("torch_xla") is not None
    assert importlib.metadata.version("torch_xla") == torch_xla.__version__
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("torch_xla_extra")


def test_a_process_group_by_the_address_xla():
    torch.distributed.init_process_group("gloo", init_method="xla://")
    try:
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_modules_of_torch_xla_with_a_meaning_here(tmp_path):
    import torch_xla.core.functions as xf
    import torch_xla.core.xla_env_vars as xenv
    import torch_xla.experimental.eager as eager
    import torch_xla.utils.serialization as xser
    import torch_xla.version

    assert torch_xla.version.__version__ == torch_xla.__version__
    assert [xenv.PJRT_DEVICE, xenv.TPU_VISIBLE_CHIPS] == ["PJRT_DEVICE", "TPU_VISIBLE_CHIPS"]
    assert eager.is_eager_mode()

    @eager.eager_mode_context(True)
    def doubled(x):
        with eager.eager_mode_context(False):
            return x * 2

    x = batch().requires_grad_()
    xf.all_gather(xf.all_reduce(xm.REDUCE_SUM, eager.compile(doubled)(x), scale=3.0), dim=0).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((8, 16), 6.0))
    torch.testing.assert_close(xf.distributed_mm(x, x.t()).cpu(), X @ X.T)
    with pytest.raises(Unimplemented, match=r"torchvision\.ops\.nms"):
        xf.nms(x, x, 0.5, 0.5, 3)
    xser.save({"x": x, "step": 3}, tmp_path / "x.pt")
    found = xser.load(tmp_path / "x.pt")
    assert found["step"] == 3
    assert torch.equal(found["x"], X)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("torch_xla.stablehlo", "Shoal makes no StableHLO: export the model on the host"),
        ("torch_xla._internal.pjrt", "There is no PJRT beneath Shoal: torch_xla.runtime"),
        ("torch_xla.core.xla_builder", "Shoal builds no XLA computations"),
        ("torch_xla.distributed.spmd._layout", "README of shoal.spmd lists"),  # a module of Shoal, which torch_xla does not have
        ("torch_xla.nowhere", "README of shoal.spmd lists"),
    ],
)
def test_absent_modules_name_their_replacement(name, text):
    above, _, last = name.rpartition(".")
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'.*{text}|No module named '{above}'.*{text}"):
        importlib.import_module(name)
    if not hasattr(sys.modules.get(above), last):
        with pytest.raises(ImportError, match=text):
            exec(f"from {above} import {last}")


def test_the_spec_of_a_marked_tensor_is_a_dtensors():
    mesh = xs.Mesh(np.arange(8)[::-1], (4, 2), ("data", "model"))
    t = xs.mark_sharding(torch.zeros(8, 6, device=DEVICE), mesh, (None, "model"))
    spec = t._spec
    assert (spec.mesh.device_type, spec.mesh.mesh.tolist(), spec.mesh.mesh_dim_names) == (
        "xla", mesh.get_logical_mesh().tolist(), ("data", "model"))  # fmt: skip
    assert spec.placements == t.placements == (Replicate(), Shard(1))
    assert (spec.tensor_meta.shape, spec.tensor_meta.stride, spec.tensor_meta.dtype) == ((8, 6), (6, 1), torch.float32)
    assert t._spec is t._cached_spec is spec is not xs.XLAShardedTensor(t)._spec
    xs.annotate_custom_sharding(t, mesh, ("data", None))
    assert t.placements == (Shard(0), Replicate())
    xs.wrap_as_sharded_tensor(t, (8,), (0, None))
    assert t._spec.mesh.shape == (8,)
    t.invalidate_spec_cache()
    assert t._cached_spec is None
    with pytest.raises(ValueError, match="mesh_shape must be specified to create DTensorSpec"):
        getattr(t + t, "_spec")  # noqa: B009  an attribute without a name is no statement
    split = xs.enable_manual_sharding(torch.zeros(8, 6, device=DEVICE), ("data", None), mesh=mesh)
    joined = xs.disable_manual_sharding(split, ("data", None), (8, 6), mesh=mesh)
    assert joined._spec.mesh.mesh.tolist() == mesh.get_logical_mesh().tolist()


def test_a_program_and_its_children_read_the_variable_of_spmd(monkeypatch):
    """use_spmd sets it. A child that only imports torch_xla begins nothing: among several processes it would wait for the others."""
    child = [sys.executable, "-c", "import shoal.spmd.runtime as xr; print(xr.is_spmd()); xr.use_spmd(); print(xr.is_spmd())"]
    assert os.environ["XLA_USE_SPMD"] == "1"
    assert xr.is_spmd()
    assert subprocess.run(child, capture_output=True, text=True, check=True).stdout.split() == ["False", "True"]
    monkeypatch.delenv("XLA_USE_SPMD")
    assert not xr.is_spmd()
    assert xr.global_device_count() == 8
    xr.use_spmd()
    assert xr.is_spmd()
    assert os.environ["XLA_USE_SPMD"] == "1"
    monkeypatch.delenv("XLA_USE_SPMD_BY_CALL")  # the variable comes from outside now
    assert subprocess.run(child, capture_output=True, text=True, check=True).stdout.split() == ["True", "True"]


def test_load_planners_tell_split_tensors_from_others(tmp_path):
    model = net().to(DEVICE)
    xs.mark_sharding(model[0].weight, MESH, ("fsdp", None))
    dcp.save(model.state_dict(), storage_writer=dcp.FileSystemWriter(tmp_path), planner=SPMDSavePlanner())
    for planner, rest in ((SPMDSavePlanner(), (None, True)), (SPMDLoadPlanner(), (dcp.FileSystemReader(tmp_path).read_metadata(), True))):
        planner.set_up_planner(model.state_dict(), *rest)
        assert list(planner.sharded_state_dict) == ["0.weight"]
        assert sorted(planner.unsharded_state_dict) == ["0.bias", "2.bias", "2.weight"]


def test_functions_of_xlac():
    xlac = torch_xla._XLAC
    x = X.to(DEVICE)
    xlac._xla_mark_sharding(x, MESH.get_op_sharding(("fsdp", None)))
    assert str(MESH.get_op_sharding(("fsdp", None))) == xlac._get_xla_sharding_spec(x) == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    with pytest.raises(ValueError, match="splits 1 dimensions, and the tensor has 2"):
        xlac._xla_mark_sharding(x, MESH.get_op_sharding(("fsdp",)))
    assert not hasattr(xlac, "_get_xla_tensors_hlo")
    for name, hint in (("_get_xla_tensors_hlo", "explain"), ("_get_xla_tensors_text", "explain"), ("_xla_nothing", "README")):
        with pytest.raises(AttributeError, match=rf"torch_xla\._XLAC\.{name} is not supported[\s\S]*{hint}"):
            getattr(xlac, name)


def test_a_manual_tensor_is_its_own_global_tensor():
    manual = xs.enable_manual_sharding(batch(), ("fsdp", None), mesh=MESH).global_tensor
    assert manual.shape == (1, 16)
    whole = xs.disable_manual_sharding(manual * 2, ("fsdp", None), (8, 16), mesh=MESH).global_tensor
    assert torch.equal(whole.cpu(), X * 2)
