"""Models move between meshes with replicas, between hosts, and between generations of the default process group."""

import pytest
import torch.distributed as dist
from reshard_test import Trained, expect_as_if_it_stayed, mesh_of
from torch.distributed.device_mesh import DeviceMesh


def test_replicas_come_and_go():
    expect_as_if_it_stayed(worlds=[(0, 1), [(0, 1), (2, 3)], [(0, 1, 2)], [(0,), (3,)], (0, 3)])


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1)])
def test_rows_travel_between_hosts(hosts):
    expect_as_if_it_stayed(hosts=hosts)


def test_replicas_on_other_hosts():
    expect_as_if_it_stayed(hosts=(0, 0, 1, 1), worlds=[(0, 1), [(0, 1), (2, 3)], [(0,), (2,)]])


def join(store, name, members, me):
    if dist.is_initialized():
        dist.destroy_process_group()
    if me in members:
        dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=members.index(me), world_size=len(members))


def generations_loop(config):
    """A default process group per change, in place of the last. A newcomer's group has one rank until it joins."""
    me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    trained, old = Trained(config), ()
    for i, world in enumerate(config["worlds"]):
        if me not in old and me in world and i > 0:
            join(store, f"alone-{i}-{me}", [me], me)
            trained.build(DeviceMesh("cpu", [0]))
        before = trained.whole() if me in old else None
        members = list(dict.fromkeys((*world, *old)))  # the ranks of the new mesh come first
        join(store, f"generation-{i}", members, me)
        if me not in members:
            trained.reports.append(None)
            old = world
            continue
        number = {process: rank for rank, process in enumerate(members)}
        mesh = mesh_of([number[process] for process in world])
        if i == 0:
            trained.build(mesh)
        else:
            trained.move(mesh, tuple(number[process] for process in old), number[me], i, before)
        if len(trained.reports) <= i:
            trained.reports.append(None)
        if me in world:
            trained.train(i, world.index(me), mesh)
        old = world
    final = trained.whole() if me in old else None
    return trained.losses, trained.reports, final


def test_every_change_has_a_process_group_of_its_own():
    worlds = [(0, 1), (1, 0, 2, 3), (2, 0, 1), (0,), (0, 3)]
    expect_as_if_it_stayed(loop=generations_loop, worlds=worlds)
