"""A change of meshes: its arguments, its protocol among ranks, and its report. Models in arenas."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from shoal import _native
from shoal._objects.tensors import lasting
from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.bootstrap import keep_actor
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._protect import AdoptedRank
from shoal.fsdp._reshard.before import Before, OldMesh
from shoal.fsdp._reshard.contents import Contents, Sharded, Summary, Value
from shoal.fsdp._reshard.memory import Copies, Ledger, NewMesh
from shoal.fsdp._reshard.phases import Phases
from shoal.fsdp._reshard.stream import Moved, copy_whole, keep, move
from shoal.fsdp._reshard.union import Union


@dataclass(frozen=True)
class Report:
    """A rank's part in a change of meshes. Bytes are those of parameters and sharded optimizer states, except ``replicated_bytes``.

    ``sent_bytes`` and ``received_bytes`` are the plan's minimum. ``kept_bytes`` were on this rank already. Parameters in arenas, and states
    in shared arrays, that the new mesh takes over count as neither: they have not moved, and every rank of the host has them.
    ``replicated_bytes``: buffers and other whole copies, sent to newcomers or received.
    """

    sent_bytes: int
    received_bytes: int
    kept_bytes: int
    replicated_bytes: int
    transfers: int  # transfers of the plan from or to this rank
    messages: int  # sent
    seconds: float
    phases: dict[str, float]  # its parts: seconds by name, in order
    plan: _native.ReshardPlan  # the transfers of all ranks; ``plan.table()`` is a text
    before: OldMesh | None = None  # if it is kept


@dataclass(frozen=True)
class Request:
    """The arguments of ``reshard`` on this rank."""

    data: DataMesh  # the new mesh
    old_owners: tuple[int, ...]
    old_index: int | None
    adopted: dict[int, AdoptedRank]
    recovers: bool  # ranks of the old mesh have died
    keep_old: bool


def change(model: nn.Module, optimizers: list[torch.optim.Optimizer], request: Request) -> Report:
    """Moves a model whose rows lie in arenas, with its optimizers. Every participant calls it."""
    phases = Phases()
    with meeting(request) as union:
        phases.end("meet to reshard")
        report = move_model(model, optimizers, request, union, phases)
        if request.keep_old:
            return report
        report.before.forget()
        return replace(report, before=None)


@contextmanager
def meeting(request: Request) -> Iterator[Union]:
    """The participants of a change, while they are connected."""
    union = Union(request.old_owners, request.data.ranks)
    try:
        yield union
    finally:
        union.close()


def move_model(model: nn.Module, optimizers: list[torch.optim.Optimizer], request: Request, union: Union, phases: Phases) -> Report:
    """Moves a model whose rows lie in arenas. The report has the way back."""
    with lasting():
        return _Change(model, optimizers, request, union).run(phases)


def check_arguments(request: Request) -> None:
    old_owners, old_index, adopted, data = request.old_owners, request.old_index, request.adopted, request.data
    rank, ranks = dist.get_rank(), data.mesh.mesh
    if any(not torch.equal(ranks.sort(dim).values, ranks) for dim in range(ranks.ndim)):
        raise InvalidArgument(
            f"the ranks of the new mesh do not ascend: {ranks.tolist()}",
            hint="number the processes in the order of the mesh: process groups, which DeviceMesh makes, sort their ranks",
        )
    if not old_owners:
        raise InvalidArgument(f"old_owners={old_owners} should name each rank of the old mesh once")
    if (wrong := sorted({i for i, r in enumerate(old_owners) if r == rank and i != old_index} ^ set(adopted))) and old_index is not None:
        raise InvalidArgument(f"old_owners={old_owners} and the adopted ranks {sorted(adopted)} differ at rank {wrong[0]} of the old mesh")
    if old_index is None and rank in old_owners:
        raise InvalidArgument(f"old_owners={old_owners} names rank {rank}, which calls itself a newcomer (old_index=None)")
    if old_index is not None and not (0 <= old_index < len(old_owners) and old_owners[old_index] == rank):
        raise InvalidArgument(f"old_index={old_index} of rank {rank} does not fit old_owners={old_owners}")
    if old_index is None and rank not in data.ranks:
        raise InvalidArgument(f"rank {rank} is neither on the old nor on the new mesh")


class _Change:
    """One change of meshes on this rank. Nothing of the model changes before ``_commit``."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        request: Request,
        union: Union,
    ):
        self._model, self._optimizers, self._data, self._union = model, optimizers, request.data, union
        self._old_owners, self._old_index, self._adopted = request.old_owners, request.old_index, request.adopted
        self._recovers = request.recovers
        self._newcomers = [r for r in request.data.ranks if r not in request.old_owners]
        self._stays = union.rank in request.data.ranks
        self._new: NewMesh | None = None

    def run(self, phases: Phases) -> Report:
        self._describe()
        phases.end("describe")
        try:
            self._union.agreed(self._allocate)
            phases.end("allocate")
            try:
                plan, moved, replicated = self._move(phases)
                self._union.barrier()
                phases.end("wait for rows")
            except BaseException as error:
                self._union.abort(error)
                raise
        except BaseException:
            if self._new is not None:
                self._new.drop()
            raise
        before = self._commit()
        phases.end("commit")
        return Report(
            sent_bytes=moved.sent,
            received_bytes=moved.received,
            kept_bytes=moved.kept,
            replicated_bytes=replicated,
            transfers=sum(self._union.rank in (t.source, t.destination) for t in plan.transfers),
            messages=moved.messages,
            seconds=phases.total,
            phases=phases.seconds,
            plan=plan,
            before=before,
        )

    # ---- agreement about the contents ----

    def _describe(self) -> None:
        union, first = self._union, self._old_owners[0]
        summaries = dict(zip(union.ranks, union.agreed(self._own_description), strict=True))
        self._compare(summaries)
        if not self._newcomers:
            return
        answers = union.all_gather(pickle.dumps(self._described) if union.rank == first else b"")
        if self._old_index is None:
            self._described = pickle.loads(answers[union.ranks.index(first)])

    def _own_description(self) -> Summary:
        self._contents = Contents(self._model, self._optimizers)
        if self._old_index is not None:
            self._contents.settle(self._recovers)
        self._contents.check()
        self._described = self._contents.describe()
        return self._described.summary()

    def _compare(self, summaries: dict[int, Summary]) -> None:
        """Raises InvalidArgument on all ranks if one of them has another model. All ranks compare the same summaries."""
        first = self._old_owners[0]
        reference = summaries[first]
        if reference.world_size != len(self._old_owners):
            raise InvalidArgument(f"the model is on a mesh of {reference.world_size} ranks, but old_owners={self._old_owners}")
        for rank, summary in summaries.items():
            if summary.everything == reference.everything or (rank not in self._old_owners and summary.names == reference.names):
                continue
            theirs, ours = self._difference(rank, first)
            raise InvalidArgument(
                f"rank {rank} has another model or optimizer than rank {first}: {theirs}; rank {first}: {ours}",
                hint="every rank builds the same model, shards the same modules and makes the same optimizers",
            )

    def _difference(self, rank: int, first: int) -> tuple[str, str]:
        """The first lines in which two participants' descriptions differ. Every participant calls it."""
        mine = [*self._described.fingerprint, *map(str, self._described.replicated)]
        lines = dict(zip(self._union.ranks, map(pickle.loads, self._union.all_gather(pickle.dumps(mine))), strict=True))
        pairs = itertools.zip_longest(lines[rank], lines[first], fillvalue="nothing more")
        return next((pair for pair in pairs if pair[0] != pair[1]), ("other roots or optimizer states", "these"))

    # ---- the new memory ----

    def _allocate(self) -> None:
        reference, contents = self._described, self._contents
        if self._old_index is None:
            contents.make_roots(reference.roots)
            for p, wanted in zip(contents.parameters, reference.requires_grad, strict=True):
                p.views.sharded.requires_grad_(wanted)
                p.views.follow_requires_grad()
        takes_over = self._union.one_host and self._data.replicas == 1
        arenas = [key if takes_over else "" for key in reference.arenas]
        if self._stays:
            self._new = NewMesh.make(contents, self._data, self._union.name, arenas, reference.shared if takes_over else None)
        shards = len(self._old_owners) // reference.replicas
        old_shard = None if self._old_index is None else self._old_index % shards
        adopted = {i % shards: rank for i, rank in self._adopted.items()}
        shared = reference.shared.states if takes_over and reference.shared is not None else []
        self._ledger = Ledger(contents, reference, [key != "" for key in arenas], shared, shards, old_shard, adopted)
        self._ledger.fill(self._new)
        self._copies = Copies(contents, reference, self._old_index is None)

    # ---- the bytes ----

    def _move(self, phases: Phases) -> tuple[_native.ReshardPlan, Moved, int]:
        if self._new is not None:
            self._new.make_models(self._contents)
        phases.end("make models")
        entries, union = self._ledger.entries, self._union
        plan = _native.plan_reshard(
            [(e.name, e.rows, e.row_bytes) for e in entries],
            self._old_owners,
            self._described.replicas,
            self._data.ranks,
            self._data.replicas,
            union.hosts(),
        )
        phases.end("plan")
        kept = keep(plan, entries, union.rank)
        phases.end("keep rows")
        moved = move(plan, entries, union)
        moved.kept = kept
        phases.end("move rows")
        replicated = copy_whole(self._copies.tensors, self._old_owners[0], self._newcomers, union)
        return plan, moved, replicated

    # ---- the change ----

    def _commit(self) -> Before:
        """Changes this rank's model. Returns the way back; on a rank that leaves, the model is unchanged."""
        contents = self._contents
        before = Before(contents, leaves=self._new is None)
        if self._new is not None:
            self._commit_optimizers()
            self._new.commit(contents)
            if self._old_index is None:
                self._copies.commit()
            for optimizer in contents.optimizers:
                if hasattr(optimizer, "parameters_moved"):
                    optimizer.parameters_moved()
            keep_actor(self._data.ranks, self._data.index, self._data.replicas, self._new.actor)
            _clear_sharding_prop_cache()  # its results are on an earlier mesh, which equals the new one if it has the same ranks
        del self._ledger
        return before

    def _commit_optimizers(self) -> None:
        newcomer = self._old_index is None
        for o, (optimizer, described) in enumerate(zip(self._contents.optimizers, self._described.optimizers, strict=True)):
            parameters = self._contents.optimized(optimizer)
            if newcomer:
                optimizer.state.clear()
                for group, options in zip(optimizer.param_groups, described.options, strict=True):
                    group.update(copy.deepcopy(options))
            for k, ((_, _, t, _), states) in enumerate(zip(parameters, described.states, strict=True)):
                for name, state in states.items():
                    if isinstance(state, Sharded):
                        optimizer.state[t][name] = self._ledger.state((o, k, name), state, self._data)
                    elif newcomer and isinstance(state, Value):
                        optimizer.state[t][name] = copy.deepcopy(state.value)
                    elif newcomer:
                        optimizer.state[t][name] = self._copies.state((o, k, name)) if state.value is None else state.tensor()
