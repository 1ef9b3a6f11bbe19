"""Opens checkpoints of any format that this package reads, as a manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.checkpoint._manifest import FILE, Group, Manifest
from shoal.checkpoint._other import dcp, huggingface
from shoal.checkpoint._store import missing, open_store, read_manifest


def open_checkpoint(path: str | Path) -> tuple[Any, Manifest]:
    """Returns (the store, the manifest) of a checkpoint of Shoal, of DCP or of Hugging Face. Raises the errors of ``read_manifest``."""
    store = open_store(path)
    names = store.list()
    if FILE in names:
        return store, read_manifest(store)
    if dcp.FILE in names:
        return store, dcp.read(store)
    if found := huggingface.find(names):
        return store, huggingface.read(store, found)
    raise missing(store)


def arrange(manifest: Manifest, model: Iterable[str], tied: dict[str, str], groups: list[list[str]]) -> Manifest:
    """Gives the tensors of another program's checkpoint the model's names, and finds the state of the optimizer, if any.

    Such checkpoints have names as ``model.NAME``, ``optim.state.NAME.KEY`` and ``optim.param_groups.NAME.OPTION``, with any prefix.
    """
    names, saved = list(model), manifest.tensors
    aliases = {name: [name, *(a for a, of in tied.items() if of == name)] for name in names}
    states = {s: split for s in [*saved, *manifest.values] if (split := _split_state(s, aliases))}
    prefix = _prefix(aliases, [s for s in saved if s not in states])
    tensors, taken = {}, set(states)
    for name, of in aliases.items():
        for alias in of:
            if prefix + alias in saved:
                tensors.setdefault(name, saved[prefix + alias])
                taken.add(prefix + alias)
    others = {
        s.removeprefix(prefix): saved[s] for s in saved if s.startswith(prefix) and s not in taken and ".param_groups." not in f".{s}"
    }
    optimizer_state: dict[str, dict[str, Any]] = {}
    for s, (name, key) in states.items():
        optimizer_state.setdefault(name, {})[key] = saved[s] if s in saved else manifest.values[s]
    return replace(
        manifest,
        tensors={**tensors, **others},
        tied=dict(tied),
        optimizer="unknown" if optimizer_state else "",
        groups=tuple(Group(_options(manifest.values, index, of), tuple(of)) for index, of in enumerate(groups)),
        optimizer_state=optimizer_state,
    )


def _split_state(saved: str, aliases: dict[str, list[str]]) -> tuple[str, str] | None:
    """Returns (parameter, key) of a name such as ``optim.state.PARAMETER.KEY``."""
    head, found, rest = saved.partition("state.")
    name, _, key = rest.rpartition(".")
    return (name, key) if found and (not head or head.endswith(".")) and name in aliases else None


def _prefix(aliases: dict[str, list[str]], saved: list[str]) -> str:
    """Returns the prefix under which the most of the model's names were saved."""
    everything = set(saved)
    prefixes = {s[: len(s) - len(a)] for of in list(aliases.values())[:1] for a in of for s in saved if s == a or s.endswith(f".{a}")}
    return max(sorted(prefixes), key=lambda p: sum(any(p + a in everything for a in of) for of in aliases.values()), default="")


def _options(values: dict[str, Any], index: int, names: list[str]) -> dict[str, Any]:
    """Returns the options of a parameter group, which lie under a parameter's name or the group's number."""
    options: dict[str, Any] = {}
    for where in (str(index), *names[:1]):
        for s, value in values.items():
            _, found, option = s.partition(f"param_groups.{where}.")
            if found and option and "." not in option and option != "params":
                options[option] = value
    for s, value in values.items():
        if s.endswith("param_groups") and isinstance(value, list) and index < len(value) and isinstance(value[index], dict):
            options |= {k: v for k, v in value[index].items() if k != "params"}
    return options
