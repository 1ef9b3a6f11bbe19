"""The protection of a model on devices: that of its copy in the host's memory."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any

import torch

from shoal._objects.tensors import dtensor, with_dtype
from shoal.fsdp._engine.root import Root
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.precision import engine_dtype
from shoal.fsdp._plan.plan import root_of
from shoal.fsdp._protect.copied import ROWS, CopiedStep
from shoal.fsdp._protect.host_copy import HostCopy
from shoal.fsdp._protect.protection import Protection, check_unprotected
from shoal.fsdp._protect.states import NEW, StatesOf, states_of
from shoal.optim._fused import Fused
from shoal.optim._threads import num_threads


class ProtectionOfDevices(Protection):
    """The protection of a model on devices: that of its copy in the host's memory."""

    def __init__(self, root: Root, optimizer: Any, step: int, replicas: bool = False):
        check_unprotected(root)
        self._on_devices, self._steps_on_devices = root, optimizer
        copies, settings = self._copies(optimizer), root.states[0].settings
        if settings.host_copy is None or not settings.host_copy.serves(root, [optimizer]):
            settings.host_copy = HostCopy(root.states, [optimizer])
        self.host_copy = settings.host_copy
        self.host_copy.copies = copies
        self._steps_before = step - self.host_copy.num_steps
        super().__init__(root_of(self.host_copy.model), self.host_copy.optimizers[0], step, replicas)
        self._hooks: list[Any] = []
        if isinstance(optimizer, Fused):
            optimizer._host_copy = self.host_copy
        else:
            self._hooks += [
                optimizer.register_step_pre_hook(lambda *_: self.host_copy.before_step()),
                optimizer.register_step_post_hook(lambda *_: self.host_copy.after_step()),
                optimizer.register_load_state_dict_post_hook(lambda *_: self.host_copy.loaded()),
            ]
        for s in root.states:
            s.settings.protection = self

    def steps(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer in (self._steps_on_devices, self.optimizer)

    @property
    def latest_step(self) -> int:
        return self._steps_before + self.host_copy.num_steps

    def wait(self) -> None:
        self.host_copy.wait()

    def end(self) -> None:
        with contextlib.suppress(Exception):  # ``wait`` itself raises the error of a step, for callers who need to know
            self.wait()
        super().end()
        self._steps_on_devices._host_copy = None
        for hook in self._hooks:
            hook.remove()
        for s in self._on_devices.states:
            s.settings.protection = None

    @property
    def in_use(self) -> bool:
        return super().in_use and self.host_copy.serves(self._on_devices, [self._steps_on_devices])

    def follow_writes(self) -> None:
        self.host_copy.follow_writes()

    def abandon_step(self) -> None:
        self._on_devices.abandon_step()

    def join_step(self) -> None:
        with contextlib.suppress(Exception):  # the death has ended the last step's wait for other ranks with an error
            self.wait()
        super().abandon_step()

    def _copies(self, optimizer: torch.optim.Optimizer) -> dict[int, StatesOf] | None:
        """The states that are copied after each step; None if the host repeats the step."""
        return None


class ProtectionByCopies(ProtectionOfDevices):
    """The protection of a model on devices whose update the host cannot repeat. A step copies rows and states to new arrays of the record,
    and the recorded update copies these to their places. So all rows have the device's bits, and all are of one step."""

    def __init__(self, root: Root, optimizer: Any, step: int, replicas: bool = False):
        self._pending: CopiedStep | None = None
        super().__init__(root, optimizer, step, replicas)

    def _copies(self, optimizer: torch.optim.Optimizer) -> dict[int, StatesOf] | None:
        self._states = states_of(optimizer)
        return self._states

    def _arrays_of(self, p: ShardedParameter, group: dict[str, Any]) -> list[tuple[str, torch.dtype]]:
        states = self._states[self._originals[id(p)]].sharded
        return [*states.items(), (NEW + ROWS, p.dtype), *((NEW + name, dtype) for name, dtype in states.items())]

    def make_copied(self, step: CopiedStep) -> None:
        """Records a step that has arrived on the host, commits it with all ranks, and makes it in the host's copy."""
        self.root.optimizer_begin()
        began = self.begin()
        if began:
            copies, rows = [], {id(q.views.sharded): q.own for _, q in self.host_copy.pairs}
            for q, name, values in step.arrays:
                new, home = self.home(q, NEW + name).copy_(values), rows[id(q)] if name == ROWS else self.home(q, name)
                copies.append((home.data_ptr(), new.data_ptr(), home.numel(), engine_dtype(home.dtype)))
            self.record.add_copies(copies)
            self._pending = step
        self.run(began, num_threads())
        self._end_recorded()
        self.root.optimizer_end()

    def _end_recorded(self) -> None:
        step, self._pending = self._pending, None
        for q, values, sharded in step.others if step is not None else ():
            state = self.optimizer.state[q]
            for name in state.keys() - values.keys() - set(sharded):
                del state[name]
            for name in sharded:
                if name not in state:
                    home = self.home(q, name)
                    state[name] = dtensor(home, with_dtype(q._spec, home.dtype))
            state.update(values)

    @cached_property
    def _originals(self) -> dict[int, int]:
        """By the id of a copy: the id of the parameter on devices."""
        return {id(q): id(p.views.sharded) for p, q in self.host_copy.pairs}
