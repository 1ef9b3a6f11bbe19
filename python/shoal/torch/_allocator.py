"""The backend of CPU tensors, from which FSDP2 requests memory: buffers of communication, which are used again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from shoal._objects.tensors import long_lived
from shoal.torch._membership import error_type

_MOST_BYTES = 1 << 30  # size limit of the buffers that a group keeps for reuse


def use_count(storage: torch.UntypedStorage) -> int:
    return torch._C._storage_Use_Count(storage._cdata)


@dataclass
class Reused:
    """Memory of which tensors are views. It is free again once these tensors are gone."""

    memory: torch.Tensor
    storage: torch.UntypedStorage = field(init=False)
    unused: int = field(init=False)  # the storage's use count without a view

    def __post_init__(self):
        self.storage = self.memory.untyped_storage()
        self.unused = use_count(self.storage)

    def is_held(self) -> bool:
        return use_count(self.storage) > self.unused


class CpuBackend:
    """A group's answers to the queries that torch sends to a ``Backend`` of the CPU.

    Memory for communication comes from buffers that are kept: their pages stay mapped between steps.
    """

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = _supports_time_estimate = False
    supports_shrinking = False
    supports_abort_hooks = supports_completion_hooks = False

    def __init__(self, group: dist.ProcessGroup):
        self._group = group
        self._kept: dict[int, list[Reused]] = {}  # by bytes
        self._bytes = 0

    def rank(self) -> int:
        return self._group.rank()

    def size(self) -> int:
        return self._group.size()

    def name(self) -> str:
        return "shoal"

    _get_backend_name = name

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns a tensor of ``size`` elements, not initialised. Its memory is used again once no tensor has it."""
        nbytes = max(1, size * dtype.itemsize)
        kept = self._kept.setdefault(nbytes, [])
        found = next((m for m in kept if not m.is_held()), None)
        if found is None:
            found = Reused(long_lived(torch.Size((nbytes,)), torch.uint8))
            if self._bytes + nbytes <= _MOST_BYTES:
                self._bytes += nbytes
                kept.append(found)
        return found.memory[: size * dtype.itemsize].view(dtype)

    # ---- calls of programs that have requested the group's backend: they go to the group ----

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> dist.Work:
        return self._group.send(tensors, to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> dist.Work:
        return self._group.recv(tensors, source, tag)

    def abort(self) -> None:
        self._group.abort()

    def get_error(self) -> object:
        """Returns torch's ErrorType of the error that ended the group."""
        return error_type(self._group._native.failed())

    @property
    def supports_reconfigure(self) -> bool:
        return self._group.supports_reconfigure

    def get_reconfigure_handle(self) -> str:
        return self._group.get_reconfigure_handle()

    def reconfigure(self, opts: object) -> dist.Work:
        return self._group.reconfigure(opts)

    @property
    def supports_window(self) -> bool:
        return self._group.supports_window

    def new_window(self, tensor: torch.Tensor | None = None) -> object:
        return self._group.new_window(tensor)

    def set_timeout(self, timeout) -> None:
        self._group.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        return None
