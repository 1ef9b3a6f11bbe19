"""Reads a checkpoint at any world size and mesh: each rank takes its parts from the pieces that have them."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate

from shoal._core.telemetry import save_event
from shoal.checkpoint._contents import Contents, Model, contents_of, decode, parameter_names, tensors_in, without_wrappers
from shoal.checkpoint._manifest import FORMAT, PLAIN, Manifest, Tensor, damaged
from shoal.checkpoint._memory import plain
from shoal.checkpoint._other import huggingface
from shoal.checkpoint._other.arrange import arrange
from shoal.checkpoint._other.formats import open_checkpoint
from shoal.checkpoint._ranks import Ranks, elsewhere, parts_of, zeros_on_mesh
from shoal.checkpoint._read import Reader
from shoal.checkpoint._saving import settle
from shoal.exceptions import InvalidArgument, Unavailable

_COPYING = 2  # threads that copy read values into the model


def load(path: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None, *, streaming: bool = False) -> dict[str, Any]:
    """Loads the model and, if given, the optimizer from the checkpoint in the folder ``path``. Returns the ``state`` saved with it.

    ``path``: a checkpoint of ``save``, a folder of torch.distributed.checkpoint (DCP), or one of Hugging Face's safetensors, which has no
    optimizer. ``model``: as in ``save``. Every rank of a sharded model must call it. World size and mesh may differ from those of the
    save, down to a plain model in one process. The optimizer's class may differ if its state is the same (``torch.optim.AdamW`` and
    ``shoal.optim.AdamW``). All options of parameter groups (``lr``, ``initial_lr``, a program's own) come from the checkpoint.
    Hashes are verified, where the format has them. Model and optimizer change only after every rank has read its part: until then this
    rank's part is in memory twice. ``streaming``: reads into place instead, and needs 49 MiB per rank beside the model and the optimizer;
    after a DataLoss their values are undefined.
    Raises NotFound, DataLoss, InvalidArgument (a foreign folder, another model, or several) or Unimplemented (a later format, or options
    that the optimizer lacks). An error on one rank is raised on all. Waits for a save of this process that is under way, whose error stays
    for ``wait()`` or the next save.
    """
    settle()
    began = time.perf_counter()
    contents = contents_of(model)
    tensors = contents.tensors
    ranks = Ranks(tensors.values())
    windowed = isinstance(model, nn.Module) and any(hasattr(t, "_shoal_state") for t in tensors.values())
    streaming = streaming and isinstance(model, nn.Module)
    loading = _Loading(path, contents, optimizer, streaming)

    def window():
        return _write_window(model) if windowed else nullcontext()

    def prepare() -> None:
        loading.prepare()
        if not streaming:
            loading.reader.run()

    try:
        ranks.agree(prepare)
        _expect_one(path, ranks.gather(loading.identity))
        with torch.no_grad(), window():
            if streaming:
                ranks.agree(loading.reader.run)
                torch.autograd.graph.increment_version([local for t in tensors.values() for local, _ in parts_of(t, "")])
            loading.apply()
    finally:
        if loading.reader is not None:
            loading.reader.close()
    save_event("load", str(path), began)
    return loading.manifest.state


def _write_window(model: nn.Module):
    from shoal import fsdp  # late: only sharded models need shoal.fsdp

    return fsdp.write(model)


def _expect_one(path: str | Path, identities: list[str]) -> None:
    """Raises Unavailable on all ranks if they have read the manifests of several checkpoints."""
    for rank, identity in enumerate(identities):
        if identity != identities[0]:
            raise Unavailable(
                f"ranks 0 and {rank} have read different checkpoints from {path}",
                reason="CheckpointsDiffer",
                hint="load from a folder that all ranks share, while no job saves there",
            )


@dataclass
class _Loading:
    """One load: the values that are read, and their places."""

    path: str | Path
    contents: Contents
    optimizer: torch.optim.Optimizer | None
    streaming: bool
    manifest: Manifest | None = None
    identity: str = ""  # equal for equal manifests; empty in formats without hashes
    reader: Reader | None = None
    names: list[list[str]] = field(default_factory=list)  # names of the optimizer's parameters, by group
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # part in the model, value
    moments: dict[str, dict[str, Any]] = field(default_factory=dict)  # by parameter and key
    extra: dict[str, Any] = field(default_factory=dict)  # by name, modules' extra state

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return self.contents.tensors

    def prepare(self) -> None:
        """Reads the manifest, matches it with the model, and queues the reads."""
        store, manifest = open_checkpoint(self.path)
        self.names = parameter_names(self.optimizer, self.tensors) if self.optimizer is not None else []
        if manifest.format != FORMAT:
            manifest = arrange(manifest, self.tensors, self.contents.tied, self.names, self.contents.extra)
        else:
            manifest = _with_names_of(self.contents, manifest)
            # The first releases saved an extra state that is a tensor among the model's tensors.
            of_tensors = {n: {"tensor": n} for n in self.contents.extra if n in manifest.tensors}
            manifest = replace(manifest, extra={**of_tensors, **manifest.extra})
            # The folder's name differs for other tensors: it has their hashes, or a random number.
            self.identity = json.dumps([manifest.folder, manifest.world_size, manifest.info, manifest.state], sort_keys=True)
        self.manifest = manifest
        _check_extra(manifest, self.path)
        _match_model(manifest, self.contents, self.path)
        if self.optimizer is not None:
            _match_optimizer(manifest, self.names, self.path)
            if check := getattr(type(self.optimizer), "check_options", None):
                for group in manifest.groups:
                    check(group.options)
        self.reader = Reader(store, manifest)
        for name, t in self.tensors.items():
            saved = manifest.tensors[manifest.tied.get(name, name)]
            for local, offset in parts_of(t, name):
                box = (offset, tuple(local.shape))
                if self.streaming:
                    self.reader.want(name, saved, box, plain(local))
                else:
                    self.copies.append((local, self.reader.want_new(name, saved, box)))
        whole = {}
        for name in _tensors_of_extra(manifest):
            saved = manifest.tensors[name]
            whole[name] = self.reader.want_new(name, saved, ((0,) * len(saved.shape), saved.shape))
        self.extra = {name: decode(v, whole) for name, v in manifest.extra.items()}  # the tensors get their values when they are read
        groups = zip(manifest.groups, self.optimizer.param_groups, strict=True) if self.optimizer is not None else []
        for of, (restored, group) in zip(self.names, groups, strict=True):
            options = {**group, **restored.options}  # as the group has them after the load
            on_device = bool(options.get("capturable") or options.get("fused"))  # also scalars, such as the step's number
            for name in of:
                saved = manifest.optimizer_state.get(name, {})
                self.moments[name] = {key: self._moment(name, key, v, self.tensors[name], on_device) for key, v in saved.items()}

    def _moment(self, name: str, key: str, saved: Any, p: torch.Tensor, on_device: bool) -> Any:
        """Queues one value of the optimizer's state. A tensor of the parameter's shape is sharded as the parameter is."""
        if not isinstance(saved, Tensor):
            return saved
        dtype = getattr(torch, saved.dtype)
        present = self.optimizer.state.get(p, {}).get(key)
        if not isinstance(present, torch.Tensor) or (tuple(present.size()), present.dtype) != (saved.shape, dtype):
            present = None
        of_parameter = self.manifest.tensors[self.manifest.tied.get(name, name)].sharding
        apart = saved.sharding == PLAIN != of_parameter  # a plain state of a sharded parameter
        if saved.shape and saved.shape == tuple(p.size()) and not apart:
            filled = present if self.streaming and present is not None else torch.zeros_like(p, dtype=dtype, requires_grad=False)
        elif not apart and (placements := _placements(saved, p, present)) is not None:
            filled = zeros_on_mesh(saved.shape, dtype, p.device_mesh, placements)
        else:
            filled = torch.empty(saved.shape, dtype=dtype, device=p.device if saved.shape or on_device else "cpu")
        for local, offset in parts_of(filled, f"{name}/{key}"):
            self.reader.want(f"{name}/{key}", saved, (offset, tuple(local.shape)), plain(local))
        return filled

    def apply(self) -> None:
        """Puts the values into the model and the optimizer."""
        with ThreadPoolExecutor(_COPYING) as threads:  # one thread would take a third of the load's time
            list(threads.map(_copy, self.copies))
        for name, value in self.extra.items():
            self.contents.setters[name](value)
        if self.optimizer is None:
            return
        for saved, group, of in zip(self.manifest.groups, self.optimizer.param_groups, self.names, strict=True):
            for key, value in saved.options.items():
                if key != "param_names":  # in the optimizer's present order
                    group[key] = _like(value, group.get(key))
            for name, p in zip(of, group["params"], strict=True):
                self.optimizer.state.pop(p, None)
                if self.moments[name]:
                    self.optimizer.state[p] = self.moments[name]


def _copy(copy: tuple[torch.Tensor, torch.Tensor]) -> None:
    part, value = copy
    with torch.no_grad():
        part.copy_(value)


def _like(value: Any, current: Any) -> Any:
    """Converts a saved option of a parameter group to the type of the present one."""
    if isinstance(current, torch.Tensor):
        return torch.full_like(current, value)
    return tuple(value) if isinstance(current, tuple) and isinstance(value, list) else value


def _placements(saved: Tensor, p: torch.Tensor, present: torch.Tensor | None) -> tuple[Placement, ...] | None:
    """Returns the placements of an optimizer's state that has another shape than its parameter, such as a scale for each row, on the
    parameter's mesh; None for a plain tensor. ``present``: the one that the optimizer has, if any."""
    if not isinstance(p, DTensor) or not saved.shape:
        return None
    if present is not None:
        return present.placements if isinstance(present, DTensor) and present.device_mesh == p.device_mesh else None
    if "Shard" not in saved.sharding and len(saved.shape) != p.dim():
        return None  # one process, and earlier releases, called their plain states replicated
    dims = [s.dim for s in p.placements if hasattr(s, "dim")]
    in_rows = all(dim < len(saved.shape) and saved.shape[dim] == p.size(dim) for dim in dims)
    return tuple(p.placements) if in_rows else (Replicate(),) * p.device_mesh.ndim


def _with_names_of(contents: Contents, manifest: Manifest) -> Manifest:
    """Returns the manifest with the model's names, if its own differ from them only by what wrappers add. So a model's state dict and the
    model load each other's checkpoints."""
    of_model = [*contents.tensors, *contents.tied, *contents.extra]
    names = {name: name for name in (*manifest.tensors, *manifest.tied, *manifest.extra)}
    if not names.keys() >= {*of_model}:  # earlier releases left the names of wrappers inside of the model in
        inner = {name: contents.inner(name) for name in names}
        names = inner if len({*inner.values()}) == len(names) else names
    ours = without_wrappers(of_model)
    theirs = {name: short for short, name in without_wrappers(names.values()).items()}
    names = {name: ours.get(theirs[to], to) for name, to in names.items()}
    if all(name == to for name, to in names.items()):
        return manifest
    return replace(
        manifest,
        tensors={names[n]: t for n, t in manifest.tensors.items()},
        tied={names[n]: names[of] for n, of in manifest.tied.items()},
        extra={names[n]: v for n, v in manifest.extra.items()},
        groups=tuple(replace(g, parameters=tuple(names.get(n, n) for n in g.parameters)) for g in manifest.groups),
        optimizer_state={names.get(n, n): of for n, of in manifest.optimizer_state.items()},
    )


def _tensors_of_extra(manifest: Manifest) -> set[str]:
    return set().union(*map(tensors_in, manifest.extra.values()))


def _check_extra(manifest: Manifest, path) -> None:
    try:
        for value in manifest.extra.values():
            decode(value, manifest.tensors)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise damaged(path, f"the extra state in its manifest is inconsistent: {error!r}") from None


def _match_model(manifest: Manifest, contents: Contents, path) -> None:
    tensors = contents.tensors
    ours = {*tensors, *contents.tied, *contents.extra}
    theirs = {*manifest.tensors, *manifest.tied, *manifest.extra} - (_tensors_of_extra(manifest) - {*manifest.extra})
    if manifest.format == huggingface.FORMAT:  # which has tensors only
        ours -= {*contents.extra} - theirs
    for what, names in (("lacks", ours - theirs), ("has, and the model has not,", theirs - ours)):
        if names:
            some = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise _of_another(path, f"it {what} {some}")
    for name, t in tensors.items():
        saved = manifest.tensors[manifest.tied.get(name, name)]
        dtype = str(t.dtype).removeprefix("torch.")
        if (saved.shape, saved.dtype) != (tuple(t.size()), dtype):
            raise _of_another(path, f"{name} is {saved.dtype}{list(saved.shape)} there and {dtype}{list(t.size())} here")
        if (device := getattr(t, "device", torch.device("cpu"))).type not in ("cpu", "cuda"):
            raise InvalidArgument(f"{name} is on {device}", hint=elsewhere(device, "model.to_empty(device='cpu') if it is on meta"))


def _match_optimizer(manifest: Manifest, names: list[list[str]], path) -> None:
    if not manifest.optimizer:
        raise InvalidArgument(f"the checkpoint in {path} has no optimizer", hint="load it without one: load(path, model)")
    if [set(g.parameters) for g in manifest.groups] != [set(of) for of in names]:
        raise _of_another(path, "the optimizer had other parameter groups")


def _of_another(path, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"the checkpoint in {path} is of another model: {what}",
        reason="CheckpointOfAnother",
        hint="build the model as it was when it was saved",
    )
