"""The process group of the backend ``shoal``: names and numbers for torch, and its backends for other devices."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, _register_work

from shoal._core.process import state
from shoal._distributed.debugging import provide, register_handler
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.torch._allocator import CpuBackend
from shoal.torch._errors import as_torch
from shoal.torch._hooks import Hooks, PostHook, PreHook, check_for_nan, torch_has_hooks
from shoal.torch._recorder import recorder
from shoal.torch._window import Windows

_NAN_CHECK = -1  # the id of the hook that checks for NaN; it goes before the user's


class ProcessGroup(Windows):
    """A ``torch.distributed.ProcessGroup`` whose CPU tensors travel over a Communicator: in shared memory on one host.

    ``torch.distributed.init_process_group("shoal")`` makes one. In ``"cpu:shoal,cuda:nccl"``, tensors on the GPU go to NCCL.
    Errors are those of ``shoal.exceptions``, and at the same time torch's ``DistBackendError``, a ``RuntimeError``.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str, formed: bool = True):
        """``formed``: False for a group whose members come with the first ``reconfigure``."""
        super().__init__(store, rank, size, timeout, name, formed)
        self._group_name, self._group_desc = name, "undefined"
        self._elsewhere: dict[str, dist.ProcessGroup] = {}
        self._cpu = CpuBackend(self)
        self._hooks = Hooks(self)
        self._split: dict[str, str] = {}  # the backends by device, of a group that another one split off
        self._opening_elsewhere = threading.Lock()
        state.ending.append(self._close)

    # ---- torch's names and numbers ----

    def getBackendName(self) -> str:
        return "shoal"

    def name(self) -> str:
        return "shoal"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, text: str) -> None:
        self._group_desc = text

    def get_group_store(self) -> dist.Store:
        return self._store

    def __repr__(self) -> str:
        return f"<shoal process group {self._group_name}: rank {self._rank} of {self._size}, {self.transport}>"

    # ---- other devices ----

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._backends()]

    def _backends(self) -> dict[str, str]:
        """Returns the group's backends by device. Empty until torch has registered the group: without devices it gets none of torch's
        hooks in C++, which look for a backend there."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self)
        return dict(item.split(":", 1) for item in config.split(",")) if config else self._split

    def elsewhere(self, device: torch.device) -> dist.ProcessGroup:
        with self._opening_elsewhere:
            group = self._elsewhere.get(device.type)
            if group is None:
                group = self._elsewhere[device.type] = self._open_elsewhere(device.type)
        return group

    def _open_elsewhere(self, device: str) -> dist.ProcessGroup:
        """Makes a process group of torch's backend for a device, at the first use of the device in this group."""
        backends = self._backends()
        if device not in backends or backends[device] == "shoal":
            raise InvalidArgument(
                f"this process group has no backend for {device} tensors: the backend shoal moves CPU tensors",
                hint=f'init_process_group("cpu:shoal,{device}:{"nccl" if device == "cuda" else "..."}")',
            )
        inner = dist.ProcessGroup(dist.PrefixStore(f"shoal/{device}", self._store), self._rank, self._size)
        backend, kind = _make_backend(backends[device], inner.get_group_store(), self._rank, self._size, self._timeout)
        inner._register_backend(torch.device(device), kind, backend)
        inner._set_group_name(self._group_name)
        self._register_backend(torch.device(device), kind, backend)
        return inner

    @property
    def supports_reconfigure(self) -> bool:
        return len(set(self._backends().values())) < 2

    def _get_backend(self, device: torch.device) -> object:
        device = torch.device(device)
        backends = self._backends()
        if device.type == "cpu" or not backends:
            return self._cpu
        if device.type not in backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self.elsewhere(device)._get_backend(device)

    # ---- hooks ----

    def register_pre_hook(self, hook_id: int, hook: PreHook) -> None:
        """Calls ``hook(args)`` with torch's PreHookArgs before each operation. Hooks run in the order of their ids. Since torch 2.14."""
        self._hooks.set_before(hook_id, hook)

    def unregister_pre_hook(self, hook_id: int) -> None:
        self._hooks.set_before(hook_id, None)

    def register_post_hook(self, hook_id: int, hook: PostHook) -> None:
        """Calls ``hook(args)`` with torch's PostHookArgs when an operation has started; one that is not asynchronous has ended by then."""
        self._hooks.set_after(hook_id, hook)

    def unregister_post_hook(self, hook_id: int) -> None:
        self._hooks.set_after(hook_id, None)

    supports_abort_hooks = supports_completion_hooks = False  # torch calls completion hooks without the GIL

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Raises ``Unimplemented``: an operation that fails raises its error on every rank."""
        raise as_torch(Unimplemented("the backend shoal has no abort hooks", hint="catch the error of the operation, or of work.wait()"))

    def unregister_abort_hook(self, hook_id: int) -> None:
        return None

    # ---- membership ----

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of later operations, on every device."""
        super().set_timeout(timeout)
        self._timeout = timeout
        for group in self._elsewhere.values():
            group.set_timeout(timeout)

    def split_group(self, ranks: Sequence[int], timeout=None, opts=None, group_name=None, group_desc=None, **_) -> ProcessGroup | None:
        """Returns a group of these ranks, in ascending order, or None on other ranks. Collective over this group."""
        name = group_name or f"split:{next(self._splits)}"
        ranks = sorted(ranks)
        if self._rank not in ranks:
            return None
        # Ranks may split at once into groups of one name. Members of a generation have one base, but may have other names for this group.
        at = f"{name}/{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(f"{at}/", self._store)
        group = type(self)(store, ranks.index(self._rank), len(ranks), timeout or self._timeout, f"{self._base}/{at}")
        group.setGroupName(group_name or f"{self._group_name}:{name}")
        group.setGroupDesc(group_desc or "undefined")
        group._split = {"cpu": "shoal"}
        return group

    def abort(self) -> None:
        """Ends pending and later operations on every rank with an error."""
        why = f"rank {self._rank} aborted the process group {self._group_name}"
        self._native.abort(why)  # first: a new communicator of callbacks checks this one once it is a channel
        for native in tuple(self._channels.values()):
            native.abort(why)
        for group in self._elsewhere.values():
            group.abort()

    def shutdown(self) -> None:
        """Leaves the group: this rank makes no more calls."""
        for group in self._elsewhere.values():
            group.shutdown()
        self._close()
        if self._close in state.ending:
            state.ending.remove(self._close)

    def _close(self) -> None:
        self._completer.end()
        self._leave()


def _make_backend(name: str, store: dist.Store, rank: int, size: int, timeout: timedelta) -> tuple[object, object]:
    """Returns a backend of torch and its type."""
    kinds, plugins = dist.ProcessGroup.BackendType, dist.Backend._plugins
    if name == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout), kinds.GLOO
    if name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options), kinds.NCCL
    plugin = plugins.get(name.upper())
    if plugin is None or plugin.extended_api:
        raise InvalidArgument(f"the backend {name} cannot be combined with shoal", hint="nccl or gloo")
    return plugin.creator_fn(store, rank, size, timeout), kinds.CUSTOM


def create(options: object, _: object = None) -> ProcessGroup:
    """Makes a process group as ``torch.distributed.Backend.register_backend`` with its extended interface asks for it."""
    formed = not getattr(options, "enable_reconfigure", False)  # since torch 2.14
    kind = ProcessGroup if recorder is None else recorder.recorded(ProcessGroup)
    group = kind(options.store, options.group_rank, options.group_size, options.timeout, options.group_id, formed)
    if torch_has_hooks() and os.environ.get("TORCH_DIST_NAN_CHECK", "0") == "1":  # earlier versions of torch ignore the variable, too
        group.register_pre_hook(_NAN_CHECK, partial(check_for_nan, group))
    return group


_functional = torch.library.Library("_c10d_functional", "IMPL")  # its operators last as long as this object


def _all_gather_into_tensor_out(input: torch.Tensor, group_size: int, group_name: object, *, out: torch.Tensor) -> torch.Tensor:
    """Torch's operator, which its C++ code does not pass to process groups in Python, as it passes all other functional collectives."""
    by_name = isinstance(group_name, str)  # else it is the group
    group, options = dist.distributed_c10d._resolve_process_group(group_name) if by_name else group_name, AllgatherOptions()
    options.asyncOp = True
    parts = (torch.view_as_real(out), torch.view_as_real(input)) if input.is_complex() else (out, input)
    _register_work(out, group._allgather_base(parts[0], parts[1].contiguous(), options))
    return out


def _groups_answer_debuggers() -> None:
    provide("groups", lambda: [repr(group) for group in tuple(dist.distributed_c10d._world.pg_map) if isinstance(group, ProcessGroup)])
    if recorder is not None:
        provide("waiting_operations", recorder.waiting)
        register_handler("shoal_fr_trace_json", lambda: json.dumps(recorder.dump()))


def register() -> None:
    """Makes the backend known to torch, and lets ``monitored_barrier`` take its groups."""
    if "SHOAL" in dist.Backend._plugins:
        return
    _groups_answer_debuggers()
    dist.Backend.register_backend("shoal", create, extended_api=True, devices=["cpu"])
    # Since torch 2.15 groups of other backends get a flight recorder, which looks for a backend in C++.
    getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("shoal")
    for device in ("CPU", "CUDA"):
        _functional.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, device)
    torchs = dist.monitored_barrier

    def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False):
        used = dist.group.WORLD if group is None else group
        if not isinstance(used, ProcessGroup):
            return torchs(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return used.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.__doc__ = torchs.__doc__
    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier
