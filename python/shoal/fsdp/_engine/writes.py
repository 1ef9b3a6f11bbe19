"""The user's writes to a unit's parameters: when they are allowed, and which were made while the write window was closed."""

from __future__ import annotations

import ctypes
from operator import attrgetter
from typing import TYPE_CHECKING

from shoal._native import View
from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.writers import announce
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.views import local_of

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import StateSeam


_version, _local = attrgetter("_version"), attrgetter("_local_tensor")


class _Watched:
    """The parameters of a state that ranks read in the arena. Each forward looks at all of them, so their tensors are in lists."""

    def __init__(self, state: StateSeam):
        self.parameters = [p for u in state.units for p in u.parameters if u.in_arena(p)]
        views = [p.views for p in self.parameters]
        self._locals, self._addresses = [local_of(v.unsharded) for v in views], [v.whole_address for v in views]
        self._counted = [p for p, v in zip(self.parameters, views, strict=True) if not v.unsharded.is_inference()]
        self._wholes, self._versions = [p.views.unsharded for p in self._counted], [p.views.whole_version for p in self._counted]
        self._samples = [(ctypes.c_char * num_bytes).from_address(at) for at, num_bytes in (v.whole_sample for v in views)]
        self._sharded = [v.sharded for v in views]
        counted = [p for p in self.parameters if not p.own.is_inference()]
        self._rows = [p.own for p in counted]  # writes to the user's tensor (Rows), which shares its memory, count in its version
        self.names = [p.name for p in (*self.parameters, *counted)]

    def samples(self) -> bytes:
        """Some of this rank's values in the whole parameters."""
        return b"".join(self._samples)

    def marks(self) -> list[int]:
        """Numbers, each of which changes with a write to the sharded parameter of that place in ``names``, or a replacement of its rows."""
        return [*map(id, map(_local, self._sharded)), *map(_version, self._rows)]

    def written_whole(self) -> ShardedParameter | None:
        """Returns a whole parameter of which torch has counted a write."""
        versions = [*map(_version, self._wholes)]
        return None if versions == self._versions else _first_other(self._counted, versions, self._versions)

    def replaced_whole(self) -> ShardedParameter | None:
        """Returns a whole parameter that has other memory than before."""
        addresses = [t.data_ptr() for t in self._locals]
        return None if addresses == self._addresses else _first_other(self.parameters, addresses, self._addresses)


def _first_other(parameters: list[ShardedParameter], now: list[int], before: list[int]) -> ShardedParameter:
    return next(p for p, a, b in zip(parameters, now, before, strict=True) if a != b)


class WriteGuard:
    """Opens the write window before writes by operators on Rows and Whole. Other writes change the marks that ``closed_window`` keeps."""

    def __init__(self, state: StateSeam):
        self._state = state
        # while the window is closed: the reason, and the marks of ``_Watched`` when it closed
        self.closed_window: tuple[str, list[int]] | None = None
        self._of_units: _Watched | None = None
        self._samples: bytes | None = None  # while a forward runs

    @property
    def _watched(self) -> _Watched:
        if self._of_units is None:
            self._of_units = _Watched(self._state)
        return self._of_units

    def forget(self) -> None:
        """Called when the units' parameters or their memory change."""
        self._of_units = self._samples = self.closed_window = None

    def guards(self, p: ShardedParameter) -> bool:
        """Returns True if other ranks may read this parameter's rows now."""
        root = self._state.root
        if root is None or root.window_open:
            return False
        if root.in_backward_optimizer is not None and root.in_backward_optimizer.updating:
            return False  # the optimizer in backward updates a unit that no rank reads again
        return all(u.in_arena(p) for u in self._state.units if p in u.parameters)

    def before_rows(self, p: ShardedParameter) -> None:
        """Called before the user writes to this rank's rows. Opens the write window, as an optimizer's step does."""
        announce()
        if not self.guards(p):
            return
        self._check(p)
        self._state.root.open_window(f"a write to {self._full_name(p)}")

    def before_whole(self, p: ShardedParameter) -> None:
        """Called before the user writes to a whole parameter after an evaluation. Copies all such parameters to private memory, then opens
        the window."""
        root = self._state.root
        if root is None or p in root.copies:
            return
        resharded = any(u.post_forward_mesh is not None for u in self._state.units)
        if root.window_open or resharded or p.dtype != p.compute_dtype:
            raise InvalidArgument(
                f"{self._full_name(p)} is unsharded after a forward, in memory that all ranks share, and cannot be written",
                hint="call reshard() on the module first: then it shows the sharded parameters, which may be written",
            )
        self._check(p)
        for s in root.states:
            if s.shows in (View.GUARDED, View.SMALLER_MESH):
                for q in (q for u in s.units if u.post_forward_mesh is None for q in u.parameters if u.in_arena(q)):
                    root.copies[q] = local_of(q.views.unsharded.detach()).clone()
        root.open_window(f"a write to {self._full_name(p)}")

    def forward_begins(self) -> None:
        """Called when the window is closed. torch does not count writes through ``.data``, so ``forward_ends`` compares some values with
        those of now. With ``lease_guard`` a read before the lease would end the process, so nothing is compared."""
        if not self._state.settings.engine.lease_guard:
            self._samples = self._watched.samples()

    def forward_ends(self) -> InvalidArgument | None:
        """Returns an error if the forward has written to a whole parameter through ``.data``, as far as the samples show it."""
        before, self._samples = self._samples, None
        if before is None or before == (now := self._watched.samples()):
            return None
        at = 0
        for p in self._watched.parameters:
            begin, at = at, at + p.views.whole_sample[1]
            if before[begin:at] != now[begin:at]:
                return self._whole_written(p)
        return None

    def _whole_written(self, p: ShardedParameter) -> InvalidArgument:
        return InvalidArgument(
            f"the whole {self._full_name(p)} was written, in memory that all ranks share",
            hint="write to the sharded parameter, before the forward or after the backward; after a forward call reshard() first",
        )

    def close(self, why: str, again: bool = False) -> InvalidArgument | None:
        """Records the reason why the window is closed. Records the present marks, too, if there are none yet, or with ``again``. Returns an
        error for a whole parameter that was written, or whose memory was replaced."""
        watched = self._watched
        self.closed_window = why, watched.marks() if again or self.closed_window is None else self.closed_window[1]
        if (p := watched.written_whole()) is not None:
            return self._whole_written(p)
        if (p := watched.replaced_whole()) is None:
            return None
        return InvalidArgument(
            f"the data of the whole {self._full_name(p)} was replaced by another tensor, which later forwards would read instead",
            hint="compute with a local variable, as F.linear(x, self.weight.clamp(-1, 1)), or write before the forward",
        )

    def written(self) -> list[str]:
        """Returns the names of the parameters whose rows were written since ``close``."""
        if self.closed_window is None or self.closed_window[1] == (now := self._watched.marks()):
            return []
        written = (name for name, a, b in zip(self._watched.names, self.closed_window[1], now, strict=True) if a != b)
        return list(dict.fromkeys(written))

    def _full_name(self, p: ShardedParameter) -> str:
        return f"parameter {p.name} of {self._state.name or 'the root'}"

    def _check(self, p: ShardedParameter) -> None:
        root, name = self._state.root, self._full_name(p)
        if root.step.joining:
            raise InvalidArgument(
                f"{name} is written inside join, after a forward: ranks without batches would take it for an optimizer's step",
                hint="write before or after the loop, or between a synchronised backward and the next forward",
            )
        root.note_left()
        if root.step.in_pass or any(s.forwarding for s in root.states):
            raise InvalidArgument(
                f"{name} is written inside a forward or backward pass, in which other ranks may be, too",
                hint="write before the forward or after the backward (register_post_accumulate_grad_hook runs there)",
            )
