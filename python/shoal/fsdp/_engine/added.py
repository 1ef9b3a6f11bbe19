"""Parameters added to a sharded model, adapters for instance: every rank has a whole copy, and gradients are averaged over ranks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._engine.collect import is_replicated, managed
from shoal.fsdp._names import below

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import RootSeam
    from shoal.fsdp._parameters.mesh import DataMesh


class _Registrations:
    """Counts the modules and parameters that were registered in this process since the first model was sharded. While the count does not
    change, no model has new parameters."""

    count = 0
    watched = False

    @classmethod
    def watch(cls) -> None:
        if not cls.watched:
            cls.watched = True
            register_module_parameter_registration_hook(cls._one_more)
            register_module_module_registration_hook(cls._one_more)

    @classmethod
    def _one_more(cls, *_) -> None:
        cls.count += 1


class Added:
    """Parameters added to one root after sharding. ``find`` finds them and broadcasts the values of the mesh's first rank, as DDP does."""

    def __init__(self, root: RootSeam):
        self._root = root
        self._parameters: dict[nn.Parameter, str] = {}
        self._seen = -1  # _Registrations.count when ``find`` last ran
        _Registrations.watch()

    @property
    def any(self) -> bool:
        return bool(self._parameters)

    def find(self) -> None:
        """Finds new parameters. Collective: a forward of the root calls it, which all ranks run."""
        if self._seen == _Registrations.count:
            return
        self._seen = _Registrations.count
        known, self._parameters = self._parameters, self._find()
        new = {p: name for p, name in self._parameters.items() if p not in known and not isinstance(p, DTensor)}
        if not new:
            return
        warnings.warn(
            f"parameters were added after the model was sharded ({', '.join(new.values())}): they are not sharded, all ranks get the first "
            "rank's values, and their gradients are averaged over ranks at the end of a backward pass",
            stacklevel=2,
        )
        with torch.no_grad():
            for p in new:
                self._broadcast(p)

    def settle(self) -> None:
        """Records the present added parameters as known, without a broadcast: all ranks have equal values of them already."""
        self._seen = _Registrations.count
        self._parameters = self._find()

    def _find(self) -> dict[nn.Parameter, str]:
        """Returns the parameters below the root module that belong to no unit and are not ignored. A tied parameter has its first name."""
        states = self._root.states
        ours = {(id(module), attribute) for u in self._root.units for p in u.parameters for module, attribute in p.owners}
        found: dict[nn.Parameter, str] = {}
        visited: set[nn.Module] = set()

        def visit(module: nn.Module, prefix: str) -> None:
            if module in visited or is_replicated(module):
                return
            visited.add(module)
            ignored = [s.settings.ignored[module] for s in states if module in s.settings.ignored]
            for attribute, p in module._parameters.items():
                if p is None or (id(module), attribute) in ours or managed(p) is not None or is_lazy(p) or not p.is_floating_point():
                    continue
                if not any(attribute in names for names in ignored):
                    found.setdefault(p, prefix + attribute)
            for name, child in module._modules.items():
                if child is not None:
                    visit(child, below(prefix, name))

        for top in next((s for s in states if s.is_root), states[0]).modules:
            visit(top, "")
        return found

    @property
    def _data(self) -> DataMesh:
        return self._root.states[0].data

    def _groups(self) -> list[dist.ProcessGroup]:
        data = self._data
        return [data.mesh.get_group(dim) for dim in (data.replicate_dim, data.shard_dim) if dim is not None]

    def _broadcast(self, p: nn.Parameter) -> None:
        for group in self._groups():
            dist.broadcast(p.detach(), group=group, group_src=0)

    def reduce(self) -> None:
        """Averages each added parameter's gradient over ranks, at the end of a synchronised backward pass. If ``p.grad`` accumulates, the
        mean of earlier passes stays as it is. A gradient that no rank has stays None."""
        work = {p: name for p, name in self._parameters.items() if p.requires_grad or p.grad is not None}
        if not work:
            return
        self._check(work)
        alike: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for p in work:
            alike.setdefault((p.dtype, p.device), []).append(p)
        for (dtype, device), parameters in alike.items():
            self._average(dtype, device, parameters)

    def _average(self, dtype: torch.dtype, device: torch.device, parameters: list[nn.Parameter]) -> None:
        has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32, device=device)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        share = self._root.states[0].settings.share
        if share not in (None, 1):
            grads = [g * share if share else torch.zeros_like(g) for g in grads]
        flat = torch.cat([g.reshape(-1).float() if dtype.itemsize < 4 else g.reshape(-1) for g in grads])
        for group in self._groups():
            dist.all_reduce(has, group=group)
            dist.all_reduce(flat, group=group)
        flat /= len(self._data.ranks)
        for p, g, mean, ranks in zip(parameters, grads, flat.split([g.numel() for g in grads]), has.tolist(), strict=True):
            if ranks:
                g.copy_(mean.view_as(g))
                p.grad = g

    def _check(self, work: dict[nn.Parameter, str]) -> None:
        for p, name in work.items():
            if isinstance(p, DTensor):
                raise Unimplemented(
                    f"parameter {name} was added after the model was sharded and is a DTensor: its gradient would not be reduced",
                    hint="add it before the model is sharded, or name it in ignored_params and reduce its gradient",
                )
        names = ", ".join(work.values())
        if self._root.step.joining:
            raise InvalidArgument(
                f"inside join, gradients of parameters that were added after sharding cannot be reduced ({names})",
                hint="add them before the model is sharded",
            )
        if any(u.divide_factor is not None for u in self._root.units):
            raise Unimplemented(
                f"set_gradient_divide_factor does not reach parameters that were added after sharding ({names})",
                hint="add them before the model is sharded",
            )
        if any(p._post_accumulate_grad_hooks for p in work):
            raise Unimplemented(
                f"post-accumulate-grad hooks of parameters that were added after sharding ({names}) run before their gradients are reduced",
                hint="add the parameters before the model is sharded, or step the optimizer after the backward",
            )
