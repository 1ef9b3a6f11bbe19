"""The user's writes to a unit's parameters: when they are allowed, and which were made while the write window was closed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.phases import Shown
from shoal.fsdp._engine.writers import announce
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.views import local_of, version_of

if TYPE_CHECKING:
    from shoal.fsdp._engine.state import State


class WriteGuard:
    """Opens the write window before writes by operators on Rows and Whole. Other writes change the counts that ``closed_window`` keeps."""

    def __init__(self, state: State):
        self._state = state
        # while the window is closed: the reason, and the result of ``counts`` when it closed
        self.closed_window: tuple[str, dict[str, int]] | None = None
        self._samples: dict[ShardedParameter, bytes] = {}  # values of this rank's rows, while a forward runs

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
            if s.shows is Shown.POST_FORWARD:
                for q in (q for u in s.units if u.post_forward_mesh is None for q in u.parameters if u.in_arena(q)):
                    root.copies[q] = local_of(q.views.unsharded.detach()).clone()
        root.open_window(f"a write to {self._full_name(p)}")

    def forward_begins(self) -> None:
        """Called when the window is closed. Writes through ``.data`` count nowhere, so ``forward_ends`` compares some values. With a guard
        of leases they cannot be read now."""
        if not self._state.settings.engine.lease_guard:
            self._samples = {p: _sample(p) for u in self._state.units for p in u.parameters if u.in_arena(p)}

    def forward_ends(self) -> InvalidArgument | None:
        """Returns an error if the forward has written to a whole parameter through ``.data``, as far as the samples show it."""
        samples, self._samples = self._samples, {}
        return next((self._whole_written(p) for p, before in samples.items() if _sample(p) != before), None)

    def _whole_written(self, p: ShardedParameter) -> InvalidArgument:
        return InvalidArgument(
            f"the whole {self._full_name(p)} was written, in memory that all ranks share",
            hint="write to the sharded parameter, before the forward or after the backward; after a forward call reshard() first",
        )

    def counts(self) -> dict[str, int]:
        """Counts torch's in-place writes per arena parameter, by name. Raises InvalidArgument for a whole parameter that was written, or
        whose memory was replaced."""
        found = {}
        for p in (p for u in self._state.units for p in u.parameters if u.in_arena(p)):
            views = p.views
            if version_of(views.unsharded) != views.whole_version:
                raise self._whole_written(p)
            if local_of(views.unsharded).data_ptr() != views.whole_address:
                raise InvalidArgument(
                    f"the data of the whole {self._full_name(p)} was replaced by another tensor, which later forwards would read instead",
                    hint="compute with a local variable, as F.linear(x, self.weight.clamp(-1, 1)), or write before the forward",
                )
            found[p.name] = version_of(views.sharded) + version_of(views.sharded._local_tensor)
        return found

    def _full_name(self, p: ShardedParameter) -> str:
        return f"parameter {p.name} of {self._state.name or 'the root'}"

    def _check(self, p: ShardedParameter) -> None:
        root, name = self._state.root, self._full_name(p)
        if root.joining:
            raise InvalidArgument(
                f"{name} is written inside join, after a forward: ranks without batches would take it for an optimizer's step",
                hint="write before or after the loop, or between a synchronised backward and the next forward",
            )
        in_backward = root.backward is not None and root.backward() is not None
        if in_backward or any(s.forwarding for s in root.states):
            raise InvalidArgument(
                f"{name} is written inside a forward or backward pass, in which other ranks may be, too",
                hint="write before the forward or after the backward (register_post_accumulate_grad_hook runs there)",
            )


def _sample(p: ShardedParameter) -> bytes:
    return ctypes.string_at(*p.views.whole_sample)
