"""Private names of shoal.fsdp, that tests use."""
# ruff: noqa: F401

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from shoal._distributed.communicator import make_communicator
from shoal._distributed.devices import Choice, DeviceGroup
from shoal._distributed.ranks import attach, gang_name
from shoal.fsdp import _later
from shoal.fsdp._devices import collectives, gather, streams
from shoal.fsdp._devices.gather import InPlaceGather, MixedGather, PackedGather
from shoal.fsdp._devices.groups import DeviceGroups, groups
from shoal.fsdp._devices.reduction import Reduction
from shoal.fsdp._devices.streams import REACHED, HostStreams, Transfers, WorkMark, transfers
from shoal.fsdp._devices.timeline import DeviceStamps, HostStamps, Timeline
from shoal.fsdp._engine.added import Added
from shoal.fsdp._engine.collect import managed, state_of
from shoal.fsdp._parameters.logical import Part
from shoal.fsdp._parameters.mesh import DataMesh, is_host_mesh
from shoal.fsdp._protect import HostCopy, Moment, adopt, at_next, committed_step, copied, host_copy, protect
from shoal.fsdp._protect.copied import CopiedStep
from shoal.fsdp._protect.states import states_of
from shoal.fsdp._reshard import memory, reshard, stream
from shoal.optim import _clip


class _NoStreams:
    def current(self) -> int:
        return 0


def use_own_groups() -> None:
    """Shoal's own communicators move the bytes of units outside of arenas, as between devices with ``SHOAL_DEVICE_TRANSPORT``."""

    def opens(ranks, index, device):
        communicator = make_communicator(gang_name("devices", ranks, index), ranks, index, attach(ranks).shared)
        return DeviceGroup(communicator, _NoStreams()), Choice("host")

    groups.opens, groups.device_types = opens, ("cpu",)


def leave_arenas() -> None:
    """Units that are made from now on lie outside of arenas, as on devices: collectives gather and reduce their parameters."""
    DataMesh.in_arena = property(lambda self: is_host_mesh(self.mesh))


@contextmanager
def outside_of_arenas() -> Iterator[None]:
    """``leave_arenas`` for one context."""
    with mock.patch.object(DataMesh, "in_arena", property(lambda self: is_host_mesh(self.mesh))):
        yield


def take_norms_by_operators() -> None:
    """``clip_grad_norm_`` adds by torch's operators, as on devices."""
    _clip._by_operators = lambda device: True
