"""Stock DDP, FSDP2, DTensor, DCP and functional collectives on the backend shoal: the numbers are gloo's. argv: a function, a folder."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import shoal.collective
import shoal.fsdp
import shoal.torch

STEPS = 4


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(9, 301), torch.nn.GELU(), torch.nn.Linear(301, 64), torch.nn.Linear(64, 5, bias=False))


def train(model, optimizer, steps=STEPS):
    torch.manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(6, 9)
        loss = F.mse_loss(model(x).float(), x[:, :5])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def agree(ours, theirs):
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)
    assert ours[0] != ours[-1]


def ddp(gloo, _):
    losses = []
    for group in (None, gloo):
        model = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=0.001)
        losses.append(train(model, torch.optim.AdamW(model.parameters(), lr=0.01)))
        parts = [torch.empty(301, 9) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, model.module[0].weight.detach())
        assert all(torch.equal(p, parts[0]) for p in parts)
    agree(*losses)


def ddp_hooks(gloo, _):
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        losses = []
        for group in (None, gloo):
            model = DistributedDataParallel(net(), process_group=group)
            model.register_comm_hook(group or dist.group.WORLD, hook)
            losses.append(train(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        agree(*losses)
    ddp_powersgd(gloo)
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    model = DistributedDataParallel(embedding)
    model(torch.tensor([dist.get_rank(), 9])).sum().backward()
    assert embedding.weight.grad.to_dense()[9].tolist() == [1.0] * 3


def ddp_powersgd(gloo):
    """The hook's callbacks start collectives, and wait for them. With several buckets they run beside further hooks."""

    def waiting(state, bucket):
        future, ended = powerSGD.powerSGD_hook(state, bucket), torch.futures.Future()
        ended.set_result(future.wait())
        return ended

    losses = []
    for group, hook, mb in ((None, powerSGD.powerSGD_hook, 25), (gloo, powerSGD.powerSGD_hook, 25)):
        losses.append(train(*powersgd_model(group, hook, mb)))
    agree(*losses)
    several = [train(*powersgd_model(None, hook, 0.001)) for hook in (powerSGD.powerSGD_hook, waiting)]
    assert several[0] == several[1]


def powersgd_model(group, hook, bucket_mb):
    model = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=bucket_mb)
    model.register_comm_hook(powerSGD.PowerSGDState(group or dist.group.WORLD, start_powerSGD_iter=2, min_compression_rate=0.5), hook)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def sharded(group_mesh, setup=lambda model: None, **arguments):
    model = net()
    for layer in (model[0], model[2], model[3]):
        fully_shard(layer, mesh=group_mesh, **arguments)
    fully_shard(model, mesh=group_mesh, **arguments)
    setup(model)
    return model


def mesh_of(group):
    return DeviceMesh.from_group(group, "cpu", mesh=torch.arange(dist.get_world_size()))


def fsdp2(gloo, _):
    policies = [{}, {"reshard_after_forward": False}, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}]
    for arguments in policies:
        losses = []
        for group in (dist.group.WORLD, gloo):
            model = sharded(mesh_of(group), **arguments)
            losses.append(train(model, torch.optim.AdamW(model.parameters(), lr=0.01)))
        agree(*losses)


def fsdp2_memory(gloo, _):
    """FSDP2's buffers come from the process group, or from Shoal's own all_gather and reduce_scatter."""

    def from_group(model):
        for m in model.modules():
            if hasattr(m, "set_allocate_memory_from_process_group_for_comm"):
                m.set_allocate_memory_from_process_group_for_comm(True)

    def custom(model):
        gather, scatter = shoal.torch.AllGather(dist.group.WORLD), shoal.torch.ReduceScatter(dist.group.WORLD)
        for m in model.modules():
            if hasattr(m, "set_custom_all_gather"):
                m.set_custom_all_gather(gather)
                m.set_custom_reduce_scatter(scatter)

    expected = sharded(mesh_of(gloo))
    expected = train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), 8)
    for setup in (from_group, custom):
        model = sharded(mesh_of(dist.group.WORLD), setup)
        agree(train(model, torch.optim.AdamW(model.parameters(), lr=0.01), 8), expected)
    if dist.get_world_size() > 1:  # one process communicates nothing
        kept = dist.group.WORLD._cpu._kept
        assert 0 < sum(map(len, kept.values())) <= 24, {n: len(k) for n, k in kept.items()}
        buffers = dist.group.WORLD._fsdp_buffers._buffers
        assert {b.whole for b in buffers} == {True, False}
        assert len(buffers) <= 12, len(buffers)  # they are used again from step to step


def hsdp(gloo, _):
    half = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (2, half), mesh_dim_names=("replicate", "shard"))
    losses = []
    for m in (mesh, mesh_of(gloo)):
        model = sharded(m)
        losses.append(train(model, torch.optim.AdamW(model.parameters(), lr=0.01)))
    agree(*losses)


def dtensors(gloo, _):
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(7 * 5.0).view(7, 5)
    places = [Replicate(), Shard(0), Shard(1)]
    for source in places:
        for target in places:
            t = distribute_tensor(whole, mesh, [source]).redistribute(mesh, [target])
            assert torch.equal(t.full_tensor(), whole), (source, target)
    for target in places:
        t = DTensor.from_local(whole, mesh, [Partial()]).redistribute(mesh, [target])
        assert torch.equal(t.full_tensor(), whole * world), target
    product = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor(), whole @ whole.t())


def functionals(gloo, _):
    world, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    assert functional.all_reduce(torch.ones(3), "sum", group).tolist() == [world] * 3
    assert functional.all_reduce(torch.full((2,), rank), "max", group).tolist() == [world - 1] * 2
    gathered = functional.all_gather_tensor(torch.tensor([rank]), 0, group)
    assert gathered.tolist() == list(range(world))
    assert functional.all_gather_tensor(torch.full((2, 3), rank), 1, group).shape == (2, 3 * world)
    assert functional.reduce_scatter_tensor(torch.arange(2.0 * world), "sum", 0, group).tolist() == [
        2.0 * rank * world,
        (2.0 * rank + 1) * world,
    ]
    assert functional.broadcast(torch.tensor([rank]), 0, group).tolist() == [0]
    exchanged = functional.all_to_all_single(torch.full((world,), rank), [1] * world, [1] * world, group)
    assert exchanged.tolist() == list(range(world))
    several = functional.all_gather_into_tensor_coalesced([torch.tensor([rank]), torch.tensor([1.0, rank])], group)
    assert several[1].tolist() == [v for r in range(world) for v in (1.0, r)]
    reduced = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group)
    assert [r.tolist() for r in reduced] == [[world] * 2, [world] * 3]
    late = functional.all_reduce(torch.ones(4), "sum", group)  # a tensor that waits for itself
    dist.all_reduce(late)
    assert (late + 0).tolist() == [world * world] * 4
    out = torch.empty(2 * world)
    torch.ops._c10d_functional.all_gather_into_tensor_out(torch.full((2,), float(rank)), world, group.group_name, out=out)
    assert torch.ops._c10d_functional.wait_tensor(out).tolist() == [float(r) for r in range(world) for _ in range(2)]


def checkpoints(gloo, folder):
    model = sharded(mesh_of(dist.group.WORLD))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    path = os.path.join(folder, "checkpoint")
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=path)
    other = sharded(mesh_of(gloo), lambda m: [p.data.zero_() for p in m.parameters()])
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(other, state["model"])
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.full_tensor(), theirs.full_tensor())


def shoals(gloo, _):
    """Shoal's own fully_shard and collectives, where the default process group is of the backend shoal."""
    model = net()
    for layer in (model[0], model[2], model):
        shoal.fsdp.fully_shard(layer)
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    theirs = sharded(mesh_of(gloo))
    agree(losses, train(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01)))
    x = shoal.collective.all_reduce(torch.ones(3))
    assert x.tolist() == [dist.get_world_size()] * 3
    dist.all_reduce(x)
    assert x.tolist() == [dist.get_world_size() ** 2] * 3


def backends(gloo, _):
    """A group with a backend for each of two devices."""
    assert dist.get_backend_config() == "cpu:shoal,cuda:gloo"
    dist.all_reduce(x := torch.ones(2))
    assert x.tolist() == [dist.get_world_size()] * 2
    group = dist.group.WORLD
    assert [d.type for d in group._device_types] == ["cpu", "cuda"]
    assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == list(range(dist.get_world_size()))


def main():
    dist.init_process_group("cpu:shoal,cuda:gloo" if sys.argv[1] == "backends" else "shoal")
    gloo = dist.new_group(backend="gloo")
    globals()[sys.argv[1]](gloo, sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
