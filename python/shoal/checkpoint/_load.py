"""Reads a checkpoint at any world size and mesh: each rank takes its parts from the pieces that have them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.checkpoint._formats import arrange, open_checkpoint
from shoal.checkpoint._manifest import FORMAT, Manifest, Tensor
from shoal.checkpoint._memory import plain
from shoal.checkpoint._ranks import Model, Ranks, elsewhere, named_tensors, parameter_names, parts_of
from shoal.checkpoint._read import Reader
from shoal.checkpoint._saving import settle
from shoal.exceptions import InvalidArgument, Unavailable

_COPYING = 2  # threads that copy read values into the model


def load(path: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None, *, streaming: bool = False) -> dict[str, Any]:
    """Loads the model and, if given, the optimizer from the checkpoint in the folder ``path``. Returns the ``state`` saved with it.

    ``path``: a checkpoint of ``save``, a folder of torch.distributed.checkpoint (DCP), or one of Hugging Face's safetensors, which has no
    optimizer. ``model``: as in ``save``. Every rank of a sharded model must call it. World size and mesh may differ from those of the
    save, down to a plain model in one process. The optimizer's class may differ if its state is the same (``torch.optim.AdamW`` and
    ``shoal.optim.AdamW``). Options of parameter groups (``lr`` and so on) come from the checkpoint.
    Hashes are verified, where the format has them. Model and optimizer change only after every rank has read its part: until then this
    rank's part is in memory twice. ``streaming``: reads into place instead, and needs 49 MiB per rank beside the model and the optimizer;
    after a DataLoss their values are undefined.
    Raises NotFound, DataLoss, InvalidArgument (a foreign folder or another model) or Unimplemented (a later format, or options that the
    optimizer lacks). An error on one rank is raised on all. Waits for a save of this process that is under way, whose error stays for
    ``wait()`` or the next save.
    """
    settle()
    tensors, tied = named_tensors(model)
    ranks = Ranks(tensors.values())
    windowed = isinstance(model, nn.Module) and any(hasattr(t, "_shoal_state") for t in tensors.values())
    streaming = streaming and isinstance(model, nn.Module)
    loading = _Loading(path, tensors, tied, optimizer, streaming)

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
    tensors: dict[str, torch.Tensor]
    tied: dict[str, str]
    optimizer: torch.optim.Optimizer | None
    streaming: bool
    manifest: Manifest | None = None
    identity: str = ""  # equal for equal manifests; empty in formats without hashes
    reader: Reader | None = None
    names: list[list[str]] = field(default_factory=list)  # names of the optimizer's parameters, by group
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # part in the model, value
    moments: dict[str, dict[str, Any]] = field(default_factory=dict)  # by parameter and key

    def prepare(self) -> None:
        """Reads the manifest, matches it with the model, and queues the reads."""
        store, manifest = open_checkpoint(self.path)
        self.names = parameter_names(self.optimizer, self.tensors) if self.optimizer is not None else []
        if manifest.format != FORMAT:
            manifest = arrange(manifest, self.tensors, self.tied, self.names)
        else:
            # The folder is named by the tensors' hashes, or by a random number.
            self.identity = json.dumps([manifest.folder, manifest.world_size, manifest.info, manifest.state], sort_keys=True)
        self.manifest = manifest
        _match_model(manifest, self.tensors, self.tied, self.path)
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
        for of in self.names:
            for name in of:
                saved = manifest.optimizer_state.get(name, {})
                self.moments[name] = {key: self._moment(name, key, v, self.tensors[name]) for key, v in saved.items()}

    def _moment(self, name: str, key: str, saved: Any, p: torch.Tensor) -> Any:
        """Queues one value of the optimizer's state. A tensor of the parameter's shape is sharded as the parameter is."""
        if not isinstance(saved, Tensor):
            return saved
        dtype = getattr(torch, saved.dtype)
        if saved.shape and saved.shape == tuple(p.size()):
            present = self.optimizer.state.get(p, {}).get(key) if self.streaming else None
            if not isinstance(present, torch.Tensor) or (present.size(), present.dtype) != (p.size(), dtype):
                present = torch.zeros_like(p, dtype=dtype, requires_grad=False)
        else:
            present = torch.empty(saved.shape, dtype=dtype)
        for local, offset in parts_of(present, f"{name}/{key}"):
            self.reader.want(f"{name}/{key}", saved, (offset, tuple(local.shape)), plain(local))
        return present

    def apply(self) -> None:
        """Puts the values into the model and the optimizer."""
        with ThreadPoolExecutor(_COPYING) as threads:  # one thread would take a third of the load's time
            list(threads.map(_copy, self.copies))
        if self.optimizer is None:
            return
        for saved, group, of in zip(self.manifest.groups, self.optimizer.param_groups, self.names, strict=True):
            for key, value in saved.options.items():
                if key in group:
                    group[key] = _like(value, group[key])
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
    return tuple(value) if isinstance(current, tuple) else value


def _match_model(manifest: Manifest, tensors: dict[str, torch.Tensor], tied: dict[str, str], path) -> None:
    ours, theirs = {*tensors, *tied}, {*manifest.tensors, *manifest.tied}
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
