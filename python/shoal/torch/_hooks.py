"""Hooks around the operations of a process group, as ``ProcessGroup.register_pre_hook`` of torch 2.14 describes them.

torch fires hooks in the kernels of its own process groups, which those in Python do not pass.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.torch._errors import as_torch

# torch's names of the operations, by the group's methods.
_OPERATIONS = {
    "allreduce": "ALLREDUCE",
    "allreduce_coalesced": "ALLREDUCE_COALESCED",
    "reduce": "REDUCE",
    "reduce_scatter": "REDUCE_SCATTER",
    "reduce_scatter_single": "REDUCE_SCATTER_BASE",
    "_reduce_scatter_base": "REDUCE_SCATTER_BASE",
    "reduce_scatter_single_coalesced": "REDUCE_SCATTER_TENSOR_COALESCED",
    "reduce_scatter_tensor_coalesced": "REDUCE_SCATTER_TENSOR_COALESCED",
    "broadcast": "BROADCAST",
    "allgather": "ALLGATHER",
    "allgather_coalesced": "ALLGATHER_COALESCED",
    "all_gather_single": "ALLGATHER_BASE",
    "_allgather_base": "ALLGATHER_BASE",
    "all_gather_single_coalesced": "ALLGATHER_INTO_TENSOR_COALESCED",
    "allgather_into_tensor_coalesced": "ALLGATHER_INTO_TENSOR_COALESCED",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "alltoall": "ALLTOALL",
    "all_to_all_single": "ALLTOALL_BASE",
    "alltoall_base": "ALLTOALL_BASE",
    "barrier": "BARRIER",
    "send": "SEND",
    "recv": "RECV",
}

PreHook = Callable[[Any], None]  # called with torch's PreHookArgs before the operation starts
PostHook = Callable[[Any], None]  # called with PostHookArgs after it started; an operation that is not asynchronous has ended by then


class Hooks:
    """The hooks of one group, in the order of their ids. Without a hook, operations do not pass this object."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = group
        self._before: dict[int, PreHook] = {}
        self._after: dict[int, PostHook] = {}
        self._numbers = itertools.count()
        self._local = threading.local()  # `inside`: this thread is in an operation, which may be made of others

    def set_before(self, hook_id: int, hook: PreHook | None) -> None:
        """Sets a hook, or with None removes it."""
        self._before = _changed(self._before, hook_id, hook)
        self._attach()

    def set_after(self, hook_id: int, hook: PostHook | None) -> None:
        self._after = _changed(self._after, hook_id, hook)
        self._attach()

    def _attach(self) -> None:
        group, wanted = self._group, bool(self._before or self._after)
        for method in _OPERATIONS:  # an attribute of the object goes before the method of its class
            if not wanted:
                group.__dict__.pop(method, None)
            elif method not in group.__dict__:
                setattr(group, method, self._surrounded(method))

    def _surrounded(self, method: str) -> Callable[..., dist.Work]:
        function = getattr(type(self._group), method)
        parameters = signature(function)

        @wraps(function)
        def call(*args: object, **kwargs: object) -> dist.Work:
            run = partial(function, self._group, *args, **kwargs)
            if getattr(self._local, "inside", False):
                return run()
            self._local.inside = True
            try:
                return self._fire(_OPERATIONS[method], parameters.bind(self._group, *args, **kwargs).arguments, run)
            finally:
                self._local.inside = False

        return call

    def _fire(self, name: str, arguments: dict[str, Any], run: Callable[[], dist.Work]) -> dist.Work:
        before = c10d.PreHookArgs()
        message = name in ("SEND", "RECV")
        options = next((v for k, v in arguments.items() if k in ("opts", "root")), None)
        operation, number = _operation(name), next(self._numbers)
        before.name, before.op_id = operation, number
        before.async_op = message or getattr(options, "asyncOp", True)  # torch's options are asynchronous by default
        root = arguments["to" if name == "SEND" else "source"] if message else options
        before.root = root if isinstance(root, int) else getattr(root, "rootRank", -1)
        inputs, outputs = (
            list(_tensors([arguments.get(k) for k in keys])) for keys in (("inputs", "input", "tensors"), ("outputs", "output"))
        )
        before.input_tensors, before.output_tensors = (outputs, inputs) if name == "RECV" else (inputs, outputs)
        for hook in self._before.values():
            hook(before)
        work = run()
        after = c10d.PostHookArgs()
        after.name, after.op_id, after.async_op, after.work = operation, number, before.async_op, work
        for hook in self._after.values():
            hook(after)
        return work


def torch_has_hooks() -> bool:
    return hasattr(c10d, "PreHookArgs")


def _changed(hooks: dict[int, Callable], hook_id: int, hook: Callable | None) -> dict[int, Callable]:
    """Returns a copy, since an operation may be going through the hooks."""
    if not torch_has_hooks():
        raise as_torch(Unimplemented(f"torch {torch.__version__} has no hooks of process groups", hint="install torch 2.14 or later"))
    others = [item for item in hooks.items() if item[0] != hook_id]
    return dict(sorted([*others, (hook_id, hook)] if hook is not None else others))


def _operation(name: str) -> Any:
    """Returns torch's HookOpName; in versions that lack it, the longest known one with which the name begins."""
    known = sorted(c10d.HookOpName.__members__, key=len, reverse=True)
    return getattr(c10d.HookOpName, next((n for n in known if name.startswith(n)), "UNKNOWN"))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def check_for_nan(group: dist.ProcessGroup, before: Any) -> None:
    """A hook that raises ``InvalidArgument`` for an input with a NaN. Only the root's tensor is the input of a broadcast."""
    if before.name == c10d.HookOpName.BROADCAST and before.root != group.rank():
        return
    for t in before.input_tensors:
        if (t.is_floating_point() or t.is_complex()) and t.is_cpu and bool(t.isnan().any()):
            raise as_torch(
                InvalidArgument(
                    f"NaN found in input tensor: {before.name.name.lower()} of rank {group.rank()}, shape {tuple(t.shape)}",
                    hint="TORCH_DIST_NAN_CHECK=1 asks for this check",
                )
            )
