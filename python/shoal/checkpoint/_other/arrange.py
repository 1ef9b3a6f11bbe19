"""Finds a model and its optimizer among the flat names of another program's checkpoint.

Programs nest their state dicts in many ways: ``model.NAME``, ``app.model.module.NAME``, ``train_state.optim.state.NAME.KEY``,
``optimizer_0.param_groups.NAME.OPTION``; torch's own optimizers number their parameters. The model's names decide what is what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from shoal.checkpoint._contents import without_wrappers
from shoal.checkpoint._manifest import Group, Manifest, Tensor
from shoal.exceptions import InvalidArgument

# Names that programs give to a model's state dict. One of them decides between several that have the model's names, such as an average's.
_MODELS = ("model", "module", "state_dict", "model_state", "model_state_dict", "net", "network")
_AROUND = ("app", "app_state", "state", "train_state", *_MODELS)  # containers of a model's state dict
_OPTIMIZERS = re.compile(r"optim(izer)?s?(_state)?(_dict)?_?\d*")
_OTHERS = ("train_state", "trainer", "dataloader", "lr_scheduler", "scheduler", "rng", "step", "global_step", "epoch", "iteration")


def arrange(manifest: Manifest, model: Iterable[str], tied: dict[str, str], groups: list[list[str]], extra: Iterable[str] = ()) -> Manifest:
    """Gives the tensors of another program's checkpoint the model's names, and finds the state of the optimizer, if any.

    ``groups``: the names of the optimizer's parameters, by parameter group. ``extra``: the names of modules' extra state. Raises
    InvalidArgument if several models or optimizers of the checkpoint have these names.
    """
    manifest = _unwrapped(manifest)
    saved, values = manifest.tensors, manifest.values
    owners = {name: name for name in (*model, *extra)}
    owners |= {alias: of for alias, of in tied.items() if of in owners}
    prefix = _prefix(owners, [*saved, *values])
    tensors = {}
    for alias, name in owners.items():
        if prefix + alias in saved:
            tensors.setdefault(name, saved[prefix + alias])
    of_model = {prefix + alias for alias in owners}
    optimizer = _Optimizer(owners, prefix, [s for s in (*saved, *values) if s not in of_model], {**values, **saved}, groups)
    firsts = {alias.partition(".")[0] for alias in owners}
    others = {
        s.removeprefix(prefix): t
        for s, t in saved.items()
        if s.startswith(prefix) and s not in of_model and not _is_beside(s.removeprefix(prefix), firsts)
    }
    return replace(
        manifest,
        tensors={**tensors, **others},
        tied=dict(tied),
        optimizer="unknown" if optimizer.found else "",
        groups=tuple(optimizer.groups),
        optimizer_state=optimizer.states,
        extra={n: {"tensor": n} if n in tensors else {"value": values[prefix + n]} for n in extra if n in tensors or prefix + n in values},
    )


def arrange_alone(manifest: Manifest, prefix: str) -> Manifest:
    """As ``arrange``, for no model: every tensor that is no optimizer's is the model's, or those that begin with ``prefix``."""
    manifest = _unwrapped(manifest)
    names = [n for n in manifest.tensors if n.startswith(prefix) and not _is_of_optimizer(n)]
    known = {*names}
    names = [n.removeprefix(prefix) for n in names if not (n.startswith("state.") and any(p in known for p in _parameters_in(n)))]
    while not prefix:
        names = [n for n in names if n.partition(".")[0] not in _OTHERS] or names
        firsts = {n.partition(".")[0] for n in names}
        if len(firsts) != 1 or not firsts <= {*_AROUND}:
            break
        names = [n.partition(".")[2] for n in names]
    known = {*names}
    with_state = {p for n in manifest.tensors for p in _parameters_in(n) if p in known}
    arranged = arrange(manifest, names, {}, [[n for n in names if n in with_state]] if with_state else [])
    return replace(arranged, tensors={n: arranged.tensors[n] for n in names})


def _unwrapped(manifest: Manifest) -> Manifest:
    tensors = {short: manifest.tensors[n] for short, n in without_wrappers(manifest.tensors).items()}
    return replace(manifest, tensors=tensors, values={short: manifest.values[n] for short, n in without_wrappers(manifest.values).items()})


def has_optimizer(manifest: Manifest) -> bool:
    """True if a checkpoint of any format has an optimizer's state or options."""
    return bool(manifest.optimizer) or any(map(_is_of_optimizer, (*manifest.tensors, *manifest.values)))


def _prefix(owners: dict[str, str], saved: Iterable[str]) -> str:
    """Returns the prefix under which the most of the model's names were saved. Raises InvalidArgument if several state dicts have them."""
    found: dict[str, set[str]] = {}
    for s in saved:
        for head, rest in _splits(s):
            if rest in owners:
                found.setdefault(head, set()).add(owners[rest])
    most = max(map(len, found.values()), default=0)
    best = sorted((p for p, of in found.items() if len(of) == most), key=_oddness)
    if len(best) > 1 and _oddness(best[0]) == _oddness(best[1]):
        raise _several("the model's names", best)
    return best[0] if best else ""


def _oddness(prefix: str) -> tuple[int, int]:
    """Orders prefixes: a program's model lies under the least odd one, and not an average or a copy of it."""
    parts = prefix.split(".")[:-1]
    return (0 if not parts else 1 if parts[-1] in _MODELS else 2), len(parts)


def _several(what: str, places: list[str]) -> InvalidArgument:
    return InvalidArgument(
        f"the checkpoint has {what} in several places: under {places[0]!r} and under {places[1]!r}",
        reason="SeveralModels",
        hint="export the model that you mean: shoal checkpoint export --prefix PREFIX",
    )


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """All divisions of a dotted name into a prefix, which ends with a dot or is empty, and the rest."""
    at = 0
    while True:
        yield name[:at], name[at:]
        at = name.find(".", at) + 1
        if not at:
            return


def _is_beside(name: str, firsts: set[str]) -> bool:
    """True for a tensor that lies beside a model's, and is none of its own. ``firsts``: the first parts of the model's names."""
    first = name.partition(".")[0]
    return first not in firsts and (first == "state" or first in _OTHERS or _is_of_optimizer(name))


def _is_of_optimizer(name: str) -> bool:
    parts = name.split(".")
    return "param_groups" in parts or any(map(_OPTIMIZERS.fullmatch, parts[:-1]))


def _parameters_in(name: str) -> Iterator[str]:
    """All that may be a parameter's name in the name of an optimizer's state."""
    parts = name.split(".")
    begin = parts.index("state") + 1 if "state" in parts else len(parts)
    for first in range(begin, len(parts) - 1):
        for end in range(len(parts) - 1, first, -1):
            yield ".".join(parts[first:end])


# ---- the optimizer


class _Optimizer:
    """The optimizer of a checkpoint that has the most of the wanted parameters. ``states``: by parameter and key. ``found``: there is
    one."""

    def __init__(self, owners: dict[str, str], prefix: str, saved: list[str], contents: dict[str, Any], groups: list[list[str]]):
        self._owners, self._contents, self._wanted = owners, contents, groups
        # An optimizer may put the tail of the model's prefix before a parameter's name.
        self._tails = sorted({"module.", *(tail for _, tail in _splits(prefix))}, key=len)
        named: dict[str, list[tuple[str, str, str]]] = {}  # by prefix: parameter, key, saved name
        numbered: dict[str, list[tuple[int, str, str]]] = {}
        options: dict[str, list[str]] = {}
        for s in saved:
            for head, rest in _splits(s):
                if rest.startswith("param_groups") and rest[12:13] in ("", "."):
                    options.setdefault(head, []).append(s)
                elif rest.startswith("state."):
                    if hit := self._state(rest.removeprefix("state.")):
                        named.setdefault(head, []).append((*hit, s))
                    elif match := re.fullmatch(r"(\d{1,9})\.(.+)", rest.removeprefix("state.")):
                        numbered.setdefault(head, []).append((int(match[1]), match[2], s))
        head = self._choose(named, numbered, options)
        listed = self._listed(head, options.get(head, []))
        self.groups = self._groups(head, listed, options.get(head, []))
        self.states: dict[str, dict[str, Any]] = {}
        for name, key, s in named.get(head) or self._by_name(numbered.get(head, []), listed):
            self.states.setdefault(name, {})[key] = contents[s]
        self.found = bool(self.states) or any(g.options for g in self.groups)

    def _state(self, rest: str) -> tuple[str, str] | None:
        """Returns (parameter, key) of PARAMETER.KEY."""
        parts = rest.split(".")
        for end in range(len(parts) - 1, 0, -1):
            if (name := self._owner(".".join(parts[:end]))) is not None:
                return name, ".".join(parts[end:])
        return None

    def _owner(self, name: str) -> str | None:
        shorter = (name.removeprefix(tail) for tail in self._tails)
        return next((self._owners[n] for n in shorter if n in self._owners), None)

    def _choose(self, named: dict, numbered: dict, options: dict) -> str:
        """Returns the prefix of the optimizer that has the most of the wanted parameters."""
        wanted = {n for of in self._wanted for n in of}
        scores = dict.fromkeys(options, 0)
        scores |= {head: len({n for n, _, _ in of}) for head, of in numbered.items()}
        scores |= {head: len({n for n, _, _ in of if not wanted or n in wanted}) for head, of in named.items()}
        best = sorted(head for head, score in scores.items() if score == max(scores.values()))
        if len(best) > 1 and wanted:
            raise _several("an optimizer of these parameters", best)
        return best[0] if best else ""

    def _listed(self, head: str, saved: list[str]) -> list[dict[str, Any]]:
        """The parameter groups that were saved as a list."""
        whole = self._contents.get(f"{head}param_groups")
        if isinstance(whole, list) and all(isinstance(g, dict) for g in whole):
            return whole
        found: dict[int, dict[str, Any]] = {}
        for s in saved:
            match = re.fullmatch(r"param_groups\.(\d{1,9})\.([^.]+)", s.removeprefix(head))
            if match and match[1] not in self._owners and not isinstance(self._contents[s], Tensor):
                found.setdefault(int(match[1]), {})[match[2]] = self._contents[s]
        return [found[index] for index in sorted(found)]

    def _groups(self, head: str, listed: list[dict[str, Any]], saved: list[str]) -> list[Group]:
        groups = []
        for index, of in enumerate(self._wanted):
            group = listed[index] if index < len(listed) else {}
            params = group.get("params", [])
            names = [self._owner(n) or n for n in params if isinstance(n, str)] or of
            options = {k: v for k, v in group.items() if k != "params"}
            for s in saved:  # options under a parameter's name
                where, _, option = s.removeprefix(f"{head}param_groups.").rpartition(".")
                if where and self._owner(where) in of[:1] and option != "params" and not isinstance(self._contents[s], Tensor):
                    options[option] = self._contents[s]
            groups.append(Group(options, tuple(names)))
        return groups

    def _by_name(self, states: list[tuple[int, str, str]], listed: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
        """States of numbered parameters, as torch's optimizers have them: their order is the one of the parameter groups."""
        numbers = [g.get("params", []) for g in listed]
        if not states or not self._wanted:
            return
        stored, wanted = ([len(of) for of in groups] for groups in (numbers, self._wanted))
        if stored != wanted:
            raise InvalidArgument(
                f"the optimizer had groups of {stored} parameters there and has {wanted} here",
                reason="CheckpointOfAnother",
                hint="make the optimizer as it was when it was saved",
            )
        names = {number: name for of, ours in zip(numbers, self._wanted, strict=True) for number, name in zip(of, ours, strict=True)}
        for number, key, s in states:
            if number in names:
                yield names[number], key, s
