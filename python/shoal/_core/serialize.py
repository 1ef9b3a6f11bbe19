"""Serialization of Python values: pickle protocol 5 with large buffers out of band, cloudpickle where pickle is not enough."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import io
import os
import pickle
import sys
import threading
import traceback
from typing import Any

from shoal import cloudpickle
from shoal.exceptions import TaskError, bare, parts, pickle_causes_by

# Smaller buffers travel inside the pickle.
_OUT_OF_BAND_BYTES = 4096
# Buffers beyond this number travel inside the pickle, too: a value has at most kMaxBuffers (actors/value/value.h).
_MAX_BUFFERS = 10_000
# Bytes of at least this size get their own buffer; for smaller ones a single frame is cheaper.
_LARGE_BYTES = 1 << 16
# Types that pickle handles by value, without cloudpickle, which costs 20 us a call.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})

UNSENDABLE = (TypeError, AttributeError, pickle.PicklingError)  # errors of pickle for unsupported values


def _plain(value: Any, depth: int = 4) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth == 0:  # it nests too deep, or contains itself
        return False
    if kind is tuple or kind is list:
        return len(value) <= 16 and all(_plain(v, depth - 1) for v in value)
    return kind is dict and len(value) <= 16 and all(_plain(k, depth - 1) and _plain(v, depth - 1) for k, v in value.items())


def small(value: Any) -> bool:
    """True for a small value of a plain type, which needs no inspection, buffer or cloudpickle."""
    kind = type(value)
    return kind in _PLAIN and (kind is not bytes or len(value) < _LARGE_BYTES)


def _array(memory, dtype, shape: tuple[int, ...]):
    import numpy

    return numpy.frombuffer(memory, numpy.uint8).view(dtype).reshape(shape)


def _tensor(memory, dtype: str, shape: tuple[int, ...]):
    import torch

    if not memoryview(memory).nbytes:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    # A tensor cannot be read-only, so its memory must not be shared. The session's view is read-only, but the memory behind it is
    # private: the session copies it for pickles that name this function (python/native/session/refs.cc).
    view = memoryview(memory)
    if view.readonly:
        view = memoryview(view.obj)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=getattr(torch, dtype)).reshape(shape)


def _strided(dense, order: tuple[int, ...], shape: tuple[int, ...]):
    """Returns a tensor with permuted and expanded dimensions of a dense one."""
    return dense.permute(order).expand(shape)


def _leaf(tensor, wants_gradient: bool, parameter: bool):
    if not parameter:
        return tensor.requires_grad_(wants_gradient)
    from torch.nn import Parameter

    return Parameter(tensor, requires_grad=wants_gradient)


class _Memory:
    """Wraps bytes, so that they become a buffer beside the pickle. Without it, pickle copies them into itself."""

    __slots__ = ("value",)

    def __init__(self, value: bytes | bytearray):
        self.value = value

    def __reduce__(self):
        return type(self.value), (pickle.PickleBuffer(self.value),)


def beside(value: Any) -> Any:
    """Returns the object to pickle for an argument, a result or a put value. Large ``bytes`` are wrapped, which saves a copy."""
    return _Memory(value) if (type(value) is bytes or type(value) is bytearray) and len(value) >= _LARGE_BYTES else value


def _set_attributes(obj, attributes: dict[str, Any]) -> None:
    vars(obj).update(attributes)


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj):
        kind = type(obj)
        if kind in copyreg.dispatch_table:  # a registered serializer comes first (register_serializer)
            return NotImplemented
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter) and _in_memory(obj, torch):
            return (*_tensor_parts(obj, torch), vars(obj) or None, None, None, _set_attributes)
        if numpy is not None and kind is numpy.ndarray and not obj.dtype.hasobject:
            return _array_parts(obj, numpy)
        if isinstance(obj, BaseException) and _pickles_by_default(kind):
            return bare, (kind, *parts(obj))
        return super().reducer_override(obj)


class _CodePickler(_Pickler):
    """For functions and classes: arrays inside the pickle stay writable."""

    def reducer_override(self, obj):
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(obj) is numpy.ndarray:
            return NotImplemented
        return super().reducer_override(obj)


_MAX_CODE_BYTES = 10**8  # Ray's FUNCTION_SIZE_ERROR_THRESHOLD


def check_size(what: str, size: int) -> None:
    """Raises Ray's ValueError for the code of a function or class ("remote function f") if that is too large for each worker to read."""
    if size >= _MAX_CODE_BYTES:
        raise ValueError(
            f"The {what} is too large ({size >> 20} MiB > FUNCTION_SIZE_ERROR_THRESHOLD={_MAX_CODE_BYTES >> 20} MiB). Check that its "
            "definition is not implicitly capturing a large array or other object in scope. Tip: use shoal.put() to put large objects in "
            "the object store, and pass the reference as an argument."
        )


class _HostPickler(_Pickler):
    """Tensors of devices arrive in the host's memory, because the receiver may have no such device."""

    def reducer_override(self, obj):
        torch, kind = sys.modules.get("torch"), type(obj)
        if torch is None or kind not in (torch.Tensor, torch.nn.Parameter) or obj.device.type in ("cpu", "meta"):
            return super().reducer_override(obj)
        parts = (obj.detach().cpu(), obj.requires_grad, kind is torch.nn.Parameter)
        return _leaf, parts, vars(obj) or None, None, None, _set_attributes


class OnHost:
    """Wraps a value for pickling. The receiver gets the value itself, with plain tensors of devices in the host's memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __reduce__(self):
        head, buffers = dumps(self.value, _HostPickler)
        return loads, (head, [pickle.PickleBuffer(b) for b in buffers])  # large arrays are not copied


class Code:
    """Wraps a class for pickling; the arrays that it refers to are copied and stay writable."""

    __slots__ = ("what",)

    def __init__(self, what: Any):
        self.what = what

    def __reduce__(self):
        with io.BytesIO() as file:
            try:
                _CodePickler(file, protocol=5).dump(self.what)
            except UNSENDABLE as error:
                hint = "shoal.util.inspect_serializability(..) of it shows what it refers to"
                raise TypeError(f"class {self.what.__name__} cannot be sent: {error}; {hint}") from error
            check_size(f"actor {self.what.__name__}", file.tell())
            return pickle.loads, (file.getvalue(),)


def _in_memory(tensor, torch) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized


def _tensor_parts(tensor, torch) -> tuple:
    """Returns (function, arguments) that rebuild the tensor from its bytes, which are copied only if not contiguous."""
    parameter = type(tensor) is torch.nn.Parameter
    if parameter or tensor.requires_grad:
        return _leaf, (tensor.detach(), tensor.requires_grad, parameter)
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        flat = tensor.as_strided((tensor.numel(),), (1,))  # a single element may have any stride
        memory = flat.view(torch.uint8).numpy()  # as bytes, since numpy lacks some dtypes
        return _tensor, (pickle.PickleBuffer(memory), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    once = tensor.resolve_conj().resolve_neg()
    for dim, stride in enumerate(once.stride()):
        if stride == 0 and once.shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    by_stride = sorted(range(once.dim()), key=once.stride, reverse=True)
    back = tuple(by_stride.index(dim) for dim in range(once.dim()))
    return _strided, (once.permute(by_stride).contiguous(), back, tuple(tensor.shape))


def _for_reading(array):
    """Returns a view that arrives read-only. For arrays that numpy copies into the pickle (non-contiguous ones, dates) it returns None."""
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous) or array.dtype.kind in "Mm":
        return None
    view = array.view()
    view.flags.writeable = False
    return view


def _array_parts(array, numpy) -> tuple:
    """Returns (function, arguments) that rebuild the array, read-only."""
    view = _for_reading(array)
    if view is not None:
        return view.__reduce_ex__(5)
    plain = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    plain.flags.writeable = False
    return _array, (pickle.PickleBuffer(plain), array.dtype, array.shape)


def _pickles_by_default(cls: type[BaseException]) -> bool:
    """True if the class pickles by a call with ``args``, which fails for an ``__init__`` with other parameters."""
    reducers = [next(c for c in cls.__mro__ if name in vars(c)) for name in ("__reduce__", "__reduce_ex__")]
    return all(c.__module__ == "builtins" for c in reducers)


def dumps(value: Any, pickler: type[_Pickler] = _Pickler) -> tuple[bytes, list[memoryview]]:
    """Returns (value head, buffers): the pickle, and the memory of large arrays and bytes, not copied."""
    value = beside(value)
    if _plain(value):
        return pickle.dumps(value, protocol=5), []
    buffers: list[memoryview] = []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < _OUT_OF_BAND_BYTES or len(buffers) == _MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    numpy = sys.modules.get("numpy")
    plain_array = numpy is not None and type(value) is numpy.ndarray and numpy.ndarray not in copyreg.dispatch_table
    if plain_array and not value.dtype.hasobject and (view := _for_reading(value)) is not None:
        return pickle.dumps(view, protocol=5, buffer_callback=out_of_band), buffers  # the common case, without cloudpickle
    with io.BytesIO() as file:
        pickler(file, protocol=5, buffer_callback=out_of_band).dump(value)
        return file.getvalue(), buffers


_pickled = threading.local()  # .refs: the references that pack() has found in this thread


def pack(value: Any, pickler: type[_Pickler] = _Pickler, what: str = "") -> tuple[bytes, list[memoryview], list]:
    """Returns (value head, buffers, refs): as ``dumps``, with the references in the value, which must be kept as long as the value.
    ``what`` names the value in the TypeError if it cannot be pickled; without it pickle's own error is raised."""
    if small(value):
        return pickle.dumps(value, protocol=5), [], []
    outer = getattr(_pickled, "refs", None)
    refs = _pickled.refs = []
    try:
        return (*dumps(value, pickler), refs)
    except UNSENDABLE as error:
        if not what:
            raise
        raise unsendable(what, value, error) from error
    finally:
        _pickled.refs = outer


Snapshot = tuple[bytes, list[bytes]]


def snapshot(value: Any, what: str) -> Snapshot:
    """Pickles the value as it is now. ``loads`` makes copies from the result, without later changes of the value. Tensors of devices come
    back in the host's memory. ``what``: as for ``pack``."""
    head, buffers, _ = pack(value, _HostPickler, what)
    return head, [bytes(buffer) for buffer in buffers]


def unsendable(what: str, value: Any, error: Exception) -> TypeError:
    """Returns the error for a value that cannot be pickled. ``what`` names it: "argument 0", "the value that was put"."""
    value = value.value if isinstance(value, OnHost) else value
    hint = "shoal.util.inspect_serializability(..) shows which part of it"
    return TypeError(f"{what}, of type {type(value).__name__}, cannot be sent: {error}; {hint}")


RETURNED, YIELDED = "the value that it returned", "a value that it yielded"


def pack_function(function: Any) -> tuple[bytes, list[memoryview], list]:
    """Packs a function. Small arrays that it refers to are copied and stay writable; large ones lie in buffers, read-only."""
    return pack(function, _CodePickler)


# Lengths of the suffix of a pickled remote function, by which workers cache it: a random identity, and for a large one its number, since
# its bytes are not compared.
IDENTITY_BYTES, NUMBER_BYTES = 16, 8


def is_large(head, buffers) -> bool:
    """True if a packed function is too large for a comparison of its bytes."""
    return bool(buffers) or len(head) >= _LARGE_BYTES


def note_ref(ref) -> bool:
    """Notes a reference inside the value that pack() is packing. Returns False outside of pack(), where the receiver is unknown."""
    refs = getattr(_pickled, "refs", None)
    if refs is not None:
        refs.append(ref)
    return refs is not None


_known: dict[bytes, tuple] = {}  # pickles of a single array: its maker, dtype, shape and order
_MAX_KNOWN = 1000
_MAX_KNOWN_BYTES = 200


def loads(head, buffers=()) -> Any:
    """Returns the value. Arrays and tensors lie in the memory of ``buffers``; arrays are read-only, tensors writable.

    Pickles of single arrays are cached: equal ones are made without pickle, which takes several times as long.
    """
    if len(buffers) != 1 or type(head) is not bytes or len(head) > _MAX_KNOWN_BYTES or not _is_for_reading(buffers[0]):
        return pickle.loads(head, buffers=buffers)
    known = _known.get(head)
    if known is not None:
        make, dtype, shape, order = known
        return make(buffers[0], dtype).reshape(shape, order=order)
    value = pickle.loads(head, buffers=buffers)
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and _is_all_of(value, head):
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[head] = (numpy.frombuffer, value.dtype, value.shape, "C" if value.flags.c_contiguous else "F")
    return value


def _is_for_reading(buffer) -> bool:
    return type(buffer) is memoryview and buffer.readonly


def _is_all_of(array, head: bytes) -> bool:
    """True if the pickle has only the array's dtype, shape and order, as numpy's own pickle has."""
    flags, dtype = array.flags, array.dtype
    if not (flags.c_contiguous or flags.f_contiguous) or dtype.names is not None or dtype.metadata is not None:
        return False
    return head == pickle.dumps(array, protocol=5, buffer_callback=lambda buffer: False)


def dump_exception(error: BaseException, where: str, host: str = "") -> tuple[bytes, list[memoryview]]:
    """Packs a TaskError with ``error``, if that can be pickled, and its traceback. ``host``: the address of this host."""
    try:
        text = _traceback_of(error)
    except Exception:  # the exception overrides standard attributes with unusable ones
        text = "".join(traceback.format_exception(error))
    if isinstance(error, TaskError):  # raised by another actor's code, whose traceback ends this one
        theirs = error._shoal_error
        return dumps(TaskError(theirs.cause, text, where, theirs.pid, theirs.ip))
    return dumps(TaskError(error, text, where, os.getpid(), host))


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the folder of shoal
_GROUP = getattr(builtins, "BaseExceptionGroup", ())  # new in Python 3.11
_MAX_TEXT = 1 << 16  # limit for a traceback, in characters


def _traceback_of(error: BaseException) -> str:
    """The traceback as Python formats it, without this package's frames around the user's code. A long one loses its middle."""
    described = traceback.TracebackException.from_exception(error)
    pairs: list[tuple[traceback.TracebackException | None, BaseException | None]] = [(described, error)]
    while pairs:
        of, one = pairs.pop()
        if of is None or one is None:  # an exception that was formatted elsewhere
            continue
        ours = [frame.filename.startswith(_PACKAGE) for frame in of.stack]
        if not all(ours):
            end = len(ours) - ours[::-1].index(False) if isinstance(one, TaskError) else len(ours)  # without the frames of get()
            of.stack = traceback.StackSummary.from_list(of.stack[ours.index(False) : end])
        pairs += [(of.__cause__, one.__cause__), (of.__context__, one.__context__)]
        if isinstance(one, _GROUP):
            pairs += zip(of.exceptions or (), one.exceptions, strict=False)
    text = "".join(described.format())
    if len(text) > _MAX_TEXT:
        out = len(text) - _MAX_TEXT
        text = f"{text[: _MAX_TEXT // 4]}\n[... {out} characters ...]\n{text[_MAX_TEXT // 4 + out :]}"
    return text


def pack_exception(error: BaseException | None) -> bytes:
    """Returns a pickle of an exception that can be loaded again, if need be without unpicklable parts. ``b""`` if there is none."""
    for candidate in (error, _Strings(error)) if error is not None else ():
        with contextlib.suppress(Exception), io.BytesIO() as file:
            _Pickler(file, protocol=5).dump(candidate)
            if isinstance(unpack_exception(file.getvalue()), BaseException):
                return file.getvalue()
    return b""


def unpack_exception(packed: bytes) -> BaseException | None:
    """Returns the exception, or None if it cannot be loaded here, for example because only the other side has its module."""
    with contextlib.suppress(Exception):
        return pickle.loads(packed)
    return None


pickle_causes_by(pack_exception, unpack_exception)


class _Strings:
    """Wraps an exception that cannot be pickled. It pickles as that exception, with text instead of such arguments, and without such
    attributes."""

    def __init__(self, error: BaseException):
        self.error = error

    def __reduce__(self):
        args, attributes = parts(self.error)
        args = tuple(a if _can_be_pickled(a) else repr(a) for a in args)
        return bare, (type(self.error), args, {k: v for k, v in attributes.items() if _can_be_pickled(v)})


def _can_be_pickled(value: Any) -> bool:
    try:
        with io.BytesIO() as file:
            _Pickler(file, protocol=5).dump(value)
            pickle.loads(file.getvalue())
    except Exception:
        return False
    return True
