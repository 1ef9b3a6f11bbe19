"""Reads a checkpoint at any world size: each rank takes its rows from the pieces that have them."""

from __future__ import annotations

import math
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.tensor import DTensor

from shoal.checkpoint._manifest import Manifest, Tensor, damaged, read_manifest
from shoal.checkpoint._ranks import Ranks, checksum, elsewhere, local, named_tensors, parameter_names
from shoal.exceptions import InvalidArgument


def load(path: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Loads the model and, if given, the optimizer from the checkpoint in the folder ``path``. Returns the ``state`` saved with it.

    Every rank of a sharded model must call it. The world size may differ from that of ``save``, down to a plain model in one process.
    The optimizer's class may differ if its state is the same (``torch.optim.AdamW`` and ``shoal.optim.AdamW``). Options of parameter
    groups (``lr`` and so on) come from the checkpoint. Checksums are verified, and nothing changes unless every rank has read its part.
    Raises NotFound, DataLoss, InvalidArgument (a foreign folder or another model) or Unimplemented (a later format, or options that the
    optimizer lacks). An error on one rank is raised on all.
    """
    tensors, tied = named_tensors(model)
    ranks = Ranks(tensors.values())

    def read() -> tuple[Manifest, dict[str, torch.Tensor], dict[str, dict[str, Any]], list[list[str]]]:
        manifest = read_manifest(path)
        _match_model(manifest, tensors, tied, path)
        names = parameter_names(optimizer, tensors) if optimizer is not None else []
        if optimizer is not None:
            _match_optimizer(manifest, names, path)
            if check := getattr(type(optimizer), "check_options", None):
                for group in manifest.groups:
                    check(group.options)
        with ExitStack() as stack:
            reader = _Reader(Path(path), manifest, ranks, stack)
            values = {name: reader.like("model", name, manifest.tensors[manifest.tied.get(name, name)], t) for name, t in tensors.items()}
            moments = {
                name: {key: _moment(reader, name, key, v, tensors[name]) for key, v in manifest.optimizer_state.get(name, {}).items()}
                for group in names
                for name in group
            }
        return manifest, values, moments, names

    manifest, values, moments, names = ranks.agree(read)
    with torch.no_grad(), _write_window(model) if ranks.group is not None else nullcontext():
        for name, value in values.items():
            local(tensors[name], name)[0].copy_(value)
    if optimizer is not None:
        for saved, group, of in zip(manifest.groups, optimizer.param_groups, names, strict=True):
            for key, value in saved.options.items():
                if key in group:
                    group[key] = _like(value, group[key])
            for name, p in zip(of, group["params"], strict=True):
                optimizer.state.pop(p, None)
                if moments[name]:
                    optimizer.state[p] = moments[name]
    return manifest.state


def _write_window(model: nn.Module):
    from shoal import fsdp  # late: only sharded models need shoal.fsdp

    return fsdp.write(model)


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
        if (saved.shape, saved.dtype) != (tuple(t.shape), dtype):
            raise _of_another(path, f"{name} is {saved.dtype}{list(saved.shape)} there and {dtype}{list(t.shape)} here")
        if t.device.type != "cpu":
            raise InvalidArgument(f"{name} is on {t.device}", hint=elsewhere(t.device, "model.to_empty(device='cpu') if it is on meta"))


def _match_optimizer(manifest: Manifest, names: list[list[str]], path) -> None:
    if not manifest.optimizer:
        raise InvalidArgument(f"the checkpoint in {path} has no optimizer", hint="load it without one: load(path, model)")
    if [list(g.parameters) for g in manifest.groups] != names:
        raise _of_another(path, "the optimizer had other parameter groups")


def _of_another(path, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"the checkpoint in {path} is of another model: {what}",
        reason="CheckpointOfAnother",
        hint="build the model as it was when it was saved",
    )


def _moment(reader: _Reader, name: str, key: str, saved: Any, p: torch.Tensor) -> Any:
    """Reads one value of the optimizer's state. A tensor of the parameter's shape is sharded as the parameter is."""
    if not isinstance(saved, Tensor):
        return saved
    tensor_name = f"{name}/{key}"
    if saved.shape and saved.shape == tuple(p.shape):
        like = torch.zeros_like(p, dtype=getattr(torch, saved.dtype), requires_grad=False)
        local(like, tensor_name)[0].copy_(reader.like("optimizer", tensor_name, saved, like))
        return like
    return reader.rows("optimizer", tensor_name, saved, 0, saved.num_rows)


class _Reader:
    """Reads and verifies rows of saved tensors. Each file is opened once, when needed."""

    def __init__(self, path: Path, manifest: Manifest, ranks: Ranks, stack: ExitStack):
        self._path, self._folder, self._ranks, self._stack = path, path / manifest.folder, ranks, stack
        self._files: dict[str, Any] = {}

    def like(self, kind: str, name: str, saved: Tensor, t: torch.Tensor) -> torch.Tensor:
        """Reads this rank's part of a tensor sharded as ``t`` is."""
        begin, end = self._ranks.rows(saved.num_rows) if isinstance(t, DTensor) else (0, saved.num_rows)
        return self.rows(kind, name, saved, begin, end)

    def rows(self, kind: str, name: str, saved: Tensor, begin: int, end: int) -> torch.Tensor:
        rest = saved.shape[1:]
        out = torch.empty((end - begin, *rest), dtype=getattr(torch, saved.dtype))
        for piece in saved.pieces:
            low, high = max(begin, piece.begin), min(end, piece.end)
            if low < high:
                whole = self._piece(name, piece, math.prod((piece.end - piece.begin, *rest)), out.dtype).reshape(-1, *rest)
                out[low - begin : high - begin] = whole[low - piece.begin : high - piece.begin]
        return out if saved.shape else out.reshape(())

    def _piece(self, name: str, piece, numel: int, dtype: torch.dtype) -> torch.Tensor:
        try:
            if piece.file not in self._files:
                self._files[piece.file] = self._stack.enter_context(safe_open(self._folder / piece.file, framework="pt"))
            t = self._files[piece.file].get_tensor(name)
        except FileNotFoundError:
            raise damaged(self._path, f"{self._folder.name}/{piece.file} is missing") from None
        except (SafetensorError, OSError) as error:
            raise damaged(self._path, f"{self._folder.name}/{piece.file} cannot be read ({error})") from None
        if t.numel() != numel or t.dtype != dtype or checksum(t) != piece.sha256:
            raise damaged(self._path, f"the bytes of {name} in {self._folder.name}/{piece.file} are not those that were saved")
        return t
