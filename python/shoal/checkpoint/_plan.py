"""The content of a save: its manifest, without places of tensors yet, and the layouts of the files that this rank writes.

Training waits for a plan. So the description of the tensors is kept, and the next save of the same ones takes it over.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakTensorKeyDictionary

from shoal._native import Checksum
from shoal._objects.tensors import is_wrapper
from shoal.checkpoint._contents import Contents, parameter_names
from shoal.checkpoint._manifest import CHUNK, DTYPES, Group, Manifest, Tensor
from shoal.checkpoint._memory import plain
from shoal.checkpoint._ranks import Ranks, elsewhere, is_first_replica, is_sharded, parts_of, sharding_of
from shoal.checkpoint._shards import Layout, Part, lay_out
from shoal.exceptions import InvalidArgument, Unimplemented


class Plan:
    """``manifest`` and ``layouts`` of a save of these values. ``facts``: all that ranks have to have alike, because the first one's are
    written; empty for a single rank."""

    def __init__(
        self,
        contents: Contents,
        optimizer: torch.optim.Optimizer | None,
        state: dict | None,
        ranks: Ranks,
        info: dict | None = None,
    ):
        check_state(state)
        tensors = {**contents.tensors, **contents.extra_tensors}
        places = [_place("model", n, t, hasattr(t, "_shoal_state")) for n, t in tensors.items()]
        if optimizer is not None:
            names = parameter_names(optimizer, contents.tensors)
            hooked = isinstance(optimizer, torch.optim.Optimizer)  # torch's hooks announce its steps to snapshots
            places += [_place("optimizer", n, t, hooked) for n, t in _state_tensors(optimizer, names)]
        tensors_described, self.layouts = _describe(places, ranks)
        described = iter(tensors_described)
        content: dict[str, Any] = {"tensors": {name: next(described) for name in tensors}, "extra": contents.extra}
        if optimizer is not None:
            kind = type(optimizer)
            content |= {
                "optimizer": f"{kind.__module__}.{kind.__qualname__}",
                "groups": tuple(
                    Group({k: _plain(v, k) for k, v in group.items() if k != "params"}, tuple(of))
                    for of, group in zip(names, optimizer.param_groups, strict=True)
                ),
                "optimizer_state": {
                    name: {
                        k: next(described) if isinstance(v, torch.Tensor) else _plain(v, k) for k, v in optimizer.state.get(p, {}).items()
                    }
                    for of, group in zip(names, optimizer.param_groups, strict=True)
                    for name, p in zip(of, group["params"], strict=True)
                },
            }
        self.manifest = Manifest(ranks.size, "", tied=contents.tied, state=state or {}, info=info or {}, **content)
        self.facts = _facts(self.manifest, places, contents.by_rank, ranks) if ranks.size > 1 else {}


def _facts(manifest: Manifest, places: list[_Place], by_rank: frozenset[str], ranks: Ranks) -> dict[str, str]:
    """Texts in which all ranks have to agree, by name: dtype and shape of each tensor, a digest of each plain tensor that is not in
    ``by_rank``, and all other values. Digests read the plain tensors at each save, but frozen parameters only once."""
    facts = dict.fromkeys(manifest.extra, "extra state")
    facts |= {name: f"{t.dtype}{list(t.shape)} {t.sharding}" for name, t in manifest.all_tensors()}
    for p in places:
        if not is_sharded(p.tensor) and p.name not in by_rank:
            facts[p.name] += f" {_digest_of(p.tensor, ranks)}"
    for name, of in manifest.optimizer_state.items():
        facts |= {f"{name}/{key}": json.dumps(v) for key, v in of.items() if not isinstance(v, Tensor)}
    for index, group in enumerate(manifest.groups):
        facts[f"the optimizer's group {index}"] = json.dumps(group.parameters)
        facts |= {f"{key} of the optimizer's group {index}": json.dumps(v) for key, v in group.options.items()}
    return facts | {"the optimizer": manifest.optimizer}


_digests = WeakTensorKeyDictionary()  # by frozen parameter: all that its digest follows from, and the digest


def _digest_of(t: torch.Tensor, ranks: Ranks) -> str:
    """Returns a digest of the values. Only a frozen parameter's is kept for later saves, because version counters miss the writes of
    Shoal's optimizers to their states. Another group of ranks computes all anew: after a write by ``p.data``, a kept digest is stale, and
    a new rank would have another one."""
    if not isinstance(t, torch.nn.Parameter) or t.requires_grad or t.is_inference():
        return _digest(t)
    facts = (ranks.group, t.data_ptr(), t._version, t.shape, t.stride(), t.dtype)
    kept, digest = _digests.get(t, (None, ""))
    if kept != facts:
        digest = _digest(t)
        _digests[t] = facts, digest
    return digest


def _digest(t: torch.Tensor) -> str:
    if not t.dim():
        return repr(t.item())
    if not t.numel():
        return ""
    checksum = Checksum()
    for block in _blocks(t.detach()):
        checksum.update(block.view(torch.uint8).numpy())
    return checksum.hexdigest()


def _blocks(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the elements in row-major order, as contiguous tensors of one dim on the CPU. A copy has ``CHUNK`` bytes at most."""
    if t.is_contiguous():
        flat = t.as_strided((t.numel(),), (1,))  # a view keeps the odd stride of a single element
        yield from [flat] if t.is_cpu else (block.cpu() for block in flat.split(CHUNK // t.element_size()))
    elif t.nbytes <= CHUNK:
        yield t.contiguous().cpu().view(-1)
    else:
        rows = CHUNK // t[0].nbytes
        for part in t.split(rows) if rows else t.unbind():
            yield from _blocks(part)


def _state_tensors(optimizer: torch.optim.Optimizer, names: list[list[str]]) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{name}/{key}", v)
        for of, group in zip(names, optimizer.param_groups, strict=True)
        for name, p in zip(of, group["params"], strict=True)
        for key, v in optimizer.state.get(p, {}).items()
        if isinstance(v, torch.Tensor)
    ]


# ---- tensors and their parts on this rank


@dataclass(slots=True)
class _Place:
    """A tensor of a save. ``facts``: all that its description follows from; None if they are not known."""

    kind: str  # the kind of file: "model" or "optimizer"
    name: str
    tensor: torch.Tensor
    in_window: bool  # written only by an optimizer's step or in a write window
    local: torch.Tensor  # this rank's part of a DTensor; otherwise `tensor` itself
    facts: tuple | None


def _place(kind: str, name: str, t: torch.Tensor, in_window: bool) -> _Place:
    local, spec = (t._local_tensor, t._spec) if isinstance(t, DTensor) else (t, None)
    facts = None
    if type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout == torch.strided:
        facts = (kind, name, in_window, spec, local.data_ptr(), local.shape, local.stride(), local.dtype, local.device)
    return _Place(kind, name, t, in_window, local, facts)


@dataclass
class _File:
    """A layout without the memory of its parts: for each, the number of its tensor and its offset in it."""

    layout: Layout
    parts: list[tuple[int, tuple[int, ...]]]

    def again(self, places: list[_Place], tensors: list[Tensor]) -> Layout:
        parts = [_part(places[n], n, tensors[n].dtype, _writable(places[n].local), offset) for n, offset in self.parts]
        return replace(self.layout, parts=parts)


class _Description:
    """The tensors of a plan and this rank's files. Refers to no memory, so that none outlives its model."""

    def __init__(self, places: list[_Place], ranks: Ranks, tensors: list[Tensor], layouts: list[Layout]):
        self.tensors = tensors
        self.files = [_File(replace(x, parts=[]), [(p.number, p.offset) for p in x.parts]) for x in layouts]
        self._ranks = (ranks.group, ranks.rank, ranks.size)
        self._facts = [p.facts for p in places]
        self._locals = [weakref.ref(p.local) if p.facts else None for p in places]

    def holds(self, places: list[_Place], ranks: Ranks) -> bool:
        """True if a new description would be the same."""
        return (
            self._ranks == (ranks.group, ranks.rank, ranks.size)
            and None not in self._facts
            and self._facts == [p.facts for p in places]
            and all(of() is p.local for of, p in zip(self._locals, places, strict=True))
        )


_kept: _Description | None = None  # the last plan's


def _describe(places: list[_Place], ranks: Ranks) -> tuple[list[Tensor], list[Layout]]:
    global _kept
    if _kept is not None and _kept.holds(places, ranks):
        return _kept.tensors, [f.again(places, _kept.tensors) for f in _kept.files]
    tensors, parts = [], []
    for number, place in enumerate(places):
        tensors.append(_describe_one(place, number, ranks, parts))
    layouts = []
    for kind in ("model", "optimizer"):
        of = [p for p in parts if p.kind == kind]
        if of:
            layouts.append(lay_out(f"{kind}-rank-{ranks.rank}-of-{ranks.size}.safetensors", of))
    _kept = _Description(places, ranks, tensors, layouts)
    return tensors, layouts


def _describe_one(place: _Place, number: int, ranks: Ranks, parts: list[Part]) -> Tensor:
    """Returns a tensor's description, without pieces. Adds this rank's parts of it."""
    t, name = place.tensor, place.name
    shape, dtype = tuple(t.size()), str(t.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise Unimplemented(f"{name} has dtype {dtype}: checkpoints hold {', '.join(DTYPES)}")
    for local, offset in parts_of(t, name):
        if local.device.type not in ("cpu", "cuda"):
            raise Unimplemented(f"{name} is on {local.device}", hint=elsewhere(local.device, "model.to_empty(device='cpu')"))
        if is_wrapper(local) or local.layout != torch.strided:
            raise Unimplemented(
                f"{name} is a {type(local).__name__}, whose elements lie in other tensors: checkpoints hold plain ones",
                hint="use torch.distributed.checkpoint",
            )
        if is_first_replica(t, number + 1) if is_sharded(t) else ranks.rank == 0:
            parts.append(_part(place, number, dtype, local, offset))
    return Tensor(shape, dtype, sharding_of(t, ranks), ())


def _part(place: _Place, number: int, dtype: str, local: torch.Tensor, offset: tuple[int, ...]) -> Part:
    source = plain(local)
    fetch = lambda: source.cpu().contiguous()  # noqa: E731
    return Part(place.kind, place.name, offset, tuple(local.shape), dtype, fetch, source, local, place.in_window, number)


def _writable(local: torch.Tensor) -> torch.Tensor:
    return local.detach() if local.requires_grad else local


# ---- values


def check_state(state: Any) -> None:
    if state is not None and not isinstance(state, dict):
        raise InvalidArgument(f"state is a dict, not a {type(state).__name__}")
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"state cannot be stored as JSON: {error}", hint="numbers, strings, lists and dicts with string keys"
        ) from None
    if _has_tuple_or_odd_key(state):
        raise InvalidArgument(
            "state would be loaded with other types: it has tuples, or keys that are not strings", hint="use lists and string keys"
        )


def _has_tuple_or_odd_key(value: Any) -> bool:
    if isinstance(value, dict):
        return any(not isinstance(k, str) for k in value) or any(map(_has_tuple_or_odd_key, value.values()))
    return isinstance(value, tuple) or (isinstance(value, list) and any(map(_has_tuple_or_odd_key, value)))


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(v, name) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Unimplemented(
        f"the optimizer's {name} is a {type(value).__name__}", hint="checkpoints hold tensors, numbers, strings and lists of an optimizer"
    )
