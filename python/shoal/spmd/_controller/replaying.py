"""The rank's side of a controlling program: operators of batches, on numbered tensors.

An item of a batch is
- a number: the tensor is freed;
- ``(template, numbers, values, first, random)``: an operator. The template has the constant arguments; tensors are given by number, and
  changing arguments by value. New result tensors are numbered from ``first``;
- ``("template", number, operator, positional, keyword, results)``, sent before the first operator that uses the template;
  ``("lay", number, parts, devices)``: another sharding; ``("mark", number, parts or None, devices)``; ``("yield", number)``;
  ``("put", number, value)``; ``("make", number, operator, arguments, keyword arguments)``; ``("modes", *modes of torch)``;
  ``("forget_templates",)``, ``("forget_replicated",)``, ``("trace",)``;
- as the last one of a batch, a question: ``("ask", *operator)``, ``("whole", number)``, ``("item", number)``, ``("sharding", number)``,
  ``("origin", number)``, ``("communicated", by, reset)``, ``("replicated",)``, ``("idle",)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shoal._objects.values import get
from shoal.exceptions import Internal
from shoal.spmd._engine import dispatch, execution
from shoal.spmd._engine.tensor import Tensor, on_device
from shoal.spmd._layout import devices as _devices
from shoal.spmd._layout import traffic
from shoal.spmd._layout.processes import Processes, world
from shoal.spmd._layout.sharding import Sharding
from shoal.train._ranks import Place, own_place

TENSOR, VALUE, CONSTANT, LIST = range(4)  # the kinds of arguments in a template
QUESTIONS = {"ask", "whole", "item", "sharding", "origin", "communicated", "replicated", "idle"}


class Large:
    """Stands in a batch for a large host value, which lies in memory that all ranks read."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index

    def __reduce__(self):
        return Large, (self.index,)


class Small:
    """A host tensor whose bytes are in the batch."""

    __slots__ = ("dtype", "raw", "shape")

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], raw: bytes):
        self.dtype, self.shape, self.raw = dtype, shape, raw

    @classmethod
    def from_tensor(cls, t: torch.Tensor) -> Small:
        # A view as bytes needs stride 1, which contiguous() does not give a single element.
        dense = t.detach().resolve_conj().resolve_neg().contiguous().as_strided((t.numel(),), (1,))
        return cls(t.dtype, tuple(t.shape), dense.view(torch.uint8).numpy().tobytes() if t.numel() else b"")

    def tensor(self) -> torch.Tensor:
        if not self.raw:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.raw), dtype=self.dtype).reshape(self.shape)

    def __reduce__(self):
        return Small, (self.dtype, self.shape, self.raw)


class Stream:
    """Stands in a batch for a torch.Generator, with the generator's state."""

    __slots__ = ("state",)

    def __init__(self, state: bytes):
        self.state = state

    def __reduce__(self):
        return Stream, (self.state,)


@dataclass
class Failure:
    """The failure of an item: its index and error. ``continues``: the item was a question, whose
    error is raised in place, so that the program can continue."""

    item: int
    error: BaseException
    continues: bool


class _Template:
    __slots__ = ("func", "keyword", "name", "positional", "results")

    def __init__(self, name: str, positional: list, keyword: list, results: list | None):
        func: Any = torch.ops
        for part in name.split("."):
            func = getattr(func, part)
        self.name, self.func, self.positional, self.keyword = name, func, positional, keyword
        self.results = results  # the results that every call of the operator must have


def state_bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _state(generator: torch.Generator | None) -> bytes:
    return state_bytes(torch.get_rng_state() if generator is None else generator.get_state())


def state_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


class Replay:
    """The numbered tensors of a rank, and the execution of items."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self._templates: dict[int, _Template] = {}
        self._stopped = False
        # (name, begin, end, number of the operator), while operators are timed
        self._spans: list[tuple[str, float, float, int | None]] | None = None
        self._numbered = -1
        self._larges: list[torch.Tensor] = []

    def run(self, packed: bytes, larges: list) -> tuple[Any, list]:
        """Runs the items of a batch. Returns (the answer to its question, or a Failure; warnings, each with the index of its item)."""
        if self._stopped:
            raise Internal("a batch arrived after one that failed")
        items, said = pickle.loads(packed), []
        self._larges = [get(ref) for ref in larges]
        answer, at = None, 0
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            try:
                for at, item in enumerate(items):
                    answer = self._do(item)
                    if caught:
                        said += [(at, str(w.message), w.category) for w in caught]
                        caught.clear()
            except Exception as error:
                continues = type(items[at]) is tuple and items[at][0] in QUESTIONS
                self._stopped = not continues
                answer = Failure(at, error.with_traceback(None), continues)
                if self._stopped:
                    abort(f"rank {world().rank} failed: {error}")
        self._larges = []
        return answer, said

    def _do(self, item: Any) -> Any:
        if type(item) is int:
            del self.tensors[item]
            return None
        if type(item[0]) is int:
            self._operator(item)
            return None
        return getattr(self, "_" + item[0])(*item[1:])

    # ---- operators

    def _fill(self, place: tuple, numbers: Any, values: Any) -> Any:
        kind = place[0]
        if kind == TENSOR:
            return self.tensors[next(numbers)]
        if kind == VALUE:
            v = next(values)
            if type(v) is Small:
                return v.tensor()
            if type(v) is Large:
                return self._larges[v.index]
            if type(v) is Stream:
                return torch.Generator().set_state(state_tensor(v.state))
            return v
        return place[1] if kind == CONSTANT else [self._fill(p, numbers, values) for p in place[1]]

    def _called(self, item: tuple) -> tuple[_Template, Any, list, bytes | None]:
        """Runs an operator. Returns (its template, the result, the tensor arguments, the state of the random stream afterwards)."""
        number, numbers, values, _, random = item
        t = self._templates[number]
        tensors, rest = iter(numbers), iter(values)
        args = tuple([self._fill(p, tensors, rest) for p in t.positional])
        kwargs = {name: self._fill(p, tensors, rest) for name, p in t.keyword}
        generator = kwargs.get("generator")
        if random is not None and random[0] and generator is None:
            torch.set_rng_state(state_tensor(random[0]))
        expected = None if random is None else random[1] if random[0] else zlib.crc32(_state(generator))
        self._numbered += 1
        begin = time.time() if self._spans is not None else 0.0
        out = dispatch.dispatch(t.func, args, kwargs)
        if self._spans is not None:
            self._spans.append((t.name, begin, time.time(), self._numbered))
        after = None
        if random is not None:
            after = _state(generator)
            if expected is not None and expected != zlib.crc32(after):
                raise Internal(f"{t.name} drew other random numbers than the controller counted")
        return t, out, [self.tensors[n] for n in numbers], after

    def _results(self, out: Any, given: list) -> list:
        """Describes each result: (shape, dtype) of a new tensor, the index of a tensor argument, or (value,)."""
        found: list[Any] = []
        for o in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(o, Tensor):
                same = [i for i, g in enumerate(given) if g is o]
                found.append(same[0] if same else (tuple(o.shape), o.dtype))
            else:
                found.append((o,))
        return found

    def _keep(self, out: Any, results: list, first: int) -> None:
        for o, r in zip(out if isinstance(out, (list, tuple)) else [out], results, strict=True):
            if type(r) is tuple and len(r) == 2:
                self.tensors[first] = o
                first += 1

    def _operator(self, item: tuple) -> None:
        t, out, given, _ = self._called(item)
        found = self._results(out, given)
        if found != t.results:
            raise Internal(f"{t.name} returned {found}, but the controller expected {t.results}")
        self._keep(out, found, item[3])

    def _ask(self, *item: Any) -> tuple:
        """Runs an operator whose results the controller does not know. Returns (container, results, state of the random stream). The
        container is list, tuple, or None for a single result."""
        t, out, given, after = self._called(item)
        t.results = self._results(out, given)
        self._keep(out, t.results, item[3])
        return (type(out) if isinstance(out, (list, tuple)) else None), t.results, after

    def _template(self, number: int, name: str, positional: list, keyword: list, results: list | None) -> None:
        self._templates[number] = _Template(name, positional, keyword, results)

    def _make(self, number: int, name: str, args: tuple, kwargs: dict) -> None:
        func: Any = torch.ops
        for part in name.split("."):
            func = getattr(func, part)
        self.tensors[number] = on_device(func(*args, **kwargs, device="cpu"))

    def _modes(self, dtype: torch.dtype, precision: str, deterministic: bool, warn_only: bool) -> None:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)

    def _put(self, number: int, value: Any) -> None:
        self.tensors[number] = on_device(value.tensor() if type(value) is Small else self._larges[value.index])

    # ---- shardings

    def _lay(self, number: int, parts: tuple, devices: tuple) -> None:
        self.tensors[number]._box.lay(Sharding(parts, devices))

    def _mark(self, number: int, parts: tuple | None, devices: tuple) -> None:
        self.tensors[number]._box.mark = None if parts is None else Sharding(parts, devices)

    def _yield(self, number: int) -> None:
        self.tensors[number]._box.let_yield()

    # ---- questions

    def _whole(self, number: int) -> torch.Tensor | None:
        whole = self.tensors[number]._box.array.gathered()
        return whole.contiguous() if world().rank == 0 else None

    def _item(self, number: int) -> Any:
        return self.tensors[number]._box.array.gathered().item()

    def _sharding(self, number: int) -> tuple:
        s = self.tensors[number]._box.array.sharding
        return s.parts, s.devices

    def _origin(self, number: int) -> tuple | None:
        """Returns the operator that made a tensor's sharding, the communication for that, and the number of views since. Only the
        controller knows the program's line."""
        found, views = self.tensors[number]._box.laid
        return found and (found[0], found[2], views)

    def _communicated(self, by: str, reset: bool) -> dict[str, int]:
        return traffic.communicated(by, reset=reset)

    def _replicated(self) -> dict[str, int]:
        return execution.replicated_ops()

    def _forget_replicated(self) -> None:
        execution.forget_replicated_ops()

    def _idle(self) -> None:
        pass

    def _forget_templates(self) -> None:
        self._templates.clear()

    # ---- times

    def _trace(self) -> None:
        self._spans, self._numbered = [], -1
        for name in ("travel", "all_reduce"):
            setattr(world(), name, self._timed(getattr(world(), name)))

    def _timed(self, communicate: Callable) -> Callable:
        def timed(*args: Any) -> Any:
            begin = time.time()
            try:
                return communicate(*args)
            finally:
                self._spans.append((f"communicate {args[-1]}", begin, time.time(), None))

        return timed

    def traced(self) -> list[tuple[str, float, float, int | None]]:
        found, self._spans = self._spans or [], None
        for name in ("travel", "all_reduce"):
            world().__dict__.pop(name, None)
        return found


def abort(cause: str) -> None:
    """Ends the waits of all ranks for each other, with ``cause`` as the error."""
    if isinstance(world(), Processes):
        world().abort(cause)


# Parameters of glibc's mallopt: limit of freed memory kept at the heap's end, and size from which an allocation is a separate mapping.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next step, so that the kernel does not clear new pages for each result."""
    with contextlib.suppress(AttributeError):  # a C library other than glibc may lack mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest value that glibc accepts


class Rank:
    """The actor of a rank."""

    def place(self) -> Place:
        return own_place()

    def begin(self, environment: dict[str, str]) -> None:
        """Joins the other ranks. ``environment``: torchrun's variables for this rank."""
        _keep_freed_memory()
        os.environ.update(environment)
        _devices.begin()
        dispatch.checks = False
        self._replay = Replay()

    def abort(self, cause: str) -> None:
        abort(cause)

    def traced(self) -> list:
        return self._replay.traced()

    def pid(self) -> int:
        return os.getpid()

    def run(self, packed: bytes, larges: list) -> Any:
        return self._replay.run(packed, larges)
