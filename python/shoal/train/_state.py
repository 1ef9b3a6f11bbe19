"""The state of a training loop, which goes from step to step, and from worker to worker when their number changes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._engine.collect import state_of
from shoal.train._changes import Change

POSITION = ("epoch", "batch", "step", "seed", "drawn")


class State:
    """The state of a training: the objects that new workers get when they join, and the position in the data.

    ``objects``: the model, the optimizer, and other objects with ``state_dict`` and ``load_state_dict`` (schedulers, scalers, averages).
    Parameters that ``shoal.fsdp.fully_shard`` has sharded, and their optimizers' state, move from their owners to the new owners. New
    workers get whole copies of other objects, of buffers, and of the random number generators of Python, NumPy and torch.
    ``seed``: decides the order of the samples; the same on every worker. ``on_change``: called on every worker that goes on, after each
    change, with a :class:`Change`.

    ``epoch`` is the current epoch, from 0; ``batch`` counts the batches of this epoch that :func:`steps` has yielded, and ``step`` those of
    all epochs. ``samples`` is the size of this worker's part of the current batch, and ``global_samples`` that of the whole batch.
    ``last_part``: False while a worker of a training with ``deterministic=True`` has further parts of the current batch to run.
    """

    def __init__(self, *, seed: int = 0, on_change: Callable[[Change], Any] | None = None, **objects: Any):
        for name, value in objects.items():
            if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
                raise InvalidArgument(
                    f"{name} of a State is a {type(value).__name__} without state_dict and load_state_dict",
                    hint="pass objects with these methods; a value that changes needs a class with both",
                )
            if hasattr(type(self), name) or name in ("objects", "samples", "global_samples", *POSITION):
                raise InvalidArgument(f"{name} is an attribute of every State", hint="pass the object by another name")
        if on_change is not None and not callable(on_change):
            raise InvalidArgument(f"on_change of a State is a function, not a {type(on_change).__name__}")
        self.objects, self.on_change, self.seed = objects, on_change, int(seed)
        self.epoch = self.batch = self.step = 0
        self.drawn = 0  # the checksum of this epoch's batches so far; 0 if it is unknown
        self.samples = self.global_samples = 0
        self.gang: Any = None  # the workers that train together; the first ``steps`` sets it
        self.loader: Any = None  # the one loader whose position this is

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["objects"][name]
        except KeyError:
            raise AttributeError(f"this State has no {name}") from None

    @property
    def last_part(self) -> bool:
        return self.gang is None or not self.gang.mid_batch

    # ---- for checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and the state of all objects but models and optimizers, which a checkpoint stores by itself."""
        rest = {n: o.state_dict() for n, o in self.objects.items() if not isinstance(o, (nn.Module, torch.optim.Optimizer))}
        return {name: getattr(self, name) for name in POSITION} | {"objects": rest}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continues at a saved position, with any number of workers. Call it on every worker, before :func:`steps`."""
        missing = [name for name in POSITION if name not in saved and name != "drawn"]  # former releases did not save ``drawn``
        if missing:
            raise InvalidArgument(f"this is no state_dict of a State: it has no {', '.join(missing)}")
        for name, value in saved.get("objects", {}).items():
            if name in self.objects:
                self.objects[name].load_state_dict(value)
        for name in POSITION:
            setattr(self, name, int(saved.get(name, 0)))

    # ---- values over all workers ----

    def mean(self, value: Any) -> float:
        """Returns the mean of ``value`` (a number, or a tensor of one element) over the current batch: each worker's value counts by its
        samples. Every worker has to call it.

        With ``deterministic=True`` call it in every part. It returns the mean in the last one, and ``value`` before."""
        value = float(value.detach() if torch.is_tensor(value) else value)
        if self.gang is not None and self.gang.parts is not None and self.gang.parts.running:
            return self.gang.parts.mean(value)
        if self.gang is None or self.gang.size == 1:
            return value
        total, weight = self.gang.sum([value * self.samples if self.samples else 0.0, self.samples])
        return total / weight if weight else value


def sharded_models(state: State) -> list[nn.Module]:
    """Returns the models of a State that ``fully_shard`` has sharded, as a whole or in parts."""
    found = [o for o in state.objects.values() if isinstance(o, nn.Module)]
    return [m for m in found if any(state_of(inner) is not None for inner in m.modules())]


def device_type_of(state: State) -> str:
    """The type of the devices on which the sharded model lies."""
    found = (state_of(m) for model in sharded_models(state) for m in model.modules())
    return next((s.data.mesh.device_type for s in found if s is not None), "cpu")


def check_elastic(state: State) -> None:
    """Raises Unimplemented for models that an elastic training cannot train as one process would."""
    if len(sharded_models(state)) > 1:
        raise Unimplemented(
            "a State with several sharded models is not in this release",
            hint="put the models into one torch.nn.ModuleDict and shard that",
        )
    for name, o in state.objects.items():
        for where, m in o.named_modules() if isinstance(o, nn.Module) else ():
            if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.max_norm is not None:
                raise Unimplemented(
                    f"the forward of {type(m).__name__} {where!r} in {name} writes to its weight (max_norm={m.max_norm:g}), and each "
                    "worker would renormalise the rows of its own part of a batch only",
                    hint="normalise a copy in forward: F.embedding(indices, F.normalize(weight))",
                )


def optimizers_of(state: State) -> list[torch.optim.Optimizer]:
    """Returns the optimizers whose parameters are sharded."""
    found = [o for o in state.objects.values() if isinstance(o, torch.optim.Optimizer)]
    return [o for o in found if any(isinstance(p, DTensor) for group in o.param_groups for p in group["params"])]


def luggage(state: State) -> dict[str, Any]:
    """Returns all that a new worker needs besides what ``reshard`` moves: sharded models with their buffers, and their optimizers."""
    moved = {id(o) for o in (*sharded_models(state), *optimizers_of(state))}
    whole = {name: o.state_dict() for name, o in state.objects.items() if id(o) not in moved}
    return {"whole": whole, "random": random_states(), "position": {name: getattr(state, name) for name in POSITION}}


def unpack(state: State, received: dict[str, Any]) -> None:
    """Takes over what ``luggage`` of another worker returned."""
    for name, value in received["whole"].items():
        state.objects[name].load_state_dict(value)
    for name, value in received["position"].items():
        setattr(state, name, value)
    set_random_states(received["random"])


def random_states() -> dict[str, Any]:
    """Returns the states of the generators of Python, torch, the current device and, if the process has imported it, NumPy."""
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "numpy": numpy_state, "device": device}


def seed_all(seed: int) -> None:
    """Seeds the generators of Python, torch, the current device and, if the process has imported it, NumPy."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # not in a forked worker of a DataLoader, which has no device
        torch.cuda.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if states["device"] is not None:
        torch.cuda.set_rng_state(states["device"])
    if states["numpy"] is not None:
        import numpy

        numpy.random.set_state(states["numpy"])
