"""A part of collectives_program: hooks of a process group."""

import os
from enum import Enum
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from fails import fails
from internals.distributed import _hooks

from shoal.exceptions import InvalidArgument, Unimplemented


def hooks(gloo):
    """Hooks fire around each operation, with gloo's arguments where torch has hooks; else with stand-ins for torch's classes."""
    group, has_them = dist.group.WORLD, _hooks.torch_has_hooks()
    if not has_them:
        dist.all_reduce(torch.tensor([float("nan")]), group=group_that_checks())
        fails(Unimplemented, "has no hooks of process groups", lambda: group.register_pre_hook(1, print))
        names = Enum("HookOpName", sorted({*_hooks._OPERATIONS.values()}))
        _hooks.c10d = SimpleNamespace(PreHookArgs=SimpleNamespace, PostHookArgs=SimpleNamespace, HookOpName=names)
    ours = fired(group)
    names = [event[0] for event in ours]
    assert names[2].startswith("ALLREDUCE"), names  # torch 2.14 has one name for a family of operations
    assert ours[0] == ("ALLREDUCE", False, [(3,)], [], -1)
    assert ours[1] == ("ALLREDUCE", True, [(3,)], [], -1)
    assert "ALLGATHER" in names[-1]  # a functional collective, which comes from torch's C++ code
    if has_them:
        assert ours == fired(gloo), (ours, fired(gloo))
    x, seen = torch.ones(3), []
    group.register_post_hook(5, lambda args: seen.append((5, x.tolist(), args.work.is_completed())))
    group.register_post_hook(4, lambda args: seen.append((4, args.op_id)))
    dist.all_reduce(x)
    assert seen[1] == (5, [dist.get_world_size()] * 3, True), seen
    assert seen[0][0] == 4
    group.unregister_post_hook(5)
    group.unregister_post_hook(4)
    assert "allreduce" not in group.__dict__  # operations are as quick as before
    checked = group_that_checks()
    dist.all_reduce(torch.ones(2), group=checked)
    says = f"NaN found in input tensor: allreduce of rank {dist.get_rank()}"
    fails(InvalidArgument, says, lambda: dist.all_reduce(torch.tensor([1.0, float("nan")]), group=checked))
    assert not group.supports_abort_hooks
    assert not group.supports_completion_hooks
    fails(Unimplemented, "no abort hooks", lambda: group.register_abort_hook(1, print))


def group_that_checks():
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    try:
        return dist.new_group(backend="shoal")
    finally:
        del os.environ["TORCH_DIST_NAN_CHECK"]


def fired(group):
    """Returns name, async_op, shapes of inputs and outputs, and root of the operations of which a hook learns."""
    world, rank, events, pairs = dist.get_world_size(), dist.get_rank(), [], []
    ones = lambda *shape: torch.ones(shape)  # noqa: E731
    each = lambda: [ones(3) for _ in range(world)]  # noqa: E731

    def before(args):
        shapes = ([tuple(t.shape) for t in tensors] for tensors in (args.input_tensors, args.output_tensors))
        events.append((args.name.name, args.async_op, *shapes, args.root))
        pairs.append(args.op_id)

    def after(args):
        assert args.op_id == pairs[-1]
        assert args.name.name == events[-1][0]
        assert args.work is not None

    group.register_pre_hook(1, before)
    group.register_post_hook(1, after)
    last = world - 1
    dist.all_reduce(ones(3), group=group)
    dist.all_reduce(ones(3), group=group, async_op=True).wait()
    group.allreduce_coalesced([ones(3), ones(4)]).wait()
    dist.broadcast(ones(3), last, group=group)
    dist.reduce(ones(3), last, group=group)
    dist.all_gather(each(), ones(3), group=group)
    group._allgather_base(ones(3 * world), ones(3)).wait()
    dist.reduce_scatter(ones(3), each(), group=group)
    group._reduce_scatter_base(ones(3), ones(3 * world)).wait()
    dist.gather(ones(3), each() if rank == last else None, last, group=group)
    dist.scatter(ones(3), each() if rank == last else None, last, group=group)
    dist.all_to_all(each(), each(), group=group)
    dist.all_to_all_single(ones(world), ones(world), group=group)
    dist.barrier(group=group)
    if world > 1 and rank < 2:
        dist.send(ones(3), 1, group=group) if rank == 0 else dist.recv(ones(3), 0, group=group)
    group.allgather_coalesced([[ones(3)] for _ in range(world)], [ones(3)]).wait()
    functional.all_gather_tensor(ones(3), 0, group) + 0
    group.unregister_pre_hook(1)
    group.unregister_post_hook(1)
    dist.all_reduce(ones(1), group=group)
    return events
