"""A model on devices as the host's memory has it: its rows and optimizer states in arenas, which repeat or copy each update."""

from __future__ import annotations

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard

from shoal._objects.tensors import dtensor, lasting, with_dtype
from shoal.exceptions import InvalidArgument, Unavailable, Unimplemented
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._devices.streams import REACHED, Transfers, transfers
from shoal.fsdp._engine.root import Root
from shoal.fsdp._engine.settings import Settings
from shoal.fsdp._engine.sharding import shard
from shoal.fsdp._engine.state import State
from shoal.fsdp._parameters.mesh import DataMesh, on_hosts
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.slices import Kind, local_of
from shoal.fsdp._protect.copied import CopiedStep, check_states
from shoal.fsdp._protect.states import StatesOf, is_of_torch, states_of
from shoal.optim._fused import Fused

_MOST_COPIES = 8  # copies of one step, which are made again if the program has written to rows meanwhile
_SCALING = ("found_inf", "grad_scale")  # attributes that a GradScaler sets on an optimizer


class HostCopy:
    """``model``: a model on a mesh of the ranks' CPUs, with a unit for each unit of the model on devices. It never runs.
    ``optimizers``: its optimizers, of the same classes. A step record can protect it, and it can move to another mesh, as any model in
    arenas.

    ``states``: those of the model on devices. Every rank makes the copy, which has the present rows and states.

    The host's kernels repeat a protected step if they compute the same bits as the devices' kernels. Otherwise (``copies``) rows and
    states are copied to the host after each step.
    """

    def __init__(self, states: Iterable[State], optimizers: Iterable[torch.optim.Optimizer]):
        self._states = list(states)
        self._check()
        data = on_hosts(self._states[0].data)
        self.model = _Part()
        self.pairs: list[tuple[ShardedParameter, ShardedParameter]] = []  # a parameter on devices, and its copy
        for index, s in enumerate(self._states):
            part = _Part()
            self.model.add_module(f"{index} {s.name.replace('.', '/')}", part)
            self._add_unit(part, s, data)
        _shard(self.model, data)
        self._copies = {id(p.views.sharded): q for p, q in self.pairs}
        self._originals = list(optimizers)
        self._members = self._present_members()
        self._versions: list[list[tuple[int, int, int]]] = []  # versions of the devices' rows and states after the last step, by pair
        self._spoiled = False  # an abort has left half a sum in gradients
        self._taken: list[torch.Tensor | None] = []  # gradients of the present step, by pair, on their way to the host
        self._sums = torch.empty(0)  # checksums of the devices' rows before the step, by pair
        self._copied = self._updated = REACHED  # marks: gradients are on the host; the devices' update is complete
        self.copies: dict[int, StatesOf] | None = None  # the states that steps copy, by id of a device's parameter; None: repeats steps
        self._step: CopiedStep | None = None  # the last step, if it is copied
        self._stream: Any = None  # the program's stream during the last step
        self._repeating: threading.Thread | None = None
        self._error: BaseException | None = None
        # ``repeated_s``: seconds from an update on the devices to its repetition; ``waited_s``: those in which the program has waited.
        self.num_steps, self.repeated_s, self.waited_s = 0, 0.0, 0.0
        self.num_written = 0  # parameters, in all steps, whose rows the program has written otherwise than by its optimizer
        self.optimizers = [self._optimizer_like(o) for o in self._originals]
        self.refresh()

    def _check(self) -> None:
        for p in (p for s in self._states for u in s.units for p in u.parameters):
            if p.kind is not Kind.MEMORY or p.on_other_mesh:
                raise Unimplemented(
                    f"parameter {p.name} of {p.state.name or 'the root'} cannot have a copy in the host's memory: it is a tensor subclass, "
                    "has all-gather extensions, or is a DTensor of a larger mesh",
                    hint="use plain parameters and data parallelism, or save checkpoints",
                )

    def _add_unit(self, part: nn.Module, s: State, data: DataMesh) -> None:
        originals = [p for u in s.units for p in u.parameters]
        dims = {}
        for p in originals:
            # No page of this whole tensor is written: only the rank's rows get memory, in the arena.
            whole = nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cpu"), requires_grad=p.views.requires_grad)
            dims[whole] = p.dim
            part.register_parameter(p.name.replace(".", "/"), whole)
        copies = _shard(part, data, lambda whole: Shard(dims[whole]))
        self.pairs += zip(originals, [q for u in copies.units for q in u.parameters], strict=True)

    def _optimizer_like(self, original: torch.optim.Optimizer) -> torch.optim.Optimizer:
        groups = [
            {**_options(group), "params": [self._copies[id(p)].views.sharded if id(p) in self._copies else p for p in group["params"]]}
            for group in original.param_groups
        ]
        copied = type(original).__new__(type(original))
        copied.__setstate__({"defaults": dict(original.defaults), "state": defaultdict(dict), "param_groups": groups})
        if isinstance(copied, Fused):
            copied.reserves = False
        return copied

    @property
    def bytes(self) -> int:
        """The bytes of this rank's rows in the host's memory, beside its record."""
        return sum(q.own.numel() * q.own.itemsize for _, q in self.pairs)

    @property
    def step_bytes(self) -> int:
        """The bytes that each step copies to the host: gradients, or else rows and states."""
        found = 0
        for p, q in self.pairs:
            of = {} if self.copies is None or (known := self.copies.get(id(p.views.sharded))) is None else known.sharded
            found += q.own.numel() * (q.own.itemsize + sum(dtype.itemsize for dtype in of.values()))
        return found

    def serves(self, root: Root, optimizers: list[torch.optim.Optimizer]) -> bool:
        """True if this is a copy of these units and optimizers, as they are now."""
        present = [p for u in root.units for p in u.parameters]
        alike = len(present) == len(self.pairs) and all(p is q for p, (q, _) in zip(present, self.pairs, strict=True))
        alike = alike and all(p.dtype == q.dtype for p, q in self.pairs) and self._originals == optimizers
        return alike and self._members == self._present_members()

    def _present_members(self) -> list[list[int]]:
        return [[id(p) for p in group["params"]] for optimizer in self._originals for group in optimizer.param_groups]

    # ---- from the devices to the host, and back ----

    @property
    def _transfers(self) -> Transfers:
        return transfers.of(self._states[0].data.device)

    def refresh(self) -> None:
        """Copies the present rows, states and options from the devices."""
        with lasting():
            for p, q in self.pairs:
                q.own.copy_(p.own)
            self.take_options()
            for original, mine in zip(self._originals, self.optimizers, strict=True):
                for _, p, q in self._optimized(original):
                    state = original.state.get(p)
                    if state is None:
                        mine.state.pop(q, None)
                        continue
                    kept = mine.state[q]
                    for name in kept.keys() - state.keys():
                        del kept[name]
                    for name, value in state.items():
                        kept[name] = self._on_host(value, q, kept.get(name))

    def take_options(self) -> None:
        """Copies the options of the groups, which schedulers change."""
        for original, mine in zip(self._originals, self.optimizers, strict=True):
            for group, options in zip(mine.param_groups, original.param_groups, strict=True):
                group.update(_options(options))

    def return_options(self) -> None:
        for original, mine in zip(self._originals, self.optimizers, strict=True):
            for group, options in zip(original.param_groups, mine.param_groups, strict=True):
                group.update(_options(options))

    def return_states(self) -> None:
        """Replaces the optimizers' states on the devices by the copies."""
        self._spoiled, self._versions = False, []
        with lasting():
            for original, mine in zip(self._originals, self.optimizers, strict=True):
                singles = _singles_on_devices(original)
                original.state.clear()
                for group, p, q in self._optimized(original):
                    if q in mine.state:
                        on_device = singles.get(id(p), ())
                        original.state[p] = {n: self._on_device(value, p, n, group, on_device) for n, value in mine.state[q].items()}
                if hasattr(original, "parameters_moved"):
                    original.parameters_moved()

    def _optimized(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
        """The optimizer's parameters: group, parameter, copy. A parameter that is not sharded has no copy, and stands for itself."""
        for group in optimizer.param_groups:
            for p in group["params"]:
                q = self._copies.get(id(p))
                yield group, p, p if q is None else q.views.sharded

    @staticmethod
    def _on_host(value: Any, q: torch.Tensor, before: Any) -> Any:
        """``before``: the former copy, whose memory is kept: it may belong to a step record."""
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        local, known = local_of(value).detach(), None if before is None else local_of(before)
        if known is not None and (known.shape, known.dtype) == (local.shape, local.dtype):
            known.copy_(local)
            return before
        local = local.to("cpu", copy=True)
        return dtensor(local, with_dtype(q._spec, value.dtype)) if isinstance(value, DTensor) else local

    @staticmethod
    def _on_device(value: Any, p: torch.Tensor, name: str, group: dict[str, Any], on_device: Container[str]) -> Any:
        """``on_device``: the names of single numbers that do not lie on the host."""
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        counts = name == "step" and not (group.get("capturable") or group.get("fused"))  # as torch's optimizers have it
        on_host = counts or (value.numel() == 1 and not isinstance(value, DTensor))
        on_host = on_host and name not in on_device
        local = local_of(value).to("cpu" if on_host else p.device, copy=True)
        return dtensor(local, with_dtype(p._spec, value.dtype)) if isinstance(value, DTensor) else local

    def loaded(self) -> None:
        """Called when the program has loaded the optimizer's states while a step record protects the copy."""
        self.wait()
        self.refresh()
        for optimizer in self.optimizers:
            optimizer._protection.take_states()

    # ---- a step ----

    def before_step(self) -> None:
        """Called before the devices' update."""
        self.wait()
        self._check_spoiled()
        if self._members != self._present_members():
            raise InvalidArgument("a parameter was added to the optimizer after protect()", hint="call protect again on every rank")
        if self.copies is None:
            self._take_gradients()
            return
        for p, _ in self.pairs:
            if (known := self.copies.get(id(p.views.sharded))) is not None:
                check_states(p, self._originals[0].state.get(p.views.sharded) or {}, known)

    def _take_gradients(self) -> None:
        """Begins to copy this step's gradients to the host, before the devices' update, which may scale them."""
        scaling = (getattr(o, name, None) for o in self._originals for name in _SCALING)
        if any(isinstance(t, torch.Tensor) and not t.is_cpu for t in scaling):
            raise Unimplemented(
                "the host cannot repeat a step that a GradScaler may skip on the devices",
                hint="give the GradScaler to the State of the training: then rows and states are copied behind each step",
            )
        members = {of for group in self._members for of in group}
        moves = self._transfers
        pools, model = self._pools(), self.pairs[0][0].state.root.number
        self._taken = []
        sums = _sums(p.own for p, _ in self.pairs)
        for p, q in self.pairs:
            if id(p.views.sharded) not in members or (gradient := p.views.sharded.grad) is None:
                self._taken.append(None)
                continue
            local = local_of(gradient)
            if local.dtype != q.dtype:
                raise Unimplemented(
                    f"a protected parameter of {q.dtype} has a gradient of {local.dtype}: {p.name}",
                    hint="use gradients of the parameter's dtype",
                )
            taken = moves.to_host(local, True, pools, awaited=False, model=model)
            self._taken.append(taken.clone() if taken is local else taken)
        self._sums = moves.to_host(sums, True, pools, awaited=False, model=model)
        with moves.streams.copies:
            self._copied = moves.streams.mark()
        if any(getattr(o, "grad_scale", None) is not None for o in self._originals):
            self.order_writes()

    def _pools(self) -> list[AbstractContextManager]:
        """The streams that may have allocated gradients, to whose pools their memory returns. The present one allocates those of one shard,
        and those that the program sets."""
        streams = self._transfers.streams
        of_hooks = {u.all_reduce_hook_stream for s in self._states for u in s.units} - {None}
        return [nullcontext(), streams.reduce, streams.replicas, *map(streams.on, of_hooks)]

    def order_writes(self) -> None:
        """Makes later work of the present stream wait until the last step's gradients are on the host: it may write to them."""
        self._copied.wait()

    def spoil(self) -> None:
        """Called when the groups that sum gradients are aborted: gradients that are not on the host yet do not count."""
        self._spoiled = True

    def _check_spoiled(self) -> None:
        """Raises an error if gradients may have half a sum. Shoal's own groups abort themselves, without ``spoil``."""
        if self._spoiled:
            raise Unavailable("the groups that sum gradients were aborted, because a worker has died", reason="ActorDied")
        for data in {id(s.data): s.data for s in self._states}.values():
            if (failure := groups.failure(data)) is not None:
                raise failure

    def follow_writes(self) -> None:
        """Copies rows and states that operators have written since the last step, as their version counters show."""
        if not self._versions:
            return
        written = [pair for pair, versions in zip(self.pairs, self._versions, strict=True) if self._versions_of(pair[0]) != versions]
        if written:
            self.wait()
            self._take(written)
            self._versions = [self._versions_of(p) for p, _ in self.pairs]

    def _versions_of(self, p: ShardedParameter) -> list[tuple[int, int, int]]:
        """Identity and versions of the rows and states of a parameter. An operator on a DTensor raises only the version of the DTensor."""
        states = (o.state.get(p.views.sharded) or {} for o in self._originals)
        tensors = [p.own, p.views.sharded, *(t for state in states for t in state.values() if isinstance(t, torch.Tensor))]
        return [(local_of(t).data_ptr(), t._version, local_of(t)._version) for t in tensors]

    def after_step(self) -> None:
        """Begins to repeat or copy the devices' update in the host's memory, in a thread beside the program's next forward."""
        self.take_options()
        original, mine = self._originals[0], self.optimizers[0]
        if self.copies is None:
            for name in _SCALING:
                setattr(mine, name, getattr(original, name, None))
        else:
            device = self._states[0].data.device
            self._stream = None if device.type == "cpu" else torch.get_device_module(device).current_stream(device)
            self._begin_copies(nullcontext())
        self._updated = self._transfers.streams.mark()
        if self.copies is None:
            self._versions = [self._versions_of(p) for p, _ in self.pairs]
        self.num_steps += 1
        self._repeating = threading.Thread(target=self._repeat, name="shoal-host-copy", daemon=True)
        self._repeating.start()

    def _begin_copies(self, stream: AbstractContextManager) -> None:
        # Read before the copies: so a write during a copy shows, and is copied once more.
        self._versions = [self._versions_of(p) for p, _ in self.pairs]
        with stream:
            self._step = CopiedStep.begin(self._transfers, self.pairs, self._originals[0], self.copies)

    def _await_copies(self) -> None:
        """Waits for the copies of a step. If the program has written to rows or states meanwhile, the copies may have parts of that write,
        and are made again after it."""
        for count in range(1, _MOST_COPIES + 1):
            self._step.await_all()
            written = [p.name for (p, _), known in zip(self.pairs, self._versions, strict=True) if self._versions_of(p) != known]
            if not written:
                return
            if count < _MOST_COPIES:
                self._begin_copies(self._transfers.streams.on(self._stream))
        self._step = None
        raise InvalidArgument(
            f"the program has written to the parameter {written[0]} or its states beside each of {_MOST_COPIES} copies of a step",
            hint="write to parameters rarely, or train without protection",
        )

    def wait(self) -> None:
        """Waits until the last step counts on all ranks, and its update is repeated. Raises the error that has prevented it, once."""
        if self._repeating is None:
            return
        began = time.perf_counter()
        self._repeating.join()
        self.waited_s += time.perf_counter() - began
        self._repeating, error, self._error = None, self._error, None
        if error is not None:
            raise error

    def _repeat(self) -> None:
        began = time.perf_counter()
        try:
            with self._transfers.streams.device_guard():
                if self._step is None:
                    self._transfers.streams.synchronize(self._copied)
                else:
                    self._await_copies()
                self._check_spoiled()
                self._make_step()
        except BaseException as error:
            self._error = error
        self.repeated_s += time.perf_counter() - began

    def _make_step(self) -> None:
        mine = self.optimizers[0]
        protection = mine._protection
        if self._step is not None:
            step, self._step = self._step, None
            protection.make_copied(step)
            return
        same = self._sums == _sums(q.own for _, q in self.pairs)
        written = [pair for pair, alike in zip(self.pairs, same.tolist(), strict=True) if not alike]
        for (_, q), taken in zip(self.pairs, self._taken, strict=True):
            if taken is not None:
                home = torch.empty_like(q.own) if q.empty else protection.home(q.views.sharded, "grad").copy_(taken)
                q.views.sharded.grad = dtensor(home, q.spec)
        self._taken.clear()
        mine.step()
        for _, q in self.pairs:
            q.views.sharded.grad = None
        if written:
            self._take(written)

    def _take(self, written: list[tuple[ShardedParameter, ShardedParameter]]) -> None:
        """Copies rows and states of parameters that the program has written otherwise than by its optimizer's step."""
        self.num_written += len(written)
        self._updated.wait()
        with lasting():
            for p, q in written:
                q.own.copy_(p.own)
                state, kept = self._originals[0].state.get(p.views.sharded), self.optimizers[0].state.get(q.views.sharded)
                for name in (state or {}).keys() & (kept or {}).keys():
                    kept[name] = self._on_host(state[name], q.views.sharded, kept[name])
        if (replicas := self.optimizers[0]._protection.replicas) is not None:
            replicas.stale = True


def _singles_on_devices(optimizer: torch.optim.Optimizer) -> dict[int, Container[str]]:
    """By the id of a parameter: its states that are single numbers on its device, as present states of its group show them. A newcomer has
    no states: there a trial shows those of torch's own optimizers. There is no trial of a program's own class, because its step may have
    effects: of such a newcomer only the counters are known."""
    if isinstance(optimizer, Fused):
        return {}
    if not optimizer.state:
        try:
            return {of: states.on_device for of, states in states_of(optimizer).items()} if is_of_torch(optimizer) else {}
        except Unimplemented:
            return {}
    found: dict[int, Container[str]] = {}
    for group in optimizer.param_groups:
        states = [optimizer.state.get(p) or {} for p in group["params"]]
        singles = {n for state in states for n, t in state.items() if isinstance(t, torch.Tensor) and t.numel() == 1 and not t.is_cpu}
        found.update((id(p), singles) for p in group["params"])
    return found


class _Part(nn.Module):
    """A module without a forward."""


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


def _sums(rows: Iterable[torch.Tensor]) -> torch.Tensor:
    """Checksums of the values' bits, by tensor: sums of words of 8 bytes. They need no wait for a device."""
    return torch.stack([_sum(t) for t in rows])


def _sum(rows: torch.Tensor) -> torch.Tensor:
    flat = rows.detach().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    words = flat[:whole]
    if words.storage_offset() % 8:
        words = words.clone()
    return words.view(torch.int64).sum() + flat[whole:].sum(dtype=torch.int64)


def _shard(module: nn.Module, data: DataMesh, placement: Any = None) -> State:
    state = State((module,), data, Settings(MixedPrecisionPolicy(), None))
    shard(state, set(), placement)
    module._shoal_fsdp_state = state
    state.hook()
    return state
