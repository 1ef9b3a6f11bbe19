"""``torch_xla.core.functions``: differentiable collectives. The program is their one participant, whose tensors have all rows."""

from __future__ import annotations

from typing import Any

import torch

from shoal.exceptions import Unimplemented
from shoal.spmd import xla_model


def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Any = None) -> torch.Tensor:
    """Returns ``value`` times ``scale``, because the program is the only participant."""
    return xla_model.all_reduce(reduce_type, value, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Returns the tensor itself, because it has all rows."""
    return xla_model.all_gather(value, dim)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """Returns ``w @ x``; marks define how the product is split."""
    return w @ x


def nms(boxes: Any, scores: Any, score_threshold: Any, iou_threshold: Any, output_size: Any) -> Any:
    raise Unimplemented("nms is not supported", hint="use torchvision.ops.nms with boxes.cpu() and scores.cpu()")


__all__ = ["all_gather", "all_reduce", "distributed_mm", "nms"]
