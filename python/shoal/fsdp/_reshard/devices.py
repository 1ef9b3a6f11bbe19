"""A change of meshes of a model on devices: its copy in the host's memory moves, and the devices take their rows from there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import nn

from shoal import _native
from shoal._objects.tensors import lasting
from shoal.exceptions import Unimplemented
from shoal.fsdp._engine.bootstrap import leave_unused, make_model, shard_actor
from shoal.fsdp._engine.optimizers import replace_by_sharded
from shoal.fsdp._parameters.mesh import DataMesh, on_hosts
from shoal.fsdp._protect import HostCopy
from shoal.fsdp._reshard.before import Before
from shoal.fsdp._reshard.change import Report, Request, meeting, move_model
from shoal.fsdp._reshard.contents import Contents
from shoal.fsdp._reshard.memory import leave, set_buffer
from shoal.fsdp._reshard.phases import Phases


def change_on_devices(contents: Contents, request: Request) -> Report:
    """Moves a model on devices, with its optimizers. Every participant calls it."""
    phases = Phases()
    with meeting(request) as union:
        phases.end("meet to reshard")
        union.agreed(_settle, contents, request)
        try:
            _begin(contents)
            copy = _copy_of(contents, request)
        except BaseException as error:
            union.abort(error)
            raise
        whole = _Whole(copy, contents)
        phases.end("copy to the host")
        try:
            on_host = replace(request, data=on_hosts(request.data))
            report = move_model(copy.model, copy.optimizers, on_host, union, phases)
        except BaseException:
            whole.drop()
            raise
    before = _Before(report.before, contents, copy, Place.present(contents))
    try:
        if not report.before.leaves:
            with lasting():
                place = Place.make(contents, request.data)
                whole.commit(request.data)
                place.commit(contents, copy)
                if request.old_index is None:
                    copy.return_options()
    except BaseException:
        report.before.restore()
        raise
    finally:
        whole.drop()
    phases.end("copy to the devices")
    if not request.keep_old:
        before.forget()
        contents.states[0].settings.host_copy = None
    return replace(report, before=before if request.keep_old else None, seconds=phases.total, phases=phases.seconds)


def _settle(contents: Contents, request: Request) -> None:
    """Raises for a model that cannot move. Needs no other rank."""
    if request.old_index is not None:
        contents.settle(request.recovers)
    contents.check()


def _begin(contents: Contents) -> None:
    for s in contents.states:
        if s.root is None:
            s.outermost().lazy_init(preliminary=True)
    contents.check()
    if len(contents.roots) != 1 or contents.roots[0].states != contents.states:
        raise Unimplemented("a model on devices with several roots cannot move", hint="run the forward of the outermost sharded module")
    for optimizer in contents.optimizers:
        replace_by_sharded(optimizer)


def _copy_of(contents: Contents, request: Request) -> HostCopy:
    """Returns the copy that moves, if possible the one that exists. After a death only that copy has the values of the last step that
    counts: the devices' values may be of a step that does not."""
    root = contents.roots[0]
    kept: HostCopy | None = root.states[0].settings.host_copy
    if kept is not None and kept.serves(root, contents.optimizers):
        if request.recovers:
            kept.take_options()
        elif request.old_index is not None:
            kept.refresh()
        return kept
    if request.recovers and request.old_index is not None:
        raise Unimplemented(
            "a rank has died, and this model on devices has no copy in the host's memory", hint="call protect(model, optimizer) before"
        )
    root.states[0].settings.host_copy = host_copy = HostCopy(root.states, contents.optimizers)
    return host_copy


class _Whole:
    """The tensors of which every rank has a whole copy, as a part of the host's copy while it moves."""

    def __init__(self, copy: HostCopy, contents: Contents):
        self._copy, self._contents = copy, contents
        self._tensors = contents.replicated()
        self._on_meta = [t.is_meta for _, t in self._tensors]
        self._part = nn.Module()
        for index, (_, t) in enumerate(self._tensors):
            if isinstance(t, nn.Parameter):
                self._part.register_parameter(str(index), t)
            else:
                self._part.register_buffer(str(index), t)
        copy.model.add_module("whole", self._part)

    def commit(self, data: DataMesh) -> None:
        """Puts what a newcomer has received on its device, where its own tensors were on the meta device."""
        for index, (_, t) in enumerate(self._tensors):
            if isinstance(t, nn.Parameter):
                if self._on_meta[index]:
                    t.data = t.data.to(data.device)
            elif (received := self._part._buffers[str(index)]) is not t:
                set_buffer(self._contents.model, t, received.to(data.device))

    def drop(self) -> None:
        del self._copy.model.whole


@dataclass
class Place:
    """The model's place on a mesh of devices: its engine parts there. ``commit`` moves the model to it, and needs no other rank."""

    data: DataMesh
    actor: _native.ShardActor
    units: list[_native.ShardedUnit]
    model: _native.ShardedModel = field(repr=False)

    @classmethod
    def present(cls, contents: Contents) -> Place:
        units = contents.units
        return cls(units[0].data, units[0].actor, [u.native for u in units], contents.roots[0].models[0])

    @classmethod
    def make(cls, contents: Contents, data: DataMesh) -> Place:
        """The ranks' actor is that of the host's copy, which has moved already."""
        actor = shard_actor(data.ranks, data.index, data.replicas)
        natives = dict(zip(map(id, contents.units), [u.native_on(actor) for u in contents.units], strict=True))
        (root,) = contents.roots
        (units,) = root.units_of
        model = make_model(actor, [natives[id(u)] for u in units], [u.state.name for u in units], root.slots)
        return cls(data, actor, list(natives.values()), model)

    def commit(self, contents: Contents, copy: HostCopy) -> None:
        """Moves the model, and copies rows and states of the host's copy to the devices."""
        copies = {id(p): q for p, q in copy.pairs}
        for s in contents.states:
            s.show_sharded()
            s.data = self.data
        for u, native in zip(contents.units, self.units, strict=True):
            rows = []
            for p in u.parameters:
                own = copies[id(p)].own
                rows.append(torch.empty(own.shape, dtype=p.dtype, device=p.home, pin_memory=p.pinned).copy_(own))
            u.move(self.data, self.actor, native, rows)
        contents.roots[0].move(self.model)
        copy.return_states()


class _Before:
    """The old mesh of a model on devices that has moved, as ``Before``. The old rows are those of the host's copy."""

    def __init__(self, host: Before, contents: Contents, copy: HostCopy, place: Place):
        self._host, self._contents, self._copy, self._place = host, contents, copy, place
        self.leaves = host.leaves

    def restore(self) -> None:
        self._host.restore()
        if self.leaves:
            return
        moved_to = self._contents.units[0].actor
        with lasting():
            self._place.commit(self._contents, self._copy)
        leave_unused(moved_to)

    def forget(self) -> None:
        self._place = None
        if self.leaves:
            leave(self._contents)
        self._host.forget()
