"""Memory of tensors: copies that leave the GIL alone, and aligned buffers for direct reads and writes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref

import torch

_move = ctypes.CDLL(None).memmove  # unlike ctypes.memmove, a call of it releases the GIL
_move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_move.restype = ctypes.c_void_p


_advise = ctypes.CDLL(None).madvise  # unlike mmap.madvise, a call of it releases the GIL
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MADV_POPULATE_WRITE = 23

_HUGE = 4 << 20  # larger buffers ask for huge pages, whose faults and direct I/O cost less


class Buffer:
    """Memory that begins at a page. ``view`` shows its bytes."""

    def __init__(self, num_bytes: int):
        self._map = mmap.mmap(-1, max(-(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if num_bytes >= _HUGE:
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._pinned = False

    def __len__(self) -> int:
        return len(self._map)

    def populate(self, begin: int, end: int) -> None:
        """Gives the pages of these bytes memory, before their first use. ``begin``: a multiple of the page size. A kernel before 5.14 does
        nothing."""
        _advise(self.address + begin, min(end, len(self)) - begin, _MADV_POPULATE_WRITE)

    def pin(self) -> None:
        """Locks the memory, so that CUDA devices copy to it while the host goes on. If CUDA refuses, the host waits for the copies."""
        if not self._pinned:
            self._pinned, cuda = True, torch.cuda.cudart()
            if int(cuda.cudaHostRegister(self.address, len(self), 0)) != 0:
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device="cuda")  # reports CUDA's last error, which the training's next kernel would take for its own
                return
            weakref.finalize(self, cuda.cudaHostUnregister, self.address).atexit = False


def copy_in(buffer: Buffer, at: int, source: torch.Tensor, begin: int, end: int) -> None:
    """Copies the bytes ``begin`` to ``end`` of a contiguous CPU tensor."""
    _move(buffer.address + at, source.data_ptr() + begin, end - begin)


def tensor_in(buffer: Buffer, at: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns elements that lie in the buffer. ``at`` need not be aligned to the dtype."""
    bytes_ = torch.frombuffer(buffer.view, dtype=torch.uint8, count=numel * dtype.itemsize, offset=at)
    if at % dtype.itemsize:
        bytes_ = bytes_.clone()
    return bytes_.view(dtype)


def plain(t: torch.Tensor) -> torch.Tensor:
    """Returns a plain tensor over the memory of a contiguous CPU tensor, whatever its class; others as they are."""
    if type(t) is torch.Tensor or t.device.type != "cpu" or not t.is_contiguous() or not t.numel():
        return t
    raw = (ctypes.c_char * t.nbytes).from_address(t.data_ptr())
    raw._owner = t  # keeps the memory as long as the plain tensor
    return torch.frombuffer(raw, dtype=t.dtype).view(t.shape)
