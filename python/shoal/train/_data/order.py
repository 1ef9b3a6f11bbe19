"""The order of a loader's batches, which all workers draw alike: its random numbers, its checksum, and samplers that cannot repeat it."""

from __future__ import annotations

import gc
import hashlib
import itertools
import operator
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from random import Random, SystemRandom
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from shoal.exceptions import InvalidArgument
from shoal.train._state import random_states, seed_all, set_random_states

_MOST_OBJECTS = 100_000  # objects of a sampler among which generators are searched
_LARGE = 4096  # a container with more entries holds data, not generators
_PROBED = 1000  # batches that a sampler draws twice before a training whose workers may change
_HINT = "let its order depend on set_epoch(epoch), or on generators of random, NumPy or torch that are global or its attributes"
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_LIBRARIES = {"torch", "numpy", "shoal", *sys.stdlib_module_names}  # their classes and functions hold no generators but the global ones
_HOLDS_NOTHING = (int, float, complex, str, bytes, type(None), CodeType)
_NO_SAMPLER = (ModuleType, torch.Tensor, nn.Module, Optimizer, Dataset, DataLoader)


def mixed(*numbers: int) -> int:
    """Returns a seed that depends on all the numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1


class Order:
    """The batches of one epoch. ``seed``, ``epoch``: decide the random numbers of the samplers."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int):
        self._loader, self._seed, self._epoch = loader, seed, epoch

    def __iter__(self) -> Iterator[list]:
        """Draws the epoch's batches, the same ones at each call."""
        samplers = _samplers_of(self._loader)
        for s in samplers:
            if callable(getattr(s, "set_epoch", None)):
                s.set_epoch(self._epoch)
        named = [self._loader.generator, *(getattr(s, "generator", None) for s in samplers)]
        alike = [g for g in named if isinstance(g, torch.Generator)]  # get the seed itself, on which positions of former releases depend
        held = _generators_in([*alike, self._loader.generator, *samplers], self._loader.dataset)
        apart = _Apart(mixed(self._seed, self._epoch), held, {id(g) for g in alike})
        with apart:
            batches = iter(self._loader.batch_sampler)
        while True:
            with apart:
                indices = next(batches, None)
            if indices is None:
                return
            yield list(indices)


def check_repeats(loader: DataLoader, seed: int, epoch: int) -> None:
    """Raises InvalidArgument for a sampler of the user's whose next iteration draws other batches for the same epoch: a new worker, and a
    worker that stays, could not find their place in it."""
    samplers = _samplers_of(loader)
    if all(type(s).__module__.startswith("torch.") for s in samplers):
        return
    order = Order(loader, seed, epoch)
    first, again = ([checksum(0, b) for b in itertools.islice(order, _PROBED)] for _ in range(2))
    if first != again:
        raise InvalidArgument(
            f"the workers of this training may change, and the sampler {_name_of(loader)} draws other batches when it is iterated again "
            "for the same epoch",
            hint=_HINT,
        )


def other_order(loader: DataLoader, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{why}: samples would be lost and used twice. The order of the sampler {_name_of(loader)} depends on more than State(seed=) and "
        "the epoch",
        hint=_HINT,
    )


def other_position(loader: DataLoader, first: int, epoch: int) -> InvalidArgument:
    size, dataset = getattr(loader.batch_sampler, "batch_size", None), loader.dataset
    length = f"{len(dataset)} samples" if isinstance(dataset, Sized) else "a dataset without length"
    return InvalidArgument(
        f"the first {first} batches of epoch {epoch} are not those of the training so far: samples would be lost and used twice. The batch "
        f"size (now {'that of the batch sampler' if size is None else size}), the dataset (now {length}) or the order of the sampler "
        f"{_name_of(loader)} has changed",
        hint="keep batch size, dataset and sampler, or begin the epoch anew after load_state_dict: state.batch = state.drawn = 0",
    )


def checksum(before: int, batch: list) -> int:
    """Returns the checksum of a batch of indices that follows batches with the checksum ``before``."""
    try:
        own = array("q", batch).tobytes()
    except (TypeError, OverflowError):
        own = repr(_plain(batch)).encode()
    return zlib.crc32(own, before)


def _plain(index: Any) -> Any:
    """Returns an index, or its parts, as objects with the same repr in every process."""
    if isinstance(index, (str, bytes, float, type(None))):
        return index
    if isinstance(index, (tuple, list)):
        return [_plain(i) for i in index]
    if isinstance(index, torch.Tensor):
        return index.tolist()
    try:
        return operator.index(index)
    except TypeError:
        return type(index).__name__


def _samplers_of(loader: DataLoader) -> list[Any]:
    batches = loader.batch_sampler
    found = (batches, getattr(batches, "sampler", None), loader.sampler)
    return list({id(s): s for s in found if s is not None}.values())


def _name_of(loader: DataLoader) -> str:
    default = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return type(next((s for s in _samplers_of(loader) if not type(s).__module__.startswith("torch.")), default)).__name__


# ---- random numbers ----


class _Apart:
    """Runs a sampler's code with separate states of the global generators and of those that the sampler holds, seeded alike on every
    worker. ``alike``: the ids of the generators that get the seed itself; the others get seeds of their own."""

    def __init__(self, seed: int, held: list[Any], alike: set[int]):
        self._held = held
        outside = self._states()
        seed_all(seed)
        for number, generator in enumerate(held):
            _seed(generator, seed if id(generator) in alike else mixed(seed, number))
        self._inside = self._states()
        self._set(outside)

    def __enter__(self) -> None:
        self._outside = self._states()
        self._set(self._inside)

    def __exit__(self, *exc) -> None:
        self._inside = self._states()
        self._set(self._outside)

    def _states(self) -> tuple[Any, list[Any]]:
        return random_states(), [_state_of(g) for g in self._held]

    def _set(self, states: tuple[Any, list[Any]]) -> None:
        set_random_states(states[0])
        for g, state in zip(self._held, states[1], strict=True):
            _set_state(g, state)


def _is_generator(o: Any) -> bool:
    if isinstance(o, (torch.Generator, Random)):
        return not isinstance(o, SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(o, (numpy.random.BitGenerator, numpy.random.RandomState))


def _state_of(g: Any) -> Any:
    if isinstance(g, torch.Generator):
        return g.get_state()
    if isinstance(g, Random):
        return g.getstate()
    return g.get_state(legacy=False) if hasattr(g, "get_state") else g.state


def _set_state(g: Any, state: Any) -> None:
    if isinstance(g, Random):
        g.setstate(state)
    elif hasattr(g, "set_state"):
        g.set_state(state)
    else:
        g.state = state


def _seed(g: Any, seed: int) -> None:
    if isinstance(g, torch.Generator):
        g.manual_seed(seed)
    elif isinstance(g, Random):
        g.seed(seed)
    elif hasattr(g, "get_state"):  # NumPy's RandomState, around one of its bit generators
        state = g.get_state(legacy=False)
        kind = getattr(sys.modules["numpy"].random, state["bit_generator"])
        g.set_state({**state, **kind(seed).state, "has_gauss": 0, "gauss": 0.0})
    else:
        g.state = type(g)(seed).state


def _generators_in(objects: Iterable[Any], dataset: Any) -> list[Any]:
    """Returns the generators that these objects can reach, in an order that is the same in every process. The dataset's are not among
    them: samples are drawn from it elsewhere."""
    found, queue = [], deque(o for o in objects if o is not None)
    seen = {id(dataset): dataset}  # keeps the objects, so that none of their ids is used again
    while queue and len(seen) < _MOST_OBJECTS:
        o = queue.popleft()
        if id(o) in seen:
            continue
        seen[id(o)] = o
        if _is_generator(o):
            found.append(o)
        else:
            parts = (part for part in _parts_of(o) if not isinstance(part, _HOLDS_NOTHING))
            queue.extend(itertools.islice(parts, _MOST_OBJECTS - len(queue)))
    return found


def _parts_of(o: Any) -> Iterable[Any]:
    if isinstance(o, _NO_SAMPLER) or (isinstance(o, _CONTAINERS) and len(o) > _LARGE):
        return ()
    if isinstance(o, (type, FunctionType)) and (o.__module__ or "").partition(".")[0] in _LIBRARIES:
        return ()
    if isinstance(o, type):
        return [*vars(o).values(), *o.__bases__]
    if isinstance(o, FunctionType):
        names = _names_in(o.__code__)
        return [*(o.__closure__ or ()), *(o.__defaults__ or ()), *(v for n, v in o.__globals__.items() if n in names)]
    return gc.get_referents(o)


def _names_in(code: CodeType) -> set[str]:
    """Returns the names of global variables in a function, and in the functions inside it."""
    return set(code.co_names).union(*(_names_in(c) for c in code.co_consts if isinstance(c, CodeType)))
