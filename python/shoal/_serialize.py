"""Python values to bytes and back: pickle protocol 5 with large buffers out of band, cloudpickle where pickle is not enough."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

import cloudpickle

from shoal.exceptions import TaskError

# A buffer smaller than this travels inside the pickle.
_OUT_OF_BAND_BYTES = 4096
# Types that pickle itself knows, by value: no need for cloudpickle, which costs 20 us a call.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


def _plain(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is tuple or kind is list:
        return len(value) <= 16 and all(_plain(v) for v in value)
    return kind is dict and len(value) <= 16 and all(_plain(k) and _plain(v) for k, v in value.items())


def _tensor_from_numpy(array, dtype):
    import torch

    tensor = torch.tensor(array)  # a copy: torch has no read-only tensors, and a write to shared memory would end the process
    return tensor if dtype is None else tensor.view(getattr(torch, dtype))


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj):
        torch = _torch()
        if torch is not None and type(obj) is torch.Tensor and _dense(obj, torch):
            if obj.dtype == torch.bfloat16:  # numpy has no such type
                return _tensor_from_numpy, (obj.view(torch.int16).numpy(), "bfloat16")
            return _tensor_from_numpy, (obj.numpy(), None)
        return super().reducer_override(obj)


def _dense(tensor, torch) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    return plain and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def _torch():
    import sys

    return sys.modules.get("torch")


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """(head, buffers): the pickle and, beside it, the memory of large arrays, not copied."""
    if _plain(value):
        return pickle.dumps(value, protocol=5), []
    buffers: list[memoryview] = []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < _OUT_OF_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    with io.BytesIO() as file:
        _Pickler(file, protocol=5, buffer_callback=out_of_band).dump(value)
        return file.getvalue(), buffers


def loads(head, buffers=()) -> Any:
    """The value. Arrays lie, read-only, in the memory of ``buffers``."""
    return pickle.loads(head, buffers=buffers)


def dump_exception(error: BaseException, where: str) -> tuple[bytes, list[memoryview]]:
    """A TaskError that carries ``error`` if it can be pickled, and its traceback in any case."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    cause = error
    if isinstance(error, TaskError):
        cause, text = error.cause, error.traceback_text
    try:
        head, buffers = dumps(TaskError(cause, text, where))
        loads(head, buffers)
    except Exception:
        return dumps(TaskError(None, text, where))
    return head, buffers
