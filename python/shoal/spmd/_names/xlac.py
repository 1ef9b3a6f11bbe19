"""``torch_xla._XLAC``: the functions that scripts use."""

from __future__ import annotations

from typing import Any

import torch

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.spmd import metrics
from shoal.spmd._layout.sharding import Sharding, ShardingType
from shoal.spmd._marks.marking import mark_freely, text_of, type_of


def _get_xla_sharding_spec(t: torch.Tensor) -> str:
    """Returns the sharding in XLA's text form, "" for an unmarked tensor."""
    return text_of(t)


def _get_xla_sharding_specs(tensors: list[torch.Tensor]) -> list[str]:
    return [text_of(t) for t in tensors]


def _get_xla_sharding_type(t: torch.Tensor) -> ShardingType | None:
    return type_of(t)


def _xla_mark_sharding(t: torch.Tensor, sharding: Sharding) -> None:
    """Marks a tensor, as mark_sharding does. ``sharding``: a result of Mesh.get_op_sharding."""
    if len(sharding.parts) != t.dim():
        raise InvalidArgument(f"the sharding splits {len(sharding.parts)} dimensions, and the tensor has {t.dim()}")
    mark_freely(t, sharding)


def _xla_get_tensor_id(t: torch.Tensor) -> int:
    """Returns a number that all tensors over one memory share (a view under a controller has another). Libraries find tied parameters by
    it."""
    box = t._box
    while getattr(box, "base", None) is not None:
        box = box.base
    return id(box)


def _xla_metrics_report() -> str:
    return metrics.metrics_report()


class _Absent(Unimplemented, AttributeError):
    """Error for a function of torch_xla._XLAC that Shoal lacks."""


_EXPLAIN = (
    "Shoal compiles no programs: print(shoal.spmd.explain(t)) shows where a tensor lies, which operator laid it out, and what was sent"
)
# By word in a missing function's name: an alternative. The first word that occurs counts.
_INSTEAD = {
    "tensors_text": _EXPLAIN,
    "tensors_dump": _EXPLAIN,
    "hlo": _EXPLAIN,
    "graph": "Shoal records no graphs: shoal.spmd.timeline shows when each operator ran",
    "counter": "use torch_xla.debug.metrics",
    "metric": "use torch_xla.debug.metrics",
    "spec": "use shoal.spmd.XLAShardedTensor(t).sharding_spec",
    "shard": "use shoal.spmd's functions: mark_sharding, clear_sharding, XLAShardedTensor(t).local_shards",
    "device": "use torch_xla.runtime",
    "rng": "use torch_xla.core.xla_model.set_rng_state and get_rng_state",
    "sync": "operators run at once: use torch_xla.sync()",
    "step": "operators run at once: use torch_xla.sync()",
    "": "use the functions of torch_xla's modules that shoal.spmd's README lists",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    hint = next(text for words, text in _INSTEAD.items() if words in name.lower())
    raise _Absent(f"torch_xla._XLAC.{name} is not supported", hint=hint)
