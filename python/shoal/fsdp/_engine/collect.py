"""Collects the parameters that a call of fully_shard shards; modules and parameters of other units are excluded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY

from shoal.exceptions import InvalidArgument
from shoal.fsdp._names import below

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import StateSeam
    from shoal.fsdp._parameters.parameter import ShardedParameter


def state_of(module: nn.Module) -> StateSeam | None:
    return module.__dict__.get("_shoal_fsdp_state")


def is_replicated(module: nn.Module) -> bool:
    """Returns True where torch's composable ``replicate`` manages the module, and so all modules below it."""
    return "replicate" in module.__dict__.get(REGISTRY_KEY, ())


def managed(p: nn.Parameter) -> ShardedParameter | None:
    """Returns the ShardedParameter whose sharded tensor, or original before sharding, ``p`` is; None for a parameter of no unit."""
    original_of, state = getattr(p, "_shoal_sharded", None), getattr(p, "_shoal_state", None)
    if state is not None:
        return next((q for u in state.units for q in u.parameters if q.views.sharded is p), None)
    return original_of() if original_of is not None else None


def own_parameters(modules: tuple[nn.Module, ...], ignored: set[nn.Parameter]) -> dict[str, tuple[nn.Parameter, list]]:
    """Returns the parameters below ``modules`` that no unit manages: first name -> (parameter, every (module, attribute) that has it).

    If one of these modules also has a parameter of another unit, the module is added to the places of that unit's parameter (``owners``).
    """
    found: dict[str, tuple[nn.Parameter, list]] = {}
    names: dict[int, str] = {}
    visited: set[int] = set()

    def visit(m: nn.Module, prefix: str) -> None:
        if id(m) in visited or (m not in modules and state_of(m) is not None) or is_replicated(m):
            return
        visited.add(id(m))
        for attribute, p in m._parameters.items():
            if p is None or p in ignored:
                continue
            state = getattr(p, "_shoal_state", None)
            if state is not None and any(owner is m for u in state.units for q in u.parameters for owner, _ in q.owners):
                raise InvalidArgument(
                    f"parameter {prefix}{attribute} is in a unit already: a module around this one was sharded before",
                    hint="call fully_shard innermost first: on the blocks, then on the model",
                )
            if (tied := managed(p)) is not None:
                tied.owners.append((m, attribute))
                m._parameters[attribute] = tied.views.sharded
                continue
            if id(p) in names:
                found[names[id(p)]][1].append((m, attribute))
            else:
                names[id(p)] = prefix + attribute
                found[prefix + attribute] = (p, [(m, attribute)])
        for name, child in m._modules.items():
            if child is not None:
                visit(child, below(prefix, name))

    for i, m in enumerate(modules):
        visit(m, "" if len(modules) == 1 else f"{i}.")
    return found
