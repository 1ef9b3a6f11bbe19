"""Checkpoints of sharded tensors in torch.distributed.checkpoint's format, readable at any mesh and by plain torch
(``torch_xla.experimental.distributed_checkpoint``)."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner, create_default_local_load_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.utils._pytree import tree_map

from shoal._core.telemetry import Activity, at, save_event
from shoal._distributed.ranks import cpu_backend
from shoal.exceptions import InvalidArgument
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout import process_group as _process_group
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import parts_of


class _StepError(InvalidArgument, AssertionError):
    """Error for a step that was not saved, or for a wrong setting."""


def _chunks(array: Array) -> dict[torch.Size, tuple[ChunkStorageMetadata, torch.Tensor]]:
    """Returns the nonempty parts of this process, by their offsets."""
    found = {}
    cuts = parts_of(array.shape, array.sharding)
    for position, local in array.locals.items():
        offsets = torch.Size(c.start for c in cuts[position])
        if local.numel() or len(cuts) == 1:
            found[offsets] = (ChunkStorageMetadata(offsets, local.shape), local)
    return found


class SPMDSavePlanner(DefaultSavePlanner):
    """Writes each part of a sharded tensor once, and one copy of a whole tensor."""

    def set_up_planner(self, state_dict: dict, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        if isinstance(storage_meta, bool):  # torch_xla passes the arguments in another order
            storage_meta, is_coordinator = None, storage_meta
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        there = {name: v for name, v in self.state_dict.items() if isinstance(v, Tensor)}
        self.sharded_state_dict = {name: t for name, t in there.items() if not t._box.array.sharding.is_replicated}
        whole = {name: t._box.array.locals[0].detach() for name, t in there.items() if name not in self.sharded_state_dict}
        self.unsharded_state_dict = {name: whole.get(name, v) for name, v in self.state_dict.items() if name not in self.sharded_state_dict}
        self.state_dict = self.unsharded_state_dict
        self._parts = {name: _chunks(t._box.array) for name, t in self.sharded_state_dict.items()}

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = list(plan.items)
        for name, t in self.sharded_state_dict.items():
            properties = TensorProperties(dtype=t.dtype, requires_grad=t.requires_grad)
            for offsets, (chunk, _) in self._parts[name].items():
                data = TensorWriteData(chunk=chunk, properties=properties, size=t.shape)
                items.append(WriteItem(index=MetadataIndex(name, offsets), type=WriteItemType.SHARD, tensor_data=data))
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        parts = self._parts.get(index.fqn)
        return super().lookup_object(index) if parts is None else parts[torch.Size(index.offset or ())][1].detach()


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Reads into the tensors' parts in their present sharding. Raises a CheckpointException for a tensor of another shape (torch_xla's
    planner reads the elements that fit)."""

    def set_up_planner(self, state_dict: dict, metadata: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.sharded_state_dict = {
            n: v for n, v in self.state_dict.items() if isinstance(v, Tensor) and not v._box.array.sharding.is_replicated
        }
        self.unsharded_state_dict = {n: v for n, v in self.state_dict.items() if n not in self.sharded_state_dict}

    def create_local_plan(self) -> LoadPlan:
        there = {name: v for name, v in self.state_dict.items() if isinstance(v, Tensor)}
        rest = {name: v for name, v in self.state_dict.items() if name not in there}
        plan = create_default_local_load_plan(rest, self.metadata, not self.allow_partial_load)
        items: list[ReadItem] = list(plan.items)
        self._there, self._parts = there, {name: _chunks(t._box.array) for name, t in there.items()}
        for name, t in there.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if saved is None:
                if self.allow_partial_load:
                    continue
                raise RuntimeError(f"Missing key in checkpoint state_dict: {name}.")
            if not isinstance(saved, TensorStorageMetadata) or saved.size != t.shape:
                what = f"a tensor of shape {tuple(saved.size)}" if isinstance(saved, TensorStorageMetadata) else "no tensor"
                raise InvalidArgument(f"{name} is {what} in the checkpoint and has shape {tuple(t.shape)} here")
            t._box.before_write()
            if world().num_processes > 1:
                if not t._box.is_written_locally:
                    raise InvalidArgument(f"{name} is a view with another memory layout than its base", hint="load into the base")
                t._box.touch()  # on every process, even one that reads no element: views that are computed anew may communicate
            items += create_read_items_for_chunk_list(name, saved, [chunk for chunk, _ in self._parts[name].values()])
        return dataclasses.replace(plan, items=items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        parts = self._parts.get(index.fqn)
        return super().lookup_tensor(index) if parts is None else parts[torch.Size(index.offset or ())][1].detach()

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        t = self._there.get(read_item.dest_index.fqn)
        if t is not None and world().num_processes > 1:
            t._box.carry_over()
        elif t is not None:
            t._box.wrote()


class CheckpointManager:
    """Checkpoints of steps in the folder ``path``, one folder each. ``save_interval``: steps between two saves. ``max_to_keep``: the limit
    beyond which the oldest are deleted (0: unlimited). ``max_pending_async``: the limit of ``save_async`` writes in progress.
    ``chkpt_on_preemption``: after SIGTERM the next step is saved, whatever its number. Needs a process group of the CPU; several processes
    have that of ``use_spmd``. Follows torch_xla.experimental.distributed_checkpoint.CheckpointManager. Raises
    AssertionErrors without a group, for wrong settings and for unknown steps."""

    def __init__(
        self,
        path: str,
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
    ):
        if world().num_processes > 1:
            _process_group.ensure()
        if not dist.is_initialized():
            raise _StepError(
                "A process group is required.",
                hint="import torch_xla.distributed.xla_backend (shoal.spmd.xla_backend), then "
                "torch.distributed.init_process_group('gloo', init_method='xla://')",
            )
        for wrong, text in (
            (save_interval <= 0, "save_interval must be positive"),
            ((max_to_keep or 0) < 0, "max_to_keep must be non-negative"),
            ((max_pending_async or 0) <= 0, "max_pending_async must be positive"),
        ):
            if wrong:
                raise AssertionError(text)
        self._path, self._interval, self._keep = Path(path), save_interval, max_to_keep or 0
        # The writing thread has groups of its own, because the program may communicate at the same time.
        self._group = process_group or dist.new_group(backend=cpu_backend())
        self._votes = dist.new_group(backend=cpu_backend())
        self._slots = threading.Semaphore(max_pending_async or 1)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="shoal-checkpoint")  # one thread: every process writes in the same order
        self._pending: list[Future] = []
        self._steps: list[int] = self._in_first(self._saved)
        self._preempted: threading.Event | None = None
        if chkpt_on_preemption:
            self._preempted = threading.Event()
            before = signal.getsignal(signal.SIGTERM)

            def preempt(number, frame):
                self._preempted.set()
                if callable(before):
                    before(number, frame)

            signal.signal(signal.SIGTERM, preempt)

    def _saved(self) -> list[int]:
        """Returns the steps in the folder, the oldest first."""
        self._path.mkdir(parents=True, exist_ok=True)
        found = (p for p in self._path.iterdir() if p.name.isdecimal() and (p / ".metadata").exists())
        return [int(p.name) for p in sorted(found, key=lambda p: (p / ".metadata").stat().st_mtime_ns)]

    def _in_first(self, action: Callable[[], Any]) -> Any:
        """Runs ``action`` in the first process; every process gets its result or its error."""
        outcome: list[Any] = [None, None]
        if dist.get_rank(self._group) == 0:
            try:
                outcome = [action(), None]
            except Exception as error:
                outcome = [None, error]
        if dist.get_world_size(self._group) > 1:
            dist.broadcast_object_list(outcome, group=self._group, group_src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def should_save(self, step: int) -> bool:
        return step % self._interval == 0 or (self._preempted is not None and self._agreed(self._preempted.is_set()))

    def _agreed(self, flag: bool) -> bool:
        """True if the flag is set on any process, because a signal reaches processes at different steps."""
        votes = torch.tensor([int(flag)])
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._votes)
        return bool(votes.item())

    def save(self, step: int, state_dict: dict, force: bool = False) -> bool:
        """Saves every ``save_interval`` steps, or with ``force``. Returns True if it saved."""
        if not (force or self.should_save(step)):
            return False
        began = time.perf_counter()
        with at(Activity.SAVE):
            self._writer.submit(self._write, step, state_dict).result()
        save_event("save", str(self._path / str(step)), began)
        return True

    def save_async(self, step: int, state_dict: dict, force: bool = False) -> bool:
        """As ``save``, but a thread writes a copy of the tensors' present values. ``join`` waits for the thread and raises its error."""
        if not (force or self.should_save(step)):
            return False
        self._slots.acquire()
        copied = tree_map(_copy, state_dict)

        def write():
            try:
                self._write(step, copied)
            finally:
                self._slots.release()

        self._pending.append(self._writer.submit(write))
        return True

    def join(self) -> None:
        """Waits until everything is written. Raises the error of the first failed write."""
        waiting, self._pending = self._pending, []
        errors = [error for error in (f.exception() for f in waiting) if error is not None]
        if errors:
            raise errors[0]

    def restore(self, step: int, state_dict: dict) -> None:
        """Reads a saved step into the tensors of ``state_dict``."""
        if step not in self._steps:
            raise _StepError(f"Cannot restore from untracked step {step}. Valid steps are: {set(self._steps)}", hint=f"in {self._path}")
        dcp.load(
            state_dict, storage_reader=dcp.FileSystemReader(self._path / str(step)), planner=SPMDLoadPlanner(), process_group=self._group
        )

    def all_steps(self) -> list[int]:
        return sorted(self._steps)

    def reached_preemption(self, step: int) -> bool:
        """True once any process has received SIGTERM."""
        if self._preempted is None:
            raise _StepError(
                "Preemption detection not enabled. Please set `chkpt_on_preemption`  when creating the CheckpointManager",
                hint="chkpt_on_preemption=True",
            )
        return self._agreed(self._preempted.is_set())

    def _write(self, step: int, state_dict: dict) -> None:
        folder, fresh = self._path / str(step), self._path / f".{step}.new"

        def begin() -> None:
            if fresh.exists():  # left by a process that died while it wrote
                shutil.rmtree(fresh)

        def end() -> None:
            if folder.exists():
                shutil.rmtree(folder)
            fresh.rename(folder)
            for old in dropped:
                shutil.rmtree(self._path / str(old))

        self._in_first(begin)
        dcp.save(state_dict, storage_writer=dcp.FileSystemWriter(fresh), planner=SPMDSavePlanner(), process_group=self._group)
        steps = [s for s in self._steps if s != step] + [step]
        kept = steps[-self._keep :] if self._keep else steps
        dropped = steps[: len(steps) - len(kept)]
        self._in_first(end)
        self._steps = kept


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        array = value._box.array
        copied = Tensor(
            Box(Array(array.shape, array.dtype, array.sharding, {p: local.detach().clone() for p, local in array.locals.items()}))
        )
        copied._box.mark = value._box.mark
        return copied
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes the optimizer's state, so that a checkpoint can be read into it, by one step with zero gradients. As torch_xla's, that step
    counts: weight decay changes the parameters, and gradients stay zero. Restore parameters and state afterwards."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad:
                p.grad = torch.zeros_like(p)
    optimizer.step()
    return optimizer


__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
