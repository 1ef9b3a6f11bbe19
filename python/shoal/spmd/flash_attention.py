"""Attention by torch's own kernel (``torch_xla.experimental.custom_kernel.flash_attention``)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from shoal.exceptions import InvalidArgument
from shoal.spmd._layout.mesh import Mesh, get_global_mesh
from shoal.spmd._marks.marking import mark_sharding


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """Returns softmax(q k^T * sm_scale + ab) v, for q of shape (batch, heads, queries, size) and k, v of shape (batch, heads, keys, size).
    ``ab``: (batch, heads, queries, keys). Segment ids, (batch, queries) and (batch, keys), restrict a query to keys of its segment.
    ``causal`` excludes later keys. ``partition_spec`` marks the result on ``mesh``, or on the global mesh."""
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise InvalidArgument("one of q_segment_ids and kv_segment_ids is missing", hint="pass both, or none")
    seen = None
    if q_segment_ids is not None:
        seen = (q_segment_ids[:, None, :, None] == kv_segment_ids[:, None, None, :]).expand(-1, q.shape[1], -1, -1)
    if causal:
        past = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        seen = past if seen is None else seen & past
    if ab is not None:
        seen = ab if seen is None else ab.masked_fill(~seen, -torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=sm_scale)
    if partition_spec is not None:
        mark_sharding(out, mesh or get_global_mesh(), partition_spec)
    return out
