"""Parameters that are unsharded and reduced together: a call of fully_shard makes one of them, or one per mesh that it places them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh

from shoal import _native
from shoal.fsdp import _bootstrap
from shoal.fsdp._gathered import Gathered
from shoal.fsdp._mesh import DataMesh
from shoal.fsdp._parameters import ShardedParameter

if TYPE_CHECKING:
    from shoal.fsdp._state import State


class Unit:
    def __init__(self, state: State, data: DataMesh):
        self.state, self.data = state, data
        self.actor = _bootstrap.shard_actor(data.ranks, data.index, data.replicas)
        self.parameters: list[ShardedParameter] = []
        self.native: _native.ShardedUnit | None = None
        self.model: _native.ShardedModel | None = None
        self.place = self.index = -1  # of the model in the root's, and of the unit in the model
        self.post_forward_mesh: DeviceMesh | None = None
        self.published = False  # its gradients, in this backward pass
        self.divide_factor: float | None = None
        self.all_reduce_hook: Callable[[torch.Tensor], None] | None = None
        self.gathered: Gathered | None = None  # where its parameters are not read in the arena

    # ---- in the engine ----

    def build(self, originals: list[torch.Tensor]) -> None:
        self._make_native()
        for index, (p, original) in enumerate(zip(self.parameters, originals, strict=True)):
            p.state = self.state
            p.bind(self.native, index, original)
            if original is not None:
                p.take_hooks(original)
            p.register(p.sharded)
        self._gather_external()

    def build_again(self) -> None:
        """With the parameters that it has now, of which some came from another unit or changed their dtype: the faces keep their values."""
        for p in self.parameters:
            p.state = self.state
            p.follow_sharded()
        if self.gathered is not None:
            self.gathered.forget()
        self._make_native()
        for index, p in enumerate(self.parameters):
            p.bind(self.native, index, None)
            p.register(p.sharded)
        self._gather_external()

    def _make_native(self) -> None:
        self.native = self.actor.add_unit(self.state.name, [p.engine_spec() for p in self.parameters], self.state.lease_guard)

    def _gather_external(self) -> None:
        if any(p.external for p in self.parameters):
            self.gather()
        # Renormalised in forward: of the whole parameter each rank needs a copy to write to, as in FSDP2.
        if any(getattr(m, "max_norm", None) is not None for p in self.parameters for m, _ in p.owners):
            self.gather().private = True

    def gather(self) -> Gathered:
        """From now on collectives bring the whole parameters to memory of this rank's own."""
        if self.gathered is None:
            self.gathered = Gathered(self)
        return self.gathered

    def in_arena(self, p: ShardedParameter) -> bool:
        """Other ranks read the rows of one of its parameters where they lie."""
        return self.gathered is None or not self.gathered.brings(p)

    def adopt(self) -> bool:
        return sum(p.adopt() for p in self.parameters) > 0  # all of them

    def show_rows(self, plain: bool) -> None:
        for p in self.parameters:
            p.show_rows(plain)

    # ---- a step ----

    def unshard(self) -> None:
        self.model.unshard(self.index)

    def reshard(self) -> None:
        if self.model is not None:
            self.model.reshard(self.index)

    @property
    def everywhere(self) -> bool:
        """Gradients are reduced over all replicas; of one, there is nothing else to do."""
        return self.state.everywhere or self.data.replicas == 1

    @property
    def scale(self) -> float:
        return 1.0 / (self.divide_factor or len(self.data.ranks))

    def publish(self, reshard: bool) -> None:
        """Brings this rank's gradients, or that there are none, once per backward pass and graph."""
        self.published = True
        s = self.state
        if self.gathered is not None and self.gathered.reduces:
            self.gathered.reduce()
            self.model.backward_end(self.index, [], 1.0, True, reshard)
            return
        fresh = self.all_reduce_hook is not None
        if s.root.samples is not None:
            for p in self.parameters:
                p.weigh(s.root.samples)
        work = [p.gradient_work(self.everywhere, s.reduce_unused, fresh) for p in self.parameters]
        weight = -1.0 if s.root.samples is None else float(s.root.samples + s.root.samples_kept)
        self.model.backward_end(self.index, work, self.scale, self.everywhere, reshard, weight)
        for p in self.parameters:
            p.published()
        if work:  # else there was nothing to publish
            s.root.published(self.place)

    def gradients_done(self, present: list[bool], accumulated: dict[ShardedParameter, None]) -> None:
        done = [(p, p.gradient_done(has)) for p, has in zip(self.parameters, present, strict=True)]
        done = [(p, gradient) for p, gradient in done if gradient is not None]
        if self.all_reduce_hook is not None and done:
            self._call_hook([(p, gradient._local_tensor) for p, gradient in done])
        for p, gradient in done:
            p.set_gradient(gradient)
            if p.sharded._post_accumulate_grad_hooks:
                accumulated[p] = None

    def _call_hook(self, gradients: list[tuple[ShardedParameter, torch.Tensor]]) -> None:
        """On all of them as one flat tensor in the reduce dtype, as FSDP2 does."""
        dtype = gradients[0][0].reduce_dtype
        flat = torch.cat([g.reshape(-1).to(dtype) for _, g in gradients])
        self.all_reduce_hook(flat)
        for (_, g), part in zip(gradients, flat.split([g.numel() for _, g in gradients]), strict=True):
            g.copy_(part.view_as(g))
