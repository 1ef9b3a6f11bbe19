"""The slices of one parameter that this rank owns: their shape, and the dtypes in which they are stored, computed with and reduced."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shoal._objects.tensors import dtensor, is_wrapper
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.precision import AS_BYTES, dtypes_of


def local_of(t: torch.Tensor) -> torch.Tensor:
    return t._local_tensor if isinstance(t, DTensor) else t


class Kind(enum.Enum):
    """The kind of a parameter's local tensor, which decides how it is unsharded."""

    MEMORY = enum.auto()  # plain memory, in the arena on a CPU mesh
    WRAPPER = enum.auto()  # a wrapper subclass, whose elements lie in other tensors
    EXTENDED = enum.auto()  # with FSDP2's all-gather extensions, of its class or set on the object

    @staticmethod
    def of_tensor(local: torch.Tensor) -> Kind:
        if hasattr(local, "fsdp_pre_all_gather"):
            return Kind.EXTENDED
        return Kind.WRAPPER if is_wrapper(local) else Kind.MEMORY


class Slices:
    """A parameter as its views, rows and gradient know it. ``ShardedParameter``, which has these, is a subclass."""

    def __init__(
        self,
        name: str,
        original: nn.Parameter,
        owners: list[tuple[nn.Module, str]],
        data: DataMesh,
        dim: int,
        policy: Any,
        home: torch.device,
        pinned: bool,
    ):
        self.name = name
        self.owners = owners  # (module, attribute), several for a tied parameter
        self.data, self.dim = data, dim
        self.home, self.pinned = home, pinned  # device of the slices, and whether their memory is pinned
        self.state: Any = None
        local = local_of(original)
        self.shape, self.dtype = local.shape, local.dtype
        self._set_kind(local)
        self.spec = data.spec_of(name, original, dim)
        self.policy = policy
        self._set_dtypes()
        self._set_own_shape()
        self.own: torch.Tensor | None = None  # this rank's slices; in the arena unless ``external``
        self.whole_offset = 0  # the whole parameter's offset in its storage, in the arena

    @property
    def extended(self) -> bool:
        return self.kind is Kind.EXTENDED

    @property
    def external(self) -> bool:
        """True if the parameter has no memory in the arena."""
        return self.kind is not Kind.MEMORY or not self.data.in_arena

    def _set_kind(self, local: torch.Tensor) -> None:
        self.kind = Kind.of_tensor(local)
        if self.extended != hasattr(local, "fsdp_post_all_gather"):
            raise AssertionError(
                "Both fsdp_pre_all_gather and fsdp_post_all_gather should be defined if using all-gather extensions: parameter "
                f"{self.name}, a {type(local).__name__}"
            )
        if self.extended and self.dim != 0 and self.shape[self.dim] % self.data.shards != 0:
            raise NotImplementedError(
                f"FSDP does not support uneven sharding on dim {self.dim}: {self.shape} (world size: {self.data.shards}) of a parameter "
                f"with all-gather extensions: shard {self.name} on dim 0"
            )

    def _set_dtypes(self) -> None:
        floating = self.dtype.is_floating_point and self.dtype not in AS_BYTES
        self.compute_dtype, self.reduce_dtype = dtypes_of(self.policy, self.dtype) if floating else (self.dtype, self.dtype)

    def _set_own_shape(self) -> None:
        begin, end = self.data.own_bounds(self.shape[self.dim])
        self.own_shape = torch.Size((*self.shape[: self.dim], end - begin, *self.shape[self.dim + 1 :]))
        self.empty = self.own_shape.numel() == 0

    @property
    def padded_shape(self) -> torch.Size:
        """The shape of the first rank's slices, the largest of all ranks."""
        return torch.Size((*self.shape[: self.dim], -(-self.shape[self.dim] // self.data.shards), *self.shape[self.dim + 1 :]))

    def slice(self, whole: torch.Tensor) -> torch.Tensor:
        begin, _ = self.data.own_bounds(self.shape[self.dim])
        return whole.narrow(self.dim, begin, self.own_shape[self.dim])

    def dtensor(self, local: torch.Tensor) -> DTensor:
        return dtensor(local, self.spec, local.requires_grad)

    @property
    def global_shape(self) -> torch.Size:
        return self.spec.tensor_meta.shape
