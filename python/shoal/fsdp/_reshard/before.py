"""The place of a model before a change of meshes, to which it can go back."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.fsdp._engine.bootstrap import keep_actor, leave_unused
from shoal.fsdp._reshard.contents import Contents
from shoal.fsdp._reshard.memory import NewMesh, leave


class OldMesh(Protocol):
    """A model's mesh before a change: a ``Before``, or for a model on devices the ``_Before`` of devices.py, which has one."""

    leaves: bool  # this rank is not on the new mesh

    def restore(self) -> None:
        """Brings model and optimizers back."""

    def forget(self) -> None:
        """Frees its memory."""


class Before:
    """The old mesh of a model that has moved, kept with its memory until ``forget``. ``restore`` returns model and optimizers to it without
    communication. It works only until the first write to the new rows, because an arena that the new mesh took over holds the rows of both
    meshes. ``leaves``: this rank is not on the new mesh, so ``restore`` has nothing to do."""

    def __init__(self, contents: Contents, leaves: bool):
        units, roots = contents.units, contents.roots
        self._contents, self.leaves = contents, leaves
        self._actors = list({id(u.actor): u.actor for u in units}.values())
        natives, rows = [u.native for u in units], [[p.own for p in u.parameters] for u in units]
        self._mesh = NewMesh(units[0].data, units[0].actor, natives, rows, [r.models[0] for r in roots], contents.shared_arrays)
        self._states: list[list[tuple[Any, dict[str, Any]]]] = [[(p, dict(s)) for p, s in o.state.items()] for o in contents.optimizers]

    def restore(self) -> None:
        """Goes back to the old mesh, where a rank that was to leave still has its place."""
        if self.leaves:
            return
        contents = self._contents
        moved_to = contents.units[0].actor
        self._mesh.commit(contents)
        for optimizer, states in zip(contents.optimizers, self._states, strict=True):
            optimizer.state.clear()
            optimizer.state.update((p, dict(s)) for p, s in states)
            if hasattr(optimizer, "parameters_moved"):
                optimizer.parameters_moved()
        leave_unused(moved_to)
        data = self._mesh.data
        keep_actor(data.ranks, data.index, data.replicas, self._mesh.actor)

    def forget(self) -> None:
        """Frees the old memory, and takes a rank that is not on the new mesh off the old one."""
        if self.leaves:
            leave(self._contents)
        self._states.clear()
        del self._mesh
        for actor in self._actors:
            leave_unused(actor)
