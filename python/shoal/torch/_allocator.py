"""The backend of CPU tensors as FSDP2 asks it for memory: buffers of communication, which are used again."""

from __future__ import annotations

import torch
import torch.distributed as dist

from shoal._objects.tensors import long_lived

_MOST_BYTES = 1 << 30  # of buffers that are kept for reuse, in each group


class CpuBackend:
    """What ``ProcessGroup._get_backend(torch.device("cpu"))`` returns: the queries of torch's ``Backend``.

    Memory for communication comes from buffers that are kept: their pages stay mapped between steps.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, group: dist.ProcessGroup):
        self._group = group
        self._free: dict[int, list[torch.Tensor]] = {}
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
        kept = self._free.setdefault(nbytes, [])
        for buffer in kept:
            if torch._C._storage_Use_Count(buffer.untyped_storage()._cdata) == 1:
                return buffer[: size * dtype.itemsize].view(dtype)
        buffer = long_lived(torch.Size((nbytes,)), torch.uint8)
        if self._bytes + nbytes <= _MOST_BYTES:
            self._bytes += nbytes
            kept.append(buffer)
        return buffer[: size * dtype.itemsize].view(dtype)

    def set_timeout(self, timeout) -> None:
        self._group.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        return None
