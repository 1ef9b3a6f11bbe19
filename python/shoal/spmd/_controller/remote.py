"""Values that lie on the ranks. The program has their metadata, and the number by which the ranks find them."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import torch

from shoal.spmd._controller.controller import Controller, Position
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.sharding import Sharding, parts_of
from shoal.spmd._layout.traffic import Origin


class Meta:
    """A shape and a dtype, as one object for each combination, so that comparisons are cheap."""

    __slots__ = ("dtype", "shape")
    _known: ClassVar[dict[tuple, Meta]] = {}

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype):
        self.shape, self.dtype = shape, dtype

    @classmethod
    def cached(cls, shape: Any, dtype: torch.dtype) -> Meta:
        key = (tuple(shape), dtype)
        found = cls._known.get(key)
        if found is None:
            found = cls._known[key] = cls(*key)
        return found

    @classmethod
    def forget(cls) -> None:
        """Clears the cache of Metas. Existing tensors keep theirs, so operators on these tensors are planned once more."""
        cls._known.clear()


class RemoteBox:
    """The box of a Tensor whose value lies on the ranks: its number there, and its metadata."""

    __slots__ = ("_array", "_held", "_mark", "_sharding", "at", "base", "is_view", "number", "recorder", "strides")

    def __init__(self, recorder: Controller, number: int, meta: Meta, is_view: bool = False, sharding: Sharding | None = None):
        self.recorder, self.number, self._array, self.is_view = recorder, number, meta, is_view
        self._mark: Sharding | None = None
        self._sharding = sharding  # ``None`` if unknown here, as for a view, whose sharding changes with its base
        self.at: Position = None  # position in the program of the operator that made this sharding
        self.base: tuple[Position, Any] | None = None  # for a view: ``at`` and ``base`` of the box that it is a view of
        self._held: tuple[Sharding, dict[int, weakref.ref]] | None = None
        self.strides: tuple[int, ...] | None = None

    def __del__(self) -> None:
        self.recorder.queue.append(self.number)

    @property
    def mark(self) -> Sharding | None:
        return self._mark

    @mark.setter
    def mark(self, sharding: Sharding | None) -> None:
        self._mark = sharding
        parts, devices = (None, ()) if sharding is None else (sharding.parts, sharding.devices)
        self.recorder.add(("mark", self.number, parts, devices))

    def let_yield(self) -> None:
        self.recorder.add(("yield", self.number))

    def lay(self, sharding: Sharding) -> None:
        self.at = self.recorder.add(("lay", self.number, sharding.parts, sharding.devices))
        self._sharding = None if self.is_view else sharding

    @property
    def sharding(self) -> Sharding:
        if self._sharding is not None:
            return self._sharding
        found = Sharding(*self.recorder.query(("sharding", self.number)))
        if not self.is_view:
            self._sharding = found
        return found

    @property
    def array(self) -> RemoteArray:
        return RemoteArray(self)

    @property
    def laid(self) -> tuple[Origin | None, int]:
        found = self.recorder.query(("origin", self.number))
        if found is None:
            return None, 0
        operator, moves, views = found
        at, base = self.at, self.base
        for _ in range(views):
            if base is not None:
                at, base = base
        return (operator, at, moves), views

    def whole(self) -> torch.Tensor:
        return self.recorder.query(("whole", self.number))

    def held(self, sharding: Sharding, parts: dict[int, torch.Tensor]) -> None:
        self._held = (sharding, {position: weakref.ref(p) for position, p in parts.items()})

    def before_write(self) -> None:
        """Does nothing: the program writes to copies of the parts, which ``wrote`` sends."""

    def wrote(self) -> None:
        """Writes the program's copies of the parts back to the ranks."""
        assert self._held is not None  # the writer has read the parts before
        whole = self.whole()
        cuts = parts_of(self._array.shape, self._held[0])
        for position, ref in self._held[1].items():
            if (part := ref()) is not None:
                whole[cuts[position]] = part
        torch.ops.aten.copy_.default(Tensor(self), whole)


class RemoteArray(Array):
    """A value on the ranks in the form of an Array. Reading its parts copies them to this process."""

    def __init__(self, box: RemoteBox):
        self._box, self.shape, self.dtype = box, box._array.shape, box._array.dtype
        self._locals: dict[int, torch.Tensor] | None = None
        self.yields, self.order, self.origin = False, None, None  # only the ranks know these properties of the value

    @property
    def sharding(self) -> Sharding:
        return self._box.sharding

    @property
    def locals(self) -> dict[int, torch.Tensor]:
        if self._locals is None:
            whole, sharding = self._box.whole(), self.sharding
            cuts = enumerate(parts_of(self.shape, sharding))
            self._locals = {0: whole} if sharding.is_replicated else {position: whole[cut].clone() for position, cut in cuts}
            self._box.held(sharding, self._locals)
        return self._locals

    def gathered(self, label: str = "") -> torch.Tensor:
        return self._box.whole()
