"""Parameters that the user tied after fully_shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.exceptions import InvalidArgument
from shoal.fsdp._parameters.views import refuse_substitute

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import StateSeam
    from shoal.fsdp._engine.unit import Unit


def adopt_ties(states: list[StateSeam]) -> dict[Unit, None]:
    """Merges parameters that the user tied after fully_shard, in the innermost unit around both. Returns the changed units."""
    units = [u for s in states for u in s.units]
    changed: dict[Unit, None] = {}
    unit_of = {id(p.views.sharded): u for u in units for p in u.parameters}
    parameter_of = {
        id(view): p for u in units for p in u.parameters for view in (p.views.sharded, p.views.unsharded, p.views.front) if view is not None
    }
    for u in units:
        for p in list(u.parameters):
            for owner in list(p.owners):
                current = owner[0]._parameters.get(owner[1])
                if current is not None and id(current) not in parameter_of:
                    refuse_substitute(p.name, current)
                # The first parameter that meets an unknown tensor adopts it, so a tensor in two places ties two parameters.
                other = parameter_of.setdefault(id(current), p) if current is not None else p
                if other is p:
                    continue
                p.owners.remove(owner)
                other.owners.append(owner)
                if not p.owners:
                    u.parameters.remove(p)
                    changed[u] = None
                home = unit_of[id(other.views.sharded)]
                outer = _around(states, home.state, u.state).unit_like(home)
                if outer is not home:
                    home.parameters.remove(other)
                    outer.parameters.append(other)
                    unit_of[id(other.views.sharded)] = outer
                    changed[home] = changed[outer] = None
    return changed


def _around(states: list[StateSeam], *inner: StateSeam) -> StateSeam:
    """The innermost unit around all of ``inner``. Raises InvalidArgument if there is none."""
    wanted = {id(m) for s in inner for m in s.modules}
    found: tuple[StateSeam, set[int]] | None = None
    for s in states:
        covered = s.covered()
        if wanted <= covered and (found is None or len(covered) < len(found[1])):
            found = s, covered
    if found is None:
        raise InvalidArgument("parameters of modules were tied that no common unit contains", hint="tie them before fully_shard")
    return found[0]
