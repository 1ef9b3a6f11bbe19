"""The descriptions of a change of membership: for the user, and for one worker that takes part."""

from __future__ import annotations

from dataclasses import dataclass, field


def _amount(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"


@dataclass(frozen=True)
class Change:
    """A change of the number of workers. ``generation``: the number of the membership that begins, ``workers_before`` and ``workers``: the
    sizes. ``seconds``: the pause of the training; ``moved_bytes``: parameters and optimizer state that went to other owners. ``died``: the
    numbers of the workers whose processes have ended, in the order in which workers were created. ``phases``: the parts of the pause of the
    worker with the longest one, in seconds by name, in order. ``step``: ``State.step`` at the change, which is the last complete step.
    ``cut_off``: another worker died before all trained again. The pause goes on in the next change, and the numbers of this change cover
    only the workers that had reported."""

    generation: int
    workers_before: int
    workers: int
    seconds: float = 0.0
    moved_bytes: int = 0
    died: tuple[int, ...] = ()
    phases: dict[str, float] = field(default_factory=dict)
    step: int = 0
    cut_off: bool = False

    def __str__(self) -> str:
        died = f" ({', '.join(f'worker {w}' for w in self.died)} died)" if self.died else ""
        if self.cut_off:
            return f"generation {self.generation}: {self.workers_before} -> {self.workers} workers{died}, cut off by another death"
        return (
            f"generation {self.generation}: {self.workers_before} -> {self.workers} workers{died}, pause {self.seconds:.3f} s, "
            f"{_amount(self.moved_bytes)} moved, after step {self.step}"
        )


@dataclass(frozen=True)
class Pause:
    """One worker's pause in a change, and the bytes of parameters and optimizer state that it received. ``phases``, ``step``: as in
    Change."""

    seconds: float = 0.0
    moved_bytes: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class Transition:
    """One worker's part in a change. The union of a change has the workers of the new generation, followed by those that leave.

    ``union``: the environment of the union's process group; None if that is the present group. ``final``: the environment after the change;
    None for a worker that leaves. ``old_owners[i]``: the rank in the union of the worker that was rank i. ``old_index``: this worker's rank
    before; None for a newcomer. ``recovers``: workers have died, and the step under way is finished or run again. ``base``: the former
    generation, with which an interrupted change is completed or dropped. ``again``: the loops have to run again. ``adopts``: the former
    ranks whose shards this worker takes over.
    """

    change: Change
    union: dict[str, str] | None
    final: dict[str, str] | None
    old_owners: tuple[int, ...]
    old_index: int | None
    newcomers: int
    recovers: bool = False
    base: int = 0
    again: bool = False
    adopts: tuple[int, ...] = ()
