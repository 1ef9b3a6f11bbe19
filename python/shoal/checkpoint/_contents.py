"""The content of a model for a checkpoint: its tensors under the names of the modules inside of wrappers, and modules' extra state."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from shoal.exceptions import InvalidArgument, Unimplemented

Model = nn.Module | Mapping[str, Any]

_EXTRA = "_extra_state"  # the name of a module's extra state in its state dict
# Children of wrappers: torch.compile's, FSDP1's and activation checkpointing's. No other module has a child of such a name.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class Contents:
    """``tensors``: by name, the parameters as the optimizer holds them, and persistent buffers; ``tied``: further name -> name of tied
    tensors. ``by_rank``: the names of what may differ by rank, such as running means: a module's buffers and extra state, and of a
    module's state dict all tensors that are no ``Parameter``. Rank 0's are saved. ``extra``: by name, a module's extra state as
    JSON, with names instead of its ``extra_tensors``. ``setters``: by the same names, the functions that take it back. ``inner``: removes
    from a name what the model's wrappers add."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    by_rank: frozenset[str] = frozenset()
    extra: dict[str, Any] = field(default_factory=dict)
    extra_tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    setters: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    inner: Callable[[str], str] = str  # the default is for a state dict, whose wrappers are unknown


def contents_of(model: Model) -> Contents:
    """``model``: a module, or a state dict, perhaps nested. Raises Unimplemented for other values than tensors in a state dict."""
    if not isinstance(model, nn.Module):
        flat = list(_flat(model))
        by_rank = frozenset(name for name, t, of_module in flat if of_module and not isinstance(t, nn.Parameter))
        return replace(_of_tensors({name: t for name, t, _ in flat}), by_rank=by_rank)
    inner = _inner_names(model)
    setters = {}
    for name, m in model.named_modules(remove_duplicate=False):
        if type(m).get_extra_state is not nn.Module.get_extra_state:
            setters[inner(f"{name}.{_EXTRA}" if name else _EXTRA)] = m.set_extra_state
    entries = {inner(name): t for name, t in model.state_dict(keep_vars=True).items()}
    extra, extra_tensors = {}, {}
    for name in list(entries):
        if name in setters:
            extra[name] = _encode(entries.pop(name), name, extra_tensors)
    found = _of_tensors(entries)
    buffers = frozenset(name for name, t in found.tensors.items() if not isinstance(t, nn.Parameter) and not hasattr(t, "local_shards"))
    setters = {name: setters[name] for name in extra}
    return Contents(found.tensors, found.tied, buffers | {*extra_tensors}, extra, extra_tensors, setters, inner)


def _of_tensors(entries: Mapping[str, Any]) -> Contents:
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, t in entries.items():
        if not isinstance(t, torch.Tensor) and not hasattr(t, "local_shards"):
            raise Unimplemented(f"{name} in the model's state dict is a {type(t).__name__}, not a tensor", hint="pass it in state=")
        if id(t) in names:
            tied[name] = names[id(t)]
        else:
            names[id(t)] = name
            tensors[name] = t
    return Contents(tensors, tied)


def _flat(values: Mapping[str, Any], prefix: str = "", of_module: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Yields (name, value, True if it is of a module's ``state_dict()``, in which parameters and buffers look alike)."""
    of_module = of_module or hasattr(values, "_metadata")  # torch's mark
    for key, value in values.items():
        if not isinstance(key, str):
            raise InvalidArgument(f"{prefix}{key!r} in the state dict is no name", hint="a state dict has names of tensors as keys")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.", of_module)
        else:
            yield prefix + key, value, of_module


def parameter_names(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    """Returns the model's names of the optimizer's parameters, by parameter group. Raises InvalidArgument for a parameter of another
    model."""
    names = {id(t): name for name, t in tensors.items()}
    try:
        return [[names[id(p)] for p in g["params"]] for g in optimizer.param_groups]
    except KeyError:
        raise InvalidArgument(
            "the optimizer has a parameter that is not the model's", hint="make the optimizer of model.parameters(), after fully_shard"
        ) from None


# ---- names


def _inner_names(model: nn.Module) -> Callable[[str], str]:
    """Returns the function that removes from a name the parts that the model's wrappers add. So models load each other's checkpoints,
    wrapped or not."""
    wrapping = (nn.parallel.DistributedDataParallel, nn.parallel.DataParallel)
    added = [_unwrapped(f"{name}.module" if name else "module") for name, m in model.named_modules() if isinstance(m, wrapping)]
    added.sort(key=len, reverse=True)  # the innermost first

    def inner(name: str) -> str:
        name = _unwrapped(name)
        for wrapped in added:
            if name.startswith(f"{wrapped}."):
                name = wrapped.removesuffix("module") + name[len(wrapped) + 1 :]
        return name

    return inner


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)


def without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Returns the names of a model's tensors by name without what wrappers have added. DDP's ``module`` counts if all names begin with
    it. Names stay as they are if two would become one."""
    names = list(names)
    found = {_unwrapped(name): name for name in names}
    while found and all(short.startswith("module.") for short in found):
        found = {short.removeprefix("module."): name for short, name in found.items()}
    return found if len(found) == len(names) else {name: name for name in names}


# ---- extra state


def _encode(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the value as JSON. Adds its tensors to ``tensors`` under names that begin with ``name``."""
    if isinstance(value, torch.Tensor):
        key = name if name not in tensors else f"{name}/{len(tensors)}"
        tensors[key] = value
        return {"tensor": key}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_encode(v, name, tensors) for v in value]}
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {"dict": {k: _encode(v, name, tensors) for k, v in value.items()}}
    raise Unimplemented(
        f"the extra state {name} has a {type(value).__name__}",
        hint="return tensors, numbers, strings, bytes, and lists, tuples and dicts of them from get_extra_state",
    )


def decode(value: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Returns the value whose JSON ``_encode`` made. Raises KeyError for a tensor that is not in ``tensors``, ValueError for other JSON."""
    ((kind, of),) = value.items()
    if kind == "tensor":
        return tensors[of]
    if kind == "value":
        return of
    if kind == "bytes":
        return base64.b64decode(of)
    if kind in ("list", "tuple"):
        found = [decode(v, tensors) for v in of]
        return tuple(found) if kind == "tuple" else found
    if kind == "dict":
        return {k: decode(v, tensors) for k, v in of.items()}
    raise ValueError(kind)


def tensors_in(value: Any) -> set[str]:
    """The names of tensors in an extra state as JSON."""
    ((kind, of),) = value.items()
    if kind == "tensor":
        return {of}
    parts = of.values() if kind == "dict" else of if kind in ("list", "tuple") else ()
    return set().union(*map(tensors_in, parts))
