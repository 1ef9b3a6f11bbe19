"""Functions by which torch_xla.distributed.spmd helps its compiler. Here their results are those of the plain functions."""

from __future__ import annotations

import ast

import torch
from torch import nn
from torch.nn import functional as F

from shoal.spmd._engine.copies import SPECIAL
from shoal.spmd._layout.mesh import Mesh
from shoal.spmd._marks.marking import mark_sharding


class XLAPatchedLinear:
    """A class of torch_xla, of which only ``apply(input, weight, bias)`` is needed: torch.nn.functional.linear."""

    apply = staticmethod(F.linear)


def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    return F.linear(input, m.weight, m.bias)


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Does nothing: there is no compiler that needs a barrier."""


def apply_xla_patch_to_nn_linear(module: nn.Module, *args) -> nn.Module:
    """Returns the module unchanged: plain linear layers keep the sharding of batches with more than two dimensions."""
    return module


_library = torch.library.Library("xla", "DEF")
_library.define("dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, str partition_spec) -> Tensor")


def _mark(func, args, kwargs):
    t, ids, shape, names, spec = args
    mesh = Mesh(ids, shape, ast.literal_eval(names))
    mark_sharding(t, mesh, ast.literal_eval(spec))
    return t.clone()


SPECIAL[torch.ops.xla.dynamo_mark_sharding.default] = _mark
