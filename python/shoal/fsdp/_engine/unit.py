"""A unit: parameters that are unsharded and reduced together. A call of fully_shard creates one unit per mesh of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from shoal import _native
from shoal.fsdp._engine.bootstrap import shard_actor, use
from shoal.fsdp._engine.gathered import Gathered
from shoal.fsdp._parameters.logical import blocks
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.parameter import ShardedParameter

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import StateSeam


class Unit:
    def __init__(self, state: StateSeam, data: DataMesh):
        self.state, self.data = state, data
        use(shard_actor(data.ranks, data.index, data.replicas), self)
        self.parameters: list[ShardedParameter] = []
        self.native: _native.ShardedUnit | None = None
        self.model: _native.ShardedModel | None = None
        self.place = self.index = -1  # position of the model among the root's, and of the unit in the model
        self.post_forward_mesh: DeviceMesh | None = None
        self.divide_factor: float | None = None
        self.all_reduce_hook: Callable[[torch.Tensor], None] | None = None
        self.all_reduce_hook_stream: Any = None
        self.keeps_storage = False  # memory of gathered parameters stays allocated, at its address
        self.gathered: Gathered | None = None  # set if collectives gather or reduce some parameters

    # ---- in the engine ----

    def build(self, originals: list[torch.Tensor]) -> None:
        self._make_native()
        for index, (p, original) in enumerate(zip(self.parameters, originals, strict=True)):
            p.state = self.state
            p.bind(self.native, index, original)
            if original is not None:
                p.views.take_hooks(original)
            p.views.register(p.views.sharded)
        self._gather_external()

    def build_again(self) -> None:
        """Rebuilds the unit after parameters came from another unit or changed their dtype. The sharded parameters keep their values."""
        for p in self.parameters:
            p.state = self.state
            p.follow_sharded()
        if self.gathered is not None:
            self.gathered.forget()
        self._make_native()
        for index, p in enumerate(self.parameters):
            p.bind(self.native, index, None)
            p.views.register(p.views.sharded)
        self._gather_external()

    def _make_native(self) -> None:
        self.native = self.native_on(self.actor)

    def native_on(self, actor: _native.ShardActor, arena: str = "") -> _native.ShardedUnit:
        """Makes this unit's engine part on the actor's mesh, in memory of its own or in the ``arena`` of its present part."""
        specs = [p.engine_spec() for p in self.parameters]
        return actor.add_unit(self.state.name, specs, self.state.settings.engine, arena, self.native if arena else None)

    def move(self, data: DataMesh, actor: _native.ShardActor, native: _native.ShardedUnit, owns: list[torch.Tensor]) -> None:
        """Continues on another mesh. ``owns``: this rank's slices there, with their values. The sharded parameters stay the same objects;
        gradients are dropped."""
        if self.gathered is not None:
            self.gathered.forget()
        self.data, self.native, self.model = data, native, None
        use(actor, self)
        for index, (p, own) in enumerate(zip(self.parameters, owns, strict=True)):
            p.move(data, native, index, own)
            p.views.register(p.views.sharded)

    def _gather_external(self) -> None:
        if any(p.external for p in self.parameters):
            self.gather()
        # An embedding with max_norm writes to its parameter in forward, so each rank needs a private whole copy, as in FSDP2.
        if any(getattr(m, "max_norm", None) is not None for p in self.parameters for m, _ in p.owners):
            self.gather().private = True

    def gather(self) -> Gathered:
        """Switches to collectives that gather the parameters to private memory."""
        self.state.writes.forget()
        if self.gathered is None:
            self.gathered = Gathered(self)
            self.describe()
        return self.gathered

    def describe(self) -> None:
        """Reports to the step machine who reduces this unit's gradients, if that has changed after the first forward."""
        root = self.state.root
        if root is not None and self.model is not None and self.model in root.models:
            root.step.set_group(self.state.index, self.state.units.index(self), self.group())
            root.replan()

    def in_arena(self, p: ShardedParameter) -> bool:
        """Returns True if parameter ``p`` is read in the arena: no collective gathers it."""
        return self.gathered is None or not self.gathered.brings(p)

    def adopt(self) -> bool:
        return sum(p.adopt() for p in self.parameters) > 0  # sum, because any() would stop at the first

    def show_rows(self, plain: bool) -> None:
        for p in self.parameters:
            p.views.show_rows(plain)

    # ---- a step ----

    def group(self) -> _native.Group:
        """This unit as the step machine knows it: one of the groups of a call of fully_shard."""
        gathered = self.gathered
        return _native.Group(
            self.place,
            self.index,
            empty=not self.parameters,
            collectives=self.reduces_by_collectives,
            gathers=gathered is not None and gathered.gathers,
            replicated=self.data.replicas > 1,
        )

    @property
    def scale(self) -> float:
        root, part = self.state.root, self.state.settings.part
        if root is not None and root.scale is not None:
            return root.scale
        return 1.0 / (self.divide_factor or (len(self.data.ranks) if part is None else part.total))

    @property
    def leaves(self) -> list[int] | None:
        """By rank of the shards: the first of its leaves in the tree over logical ranks; None outside of deterministic trainings."""
        part = self.state.settings.part
        return None if part is None else [block.start for block in blocks(part.total, self.data.shards)]

    @property
    def reduces_by_collectives(self) -> bool:
        return self.gathered is not None and self.gathered.reduces

    @property
    def reads_host_rows(self) -> bool:
        """True if a device copies this rank's rows from the host's memory."""
        return self.gathered is not None and any(p.home.type == "cpu" for p in self.parameters) and self.data.device.type != "cpu"

    def begin_reduce(self, reshard: bool, everywhere: bool) -> None:
        """Publishes this rank's gradients, or their absence, once per backward pass and graph. ``everywhere``: over all replicas."""
        s = self.state
        if s.settings.share is not None:
            for p in self.parameters:
                p.gradient.weigh(s.settings.share)
        for p in self.parameters:
            if s.root.repeats:
                p.gradient.zero()
            elif s.root.samples is not None:
                p.gradient.weigh(s.root.weight(self.reduces_by_collectives))
        if self.reduces_by_collectives:
            self.gathered.begin_reduce(everywhere)
            self.model.backward_end(self.index, [], 1.0, True, reshard)
            return
        fresh = self.all_reduce_hook is not None
        work = [p.gradient.work(everywhere, s.settings.reduce_unused, fresh) for p in self.parameters]
        weight = -1.0 if s.root.samples is None else float(s.root.samples + s.root.samples_kept)
        self.model.backward_end(self.index, work, self.scale, everywhere, reshard, weight)
        for p in self.parameters:
            p.gradient.published()

    def complete_gradients(self, present: list[bool]) -> None:
        reduced = [(p, p.gradient.complete(has)) for p, has in zip(self.parameters, present, strict=True)]
        reduced = [(p, gradient) for p, gradient in reduced if gradient is not None]
        if self.all_reduce_hook is not None and reduced:
            self._call_hook([(p, gradient._local_tensor) for p, gradient in reduced])
        for p, gradient in reduced:
            p.gradient.add(gradient)
            self.accumulated(p)

    def accumulated(self, p: ShardedParameter) -> None:
        self.state.root.reductions.accumulated(p)

    def _call_hook(self, gradients: list[tuple[ShardedParameter, torch.Tensor]]) -> None:
        """Calls the hook on all gradients as one flat tensor in the reduce dtype, as FSDP2 does."""
        dtype = gradients[0][0].reduce_dtype
        flat = torch.cat([g.reshape(-1).to(dtype) for _, g in gradients])
        self.all_reduce_hook(flat)
        for (_, g), part in zip(gradients, flat.split([g.numel() for _, g in gradients]), strict=True):
            g.copy_(part.view_as(g))
