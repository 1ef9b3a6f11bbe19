"""One rank of a hand-written step: its ShardActor, its units, and the user's modules, which the graph's compute nodes run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from shoal import _native
from shoal._core import telemetry
from shoal._core.process import state
from shoal._core.telemetry import Activity
from shoal._distributed.ranks import TIMEOUT, WARN_AFTER
from shoal._objects.tensors import address_of, in_memory
from shoal.exceptions import InvalidArgument
from shoal.fsdp import _graph
from shoal.fsdp._engine.collect import own_parameters

BATCH = -1  # source of a node that reads the batch's inputs


class GraphWorker:
    """The actor that ``shoal.fsdp.graph.place`` creates, one per rank."""

    def __init__(self, model: Callable[[], Mapping[str, nn.Module]], batch: Callable[[int, int], tuple], loss: Callable, lease_guard: bool):
        self._build, self._batch, self._loss, self._lease_guard = model, batch, loss, lease_guard
        self._runner: _native.StepRunner | None = None

    def join(self, gang: str, rank: int, world_size: int) -> tuple[dict[str, int], list[str]]:
        """Builds the model, places this rank's ShardActor and waits for the other ranks. Returns (bytes by unit, ShardActor ids)."""
        self._rank = rank
        if (opened := telemetry.telemetry(opens=True)) is not None:
            opened.set_member(rank, world_size, 1)
        units = dict(self._build())
        if not units or not all(isinstance(m, nn.Module) for m in units.values()):
            raise InvalidArgument("the model must be a function that returns a dict of units: name -> torch module")
        self._actor = _native.ShardActor.place(
            state.session,
            gang=gang,
            rank=rank,
            world_size=world_size,
            replicas=1,
            timeout=TIMEOUT,
            warn_after=WARN_AFTER,
        )
        state.ending.append(self._actor.leave)
        self._modules, self._parameters, natives = list(units.values()), [], []
        parameters = {name: own_parameters((module,), set()) for name, module in units.items()}
        owner_of: dict[nn.Parameter, str] = {}
        for name, found in parameters.items():
            for parameter, owners in found.values():
                _refuse_writers(name, owners)
                if owner_of.setdefault(parameter, name) != name:
                    raise InvalidArgument(f"units {owner_of[parameter]} and {name} share a parameter", hint="put both into one unit")
        for name, found in parameters.items():
            unit = self._actor.add_unit(
                name, [_spec_of(n, p) for n, (p, _) in found.items()], _native.UnitOptions(lease_guard=self._lease_guard)
            )
            natives.append(unit)
            self._parameters.append([self._move(unit, i, p, owners, world_size) for i, (p, owners) in enumerate(found.values())])
        self._names = [(name, list(found)) for name, found in parameters.items()]
        self._model = self._actor.make_model(natives, list(units), slots=2)
        return {name: unit.bytes for name, unit in zip(units, natives, strict=True)}, list(self._actor.members)

    def _move(self, unit: _native.ShardedUnit, index: int, original: nn.Parameter, owners: list, world_size: int) -> nn.Parameter:
        """Copies this rank's rows of a parameter into the arena. Returns the whole parameter there, which the module then reads under a
        lease."""
        if original.numel() == 0:
            return original
        rows = -(-original.shape[0] // world_size)
        own = original.detach()[self._rank * rows : (self._rank + 1) * rows]
        if own.numel():
            _native.own(unit, index).copy_(own)
        whole = nn.Parameter(_native.whole(unit, index), requires_grad=original.requires_grad)
        for module, attribute in owners:
            module._parameters[attribute] = whole
        return whole

    def send(self, graph: bytes, optimizer: dict[str, float], offload_folder: str) -> None:
        """Called when the driver sends the graph: later steps run it, with these options for its updates."""
        self._runner = _native.StepRunner.make(
            self._model, graph, **optimizer, offload_folder=offload_folder, telemetry=telemetry.telemetry()
        )
        self._grad = any(n.op == "backward" for n in self._runner.graph_nodes())

    def step(self) -> float:
        """Runs one step. Returns this rank's loss before the update."""
        program = self._make_program()  # later steps work if this fails
        try:
            self._runner.run(program)
        except BaseException as error:
            telemetry.close(error)  # later steps fail with the same cause
            raise
        if self._rank == 0:
            telemetry.record_metrics({"loss": program.loss})
        return program.loss

    def _make_program(self) -> _Program:
        with telemetry.at(Activity.LOADER):
            batch = self._batch(self._rank, self._runner.steps)
        if not isinstance(batch, tuple) or len(batch) != 2:
            raise InvalidArgument("batch(rank, step) must return (inputs, targets)")
        return _Program(self._modules, self._parameters, self._names, self._loss, batch, self._grad, self._runner.micro_batches)

    def step_graph(self) -> _graph.StepGraph:
        return _graph.of_model(self._runner, self._runner.memory)

    def rows_bytes(self) -> int:
        """Bytes of gradients and optimizer state that the engine has allocated on this rank."""
        return self._runner.rows_bytes

    def norm(self) -> float:
        return self._runner.norm

    def close_record(self) -> None:
        """Completes this process's part of the run's folder, before the driver kills the process."""
        telemetry.close()

    def frames(self) -> tuple[int, int]:
        return state.session.traffic()


class _Program:
    """The computation of one step's nodes (StepProgram in C++). A node's result is kept for the nodes that read it."""

    def __init__(
        self,
        modules: list[nn.Module],
        parameters: list[list[nn.Parameter]],
        names: list[tuple[str, list[str]]],
        loss_fn: Callable,
        batch: tuple,
        grad: bool,
        micro: int,
    ):
        self._modules, self._parameters, self._names, self._loss_fn, self._grad = modules, parameters, names, loss_fn, grad
        self._num_micro = micro
        self._inputs, self._targets = ([part] for part in batch) if micro == 1 else (_split(part, micro) for part in batch)
        self._results: dict[int, Any] = {}  # by node: its detached output, or the gradient of its input
        self._saved: dict[tuple[int, int], tuple[Any, Any]] = {}  # by unit and micro-batch: input and output of an autograd graph
        self._again: dict[tuple[int, int], tuple[Any, torch.Tensor]] = {}  # for recomputation: input and RNG state
        self._whole: dict[tuple[int, int], list[torch.Tensor | None]] = {}  # gradients until they are reduced
        self.loss = 0.0

    def forward(self, node: int, unit: int, micro: int, source: int, saves: bool) -> None:
        x = self._inputs[micro] if source == BATCH else self._results[source]
        if unit < 0:
            self._results[node] = self._run_loss(x, micro)
            return
        if not saves and self._grad:
            self._again[unit, micro] = x, torch.get_rng_state()
        y = self._run(unit, micro, x, source != BATCH, self._grad and saves)
        self._results[node] = y.detach()

    def recompute(self, unit: int, micro: int) -> None:
        x, random = self._again.pop((unit, micro))
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(random)
            self._run(unit, micro, x, x is not self._inputs[micro], True)

    def backward(self, node: int, unit: int, micro: int, source: int, reduced: bool) -> list[int]:
        x, y = self._saved.pop((unit, micro))
        if y.requires_grad:
            torch.autograd.backward(y, self._results.pop(source))
        self._results[node] = x.grad if isinstance(x, torch.Tensor) else None
        if not reduced:
            return []
        gradients = []
        for p in self._parameters[unit]:
            g, p.grad = p.grad, None
            gradients.append(None if g is None else in_memory(g).to(p.dtype))
        self._whole[unit, micro] = gradients
        return [0 if g is None else address_of(g) for g in gradients]

    def released(self, unit: int, micro: int) -> None:
        del self._whole[unit, micro]

    def _run(self, unit: int, micro: int, x: Any, wants_gradient: bool, saves: bool) -> torch.Tensor:
        with torch.set_grad_enabled(saves):
            if wants_gradient:
                x = x.detach().requires_grad_(saves and x.is_floating_point())
            before = [p._version for p in self._parameters[unit]]
            y = self._modules[unit](x)
        for p, version, name in zip(self._parameters[unit], before, self._names[unit][1], strict=True):
            if p._version != version:
                raise _writes(self._names[unit][0], name)
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"a unit of a step graph returns a tensor, not {type(y).__name__}")
        if saves:
            self._saved[unit, micro] = x, y
        return y

    def _run_loss(self, x: torch.Tensor, micro: int) -> torch.Tensor | None:
        with torch.set_grad_enabled(self._grad):
            x = x.detach().requires_grad_(self._grad and x.is_floating_point())
            y = self._loss_fn(x, self._targets[micro]) / self._num_micro
            self.loss += y.item()
            if self._grad:
                y.backward()
            return x.grad


def _refuse_writers(unit: str, owners: list[tuple[nn.Module, str]]) -> None:
    for module, attribute in owners:
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise _writes(unit, f"{attribute} of {type(module).__name__}(max_norm={module.max_norm:g})")


def _writes(unit: str, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"the forward of unit {unit} writes to its parameter {name}, in memory that all ranks read and write at the same time",
        hint="normalise or clamp a copy, as F.normalize(weight)[index], or use a buffer",
    )


def _split(batch: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Splits a batch's tensor into micro-batches. Raises InvalidArgument if that is impossible."""
    chunks = batch.chunk(parts) if isinstance(batch, torch.Tensor) else ()
    if len(chunks) != parts:
        what = f"has {len(batch)} rows" if isinstance(batch, torch.Tensor) else f"is a {type(batch).__name__}"
        raise InvalidArgument(f"a batch that {what} cannot be split into {parts} micro-batches", hint="return tensors with as many rows")
    return list(chunks)


def _spec_of(name: str, p: nn.Parameter) -> _native.ParameterSpec:
    dtype = str(p.dtype).removeprefix("torch.")
    return _native.ParameterSpec(
        name=name,
        shape=list(p.shape),
        dtype=dtype,
        requires_grad=p.requires_grad,
        dim=0,
        compute_dtype=dtype,
        reduce_dtype=dtype,
        external=False,
    )
