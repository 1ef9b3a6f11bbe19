"""A step that the host cannot repeat: the rows and states that it has made on the devices, on their way to the host's copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from shoal.exceptions import Unimplemented
from shoal.fsdp._devices.streams import REACHED, Transfers
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.slices import local_of
from shoal.fsdp._protect.states import StatesOf

ROWS = "param"


class CopiedStep:
    """The values that a step copies to the host. They have arrived once ``await_all`` has returned. ``arrays``: (parameter of the host's
    copy, name, new values). ``others``: (that parameter, its states that are single numbers, the names of its other states)."""

    def __init__(self, moves: Transfers):
        self.arrays: list[tuple[torch.Tensor, str, torch.Tensor]] = []
        self.others: list[tuple[torch.Tensor, dict[str, Any], list[str]]] = []
        self._moves = moves
        self._model: int | None = None  # the number of the model's Root
        self._singles: dict[torch.dtype, list[tuple[dict[str, Any], str, torch.Tensor]]] = {}
        # (places of single numbers, their values on the host, the copy's source, whose memory must not be reused before the copy ends).
        self._stacked: list[tuple[list[tuple[dict[str, Any], str, torch.Tensor]], torch.Tensor, torch.Tensor]] = []
        self._copied = REACHED

    @classmethod
    def begin(
        cls, moves: Transfers, pairs: Iterable[tuple[ShardedParameter, ShardedParameter]], optimizer: Any, states: dict[int, StatesOf]
    ) -> CopiedStep:
        """Begins to copy rows and states as the present stream's work leaves them. ``states``: the states that each parameter may have."""
        step = cls(moves)
        for p, q in pairs:
            step._model = p.state.root.number
            if (known := states.get(id(p.views.sharded))) is not None:
                step._take(p, q.views.sharded, optimizer.state.get(p.views.sharded) or {}, known)
        # One copy for all counters: a copy for each would take longer than those of the rows.
        for singles in step._singles.values():
            stacked = torch.stack([t.reshape(()) for _, _, t in singles])
            step._stacked.append((singles, step._to_host(stacked), stacked))
        with moves.streams.copies:
            step._copied = moves.streams.mark()
        return step

    def await_all(self) -> None:
        self._moves.streams.synchronize(self._copied)
        for singles, arrived, _ in self._stacked:
            for (values, name, single), value in zip(singles, arrived, strict=True):
                values[name] = value.clone().reshape(single.shape)
        self._singles.clear()
        self._stacked.clear()

    def _take(self, p: ShardedParameter, q: torch.Tensor, state: dict[str, Any], known: StatesOf) -> None:
        self._take_array(q, ROWS, p.own)
        values: dict[str, Any] = {}
        sharded = [name for name in state if name in known.sharded]
        check_states(p, state, known)
        for name, value in state.items():
            if name in known.sharded:
                self._take_array(q, name, value)
            elif not isinstance(value, torch.Tensor):
                values[name] = value
            elif on_host(single := local_of(value).detach()):
                values[name] = single.clone()
            else:
                self._singles.setdefault(single.dtype, []).append((values, name, single))
        self.others.append((q, values, sharded))

    def _take_array(self, q: torch.Tensor, name: str, value: torch.Tensor) -> None:
        if (local := local_of(value).detach()).numel() > 0:
            self.arrays.append((q, name, self._to_host(local)))

    def _to_host(self, t: torch.Tensor) -> torch.Tensor:
        taken = self._moves.copy_to_host(t, model=self._model)
        return taken.clone() if taken is t else taken


def on_host(t: torch.Tensor) -> bool:
    return t.is_cpu


def check_states(p: ShardedParameter, state: dict[str, Any], known: StatesOf) -> None:
    """Raises Unimplemented for a state that a step cannot copy."""
    for name, value in state.items():
        if (dtype := known.sharded.get(name)) is not None:
            if not isinstance(value, torch.Tensor):
                raise _unknown(p, name, "is no tensor", f"a tensor of {str(dtype)[6:]}")
            local = local_of(value)
            if (local.dtype, local.shape) != (dtype, p.own_shape):
                of_p = f"{str(dtype)[6:]}{list(p.own_shape)}"
                raise _unknown(p, name, f"is {str(local.dtype)[6:]}{list(local.shape)}, not {of_p}", "another state")
        elif isinstance(value, torch.Tensor) and value.numel() != 1:
            raise _unknown(p, name, "is no single number", "no such state" if name not in known.singles else "a single number")


def _unknown(p: ShardedParameter, name: str, what: str, had: str) -> Unimplemented:
    return Unimplemented(
        f"the state {name} of the protected parameter {p.name} {what}: a small tensor had {had} when protection began",
        hint="call protect again on every rank after a change of the optimizer's options, or train without protection",
    )
