"""``torch_xla._XLAC``: what scripts print of it."""

from __future__ import annotations

import torch

from shoal.spmd import metrics
from shoal.spmd._marking import text_of, type_of
from shoal.spmd._sharding import ShardingType


def _get_xla_sharding_spec(t: torch.Tensor) -> str:
    """The sharding as XLA prints it, "" for a tensor that is not marked."""
    return text_of(t)


def _get_xla_sharding_specs(tensors: list[torch.Tensor]) -> list[str]:
    return [text_of(t) for t in tensors]


def _get_xla_sharding_type(t: torch.Tensor) -> ShardingType | None:
    return type_of(t)


def _xla_get_tensor_id(t: torch.Tensor) -> int:
    """A number that tensors of one memory share (a view under a controller has its own). Libraries find tied parameters by it."""
    box = t._box
    while getattr(box, "base", None) is not None:
        box = box.base
    return id(box)


def _xla_metrics_report() -> str:
    return metrics.metrics_report()
