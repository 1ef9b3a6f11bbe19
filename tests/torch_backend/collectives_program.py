"""Collectives on a group of the backend shoal beside the same calls on a group of gloo: results are equal. argv: functions, a folder."""

import sys
import time
from itertools import product

import torch
import torch.distributed as dist
from hooks import hooks  # noqa: F401 (a part)
from internals.distributed import all_gather_single, reduce_scatter_single

import shoal.torch  # noqa: F401 (registers the backend)
from shoal.exceptions import InvalidArgument, Unimplemented

NUMBERS = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
MOVED = [*NUMBERS, torch.bool, torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
SIZES = [0, 1, 7, 1000, 300_001]  # the last is larger than a chunk
LONG = 300_001


def values(dtype, size, seed=0):
    """Small whole numbers, exact in every dtype, that differ between ranks and places."""
    rank = dist.get_rank()
    whole = (torch.arange(size) * 7 + rank * 3 + seed) % 5 + 1
    return whole % 2 == 0 if dtype == torch.bool else whole.to(dtype)


def same(ours, theirs, what):
    ours, theirs = ours.contiguous().view(-1), theirs.contiguous().view(-1)
    assert ours.dtype == theirs.dtype, what
    assert len(ours) == len(theirs), what
    if len(ours):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)), f"{what}: {ours[:8]} instead of {theirs[:8]}"


def error_of(call):
    """Returns the exception that the call raises, or None."""
    try:
        call()
    except Exception as error:
        return error
    return None


def reductions(gloo):
    for dtype, op, size in product(NUMBERS, OPS, SIZES):
        what = f"{dtype} {op} {size}"
        ours, theirs = values(dtype, size), values(dtype, size)
        dist.all_reduce(ours, op)
        dist.all_reduce(theirs, op, group=gloo)
        same(ours, theirs, f"all_reduce {what}")
        if size == LONG:
            continue
        ours, theirs = values(dtype, size), values(dtype, size)
        for root in range(dist.get_world_size()):
            dist.reduce(ours, root, op)
            dist.reduce(theirs, root, op, group=gloo)
            if dist.get_rank() == root:
                same(ours, theirs, f"reduce {what}")
            ours, theirs = values(dtype, size, root), values(dtype, size, root)
    for dtype, op, size in product([torch.uint8, torch.int8, torch.int32, torch.int64], BITS, SIZES):
        ours, theirs = values(dtype, size), values(dtype, size)
        dist.all_reduce(ours, op)
        dist.all_reduce(theirs, op, group=gloo)
        same(ours, theirs, f"all_reduce {dtype} {op} {size}")
    for op, expected in ((dist.ReduceOp.BAND, all), (dist.ReduceOp.BOR, any)):
        mine = torch.tensor([dist.get_rank() == 0, True, False])
        dist.all_reduce(mine, op)
        world = range(dist.get_world_size())
        assert mine.tolist() == [expected(r == 0 for r in world), True, False]


def scattered(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    for dtype, op, size in product(NUMBERS, OPS, [0, 1, 7, 100_003]):
        source = values(dtype, size * world)
        ours = torch.empty(size, dtype=dtype)
        reduce_scatter_single(ours, source, op)
        theirs = source.clone()
        dist.all_reduce(theirs, op, group=gloo)
        same(ours, theirs[rank * size : (rank + 1) * size], f"reduce_scatter_single {dtype} {op} {size}")
        parts = [values(dtype, size + r, r) for r in range(world)]  # sizes differ between ranks
        ours = torch.empty(size + rank, dtype=dtype)
        dist.reduce_scatter(ours, parts, op)
        theirs = [p.clone() for p in parts]
        for p in theirs:
            dist.all_reduce(p, op, group=gloo)
        same(ours, theirs[rank], f"reduce_scatter {dtype} {op} {size}")


def averages(gloo):
    world = dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        ours = values(dtype, 1001)
        theirs = ours.to(torch.complex64 if dtype.is_complex else torch.float64, copy=True)
        dist.all_reduce(ours, dist.ReduceOp.AVG)
        dist.all_reduce(theirs, group=gloo)
        torch.testing.assert_close(ours, (theirs / world).to(dtype))
    total = values(torch.complex128, 77) * (1 + 2j)
    theirs = total.clone()
    dist.all_reduce(total)
    dist.all_reduce(theirs, group=gloo)
    same(torch.view_as_real(total), torch.view_as_real(theirs), "complex sum")


def copies(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    for dtype, size in product(MOVED, SIZES):
        what = f"{dtype} {size}"
        part = values(dtype, size)
        ours, theirs = [torch.empty(size * world, dtype=dtype) for _ in range(2)]
        all_gather_single(ours, part)
        for root in range(world):
            dist.broadcast(block := part.clone().view(torch.uint8), root, group=gloo)
            theirs[root * size : (root + 1) * size].copy_(block.view(dtype))
        same(ours, theirs, f"all_gather_single {what}")
        listed = [torch.empty(size, dtype=dtype) for _ in range(world)]
        dist.all_gather(listed, part)
        same(torch.cat(listed), theirs, f"all_gather {what}")
        for root in (0, world - 1):
            ours = part.clone()
            dist.broadcast(ours, root)
            same(ours, theirs[root * size : (root + 1) * size], f"broadcast {what}")
            listed = [torch.empty(size, dtype=dtype) for _ in range(world)] if rank == root else None
            dist.gather(part, listed, root)
            if rank == root:
                same(torch.cat(listed), theirs, f"gather {what}")
            ours = torch.empty(size, dtype=dtype)
            dist.scatter(ours, [values(dtype, size, r) for r in range(world)] if rank == root else None, root)
            mine = values(dtype, size, rank - 3 * rank + 3 * root)  # as the root made it for this rank
            same(ours, mine, f"scatter {what}")


def exchanges(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    for dtype, size in product([torch.float32, torch.bool, torch.complex64, torch.int16], [0, 1, 5, 40_001]):
        source = values(dtype, size * world).view(-1, 1)
        ours = torch.empty_like(source)
        dist.all_to_all_single(ours, source)
        whole = torch.empty(world * len(source), dtype=dtype)
        all_gather_single(whole, source.view(-1))
        expected = torch.cat([w[rank * size : (rank + 1) * size] for w in whole.view(world, -1)]) if size else whole
        same(ours, expected, f"all_to_all_single {dtype} {size}")
        sends, receives = [size + r for r in range(world)], [size + rank] * world
        rows = values(dtype, sum(sends) * 3).view(-1, 3)
        got = torch.empty(sum(receives), 3, dtype=dtype)
        dist.all_to_all_single(got, rows, receives, sends)
        listed = [torch.empty(n, 3, dtype=dtype) for n in receives]
        dist.all_to_all(listed, list(rows.split(sends)))
        same(got, torch.cat(listed), f"all_to_all {dtype} {size}")
        parts = [torch.empty_like(rows) for _ in range(world)]
        dist.all_gather(parts, rows)
        same(got, torch.cat([p.split(sends)[rank] for p in parts]), f"uneven all_to_all_single {dtype} {size}")


def in_place_and_async(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(world * 1000)
    whole.view(world, -1)[rank] = rank + 1.0
    all_gather_single(whole, whole.view(world, -1)[rank])  # as FSDP2 calls it
    assert all((w == r + 1).all() for r, w in enumerate(whole.view(world, -1)))
    reduce_scatter_single(whole.view(world, -1)[rank], whole)
    assert (whole.view(world, -1)[rank] == world * (rank + 1)).all()
    tensors = [torch.full((n,), float(rank)) for n in (1, 300_001, 5)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    works.append(dist.barrier(async_op=True))
    assert all(w.wait() for w in reversed(works))
    assert all(w.is_completed() and w.is_success() for w in works)
    assert all((t == sum(range(world))).all() for t in tensors)
    future = dist.all_reduce(t := torch.ones(5), async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert (future.wait() == 2 * world).all()
    assert (t == world).all()
    dist.all_reduce(torch.ones(10_000), async_op=True)  # the Work is dropped; the operation still uses its tensor
    dist.barrier()


def not_contiguous(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    t = (torch.arange(600.0).view(20, 30) * (rank + 1)).t()
    plain = t.contiguous()
    dist.all_reduce(t)
    dist.all_reduce(plain)
    assert torch.equal(t, plain)
    assert not t.is_contiguous()
    work = dist.all_reduce(u := torch.ones(8, 4)[:, ::2], async_op=True)
    work.wait()
    assert (u == world).all()
    out = torch.zeros(world, 3, 2).permute(0, 2, 1)
    all_gather_single(out, torch.full((2, 3), rank + 1.0))
    assert [o.unique().tolist() for o in out] == [[r + 1.0] for r in range(world)]
    columns = torch.zeros(4, world)
    dist.all_gather([columns[:, r] for r in range(world)], torch.full((4,), rank + 1.0))
    assert columns[2].tolist() == [r + 1.0 for r in range(world)]
    imaginary = torch.full((3,), 1 + 2j).conj().imag
    dist.all_reduce(imaginary)
    assert (imaginary == -2 * world).all()
    dist.broadcast(b := torch.zeros(6, dtype=torch.int32)[::2] if rank else torch.arange(6, dtype=torch.int32)[::2], 0)
    assert b.tolist() == [0, 2, 4]


def queried(gloo):
    """Once a Work is completed, its results are in tensors that are not contiguous, although no wait was called."""
    world, rank = dist.get_world_size(), dist.get_rank()

    def query(work):
        while not work.is_completed():
            time.sleep(0)

    def take_result(work):
        while (error := error_of(work.result)) is not None:
            assert "has not ended" in str(error), error

    for ended in (query, take_result, lambda work: work.get_future().wait()):
        columns = torch.zeros(50_000, world)
        ended(dist.all_gather([columns[:, r] for r in range(world)], torch.full((50_000,), rank + 1.0), async_op=True))
        assert columns[-1].tolist() == [r + 1.0 for r in range(world)]
        ended(dist.all_reduce(u := torch.ones(8, 4)[:, ::2], async_op=True))
        assert (u == world).all()
    work = dist.all_reduce(u := torch.full((8, 4), rank + 1.0)[:, ::2], async_op=True)
    dist.barrier()
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert (u == rank + 1).all()  # later calls do not put the results there
    work.wait()
    assert (u == world * (world + 1) / 2).all()


def overlapping(gloo):
    """A part may lie anywhere in the whole."""
    world, rank = dist.get_world_size(), dist.get_rank()
    for size, part in product((3, 5_000, 100_003), range(world)):
        own, whole = values(torch.float32, size, part), torch.zeros(world, size)
        expected = torch.stack([values(torch.float32, size, part + 3 * (r - rank)) for r in range(world)])
        all_gather_single(whole, whole[part].copy_(own))
        same(whole, expected, f"all_gather_single {size} {part}")
        whole = torch.zeros(world, size)
        dist.all_gather(list(whole), whole[part].copy_(own))
        same(whole, expected, f"all_gather {size} {part}")
        whole = torch.zeros(world, size)
        dist.gather(whole[0].copy_(own), list(whole) if rank == part else None, part)
        if rank == part:
            same(whole, expected, f"gather {size} {part}")
        reduce_scatter_single(expected[part], expected)
        same(expected[part], world * values(torch.float32, size, part), f"reduce_scatter_single {size} {part}")
        blocks = torch.stack([values(torch.float32, size, 5 * part + r) for r in range(world)])
        dist.all_to_all_single(blocks, blocks)
        for r in range(world):
            same(blocks[r], values(torch.float32, size, 5 * part + rank + 3 * (r - rank)), f"all_to_all_single {size} {part}")


def coalesced(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    tensors = [torch.full((n,), rank + 1.0) for n in (1, 2, 100_000)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for t in tensors:
            dist.all_reduce(t)
    manager.wait()
    assert all((t == world * (world + 1) / 2).all() for t in tensors)
    outputs = [torch.empty(world * n) for n in (1, 50)]
    with dist.distributed_c10d._coalescing_manager():
        for out, n in zip(outputs, (1, 50), strict=True):
            all_gather_single(out, torch.full((n,), float(rank)))
    assert outputs[1].tolist() == [float(r) for r in range(world) for _ in range(50)]
    with dist.distributed_c10d._coalescing_manager():
        for out in tensors:
            reduce_scatter_single(out, torch.full((world * len(out),), float(rank)))
    assert all((t == sum(range(world))).all() for t in tensors)
    group, cpu = dist.group.WORLD, torch.device("cpu")
    store = dist.PrefixStore("coalesced", dist.distributed_c10d._get_default_store())
    right, left, got = (rank + 1) % world, (rank - 1) % world, torch.zeros(3)
    columns = torch.ones(4, 2)[:, 0]  # not contiguous
    if rank > 0:
        store.wait(["looked"])
    with dist.distributed_c10d._coalescing_manager(group, cpu, async_ops=True) as manager:
        dist.all_reduce(columns)
    if rank == 0:
        assert world == 1 or not manager.works[0].is_completed()  # the others have not begun
        store.set("looked", "")
    manager.wait()
    assert (columns == world).all()
    if world > 1:
        with dist.distributed_c10d._coalescing_manager(group, cpu, async_ops=True) as manager:
            dist.isend(torch.full((3,), rank + 1.0), right, tag=3)
            dist.irecv(got, left, tag=3)
        future = manager.works[0].get_future()
        assert torch.equal(future.wait()[1], torch.full((3,), left + 1.0))
    lists = [[torch.empty(n) for n in (2, 3)] for _ in range(world)]
    group.allgather_coalesced(lists, [torch.full((n,), float(rank)) for n in (2, 3)]).wait()
    assert [[t.unique().tolist() for t in of] for of in lists] == [[[float(r)]] * 2 for r in range(world)]


def objects(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(world)]
    got = [None] * world if rank == 0 else None
    dist.gather_object((rank,), got, 0)
    assert got == ([(r,) for r in range(world)] if rank == 0 else None)
    listed = ["a", [1, 2], None] if rank == world - 1 else [None] * 3
    dist.broadcast_object_list(listed, world - 1)
    assert listed == ["a", [1, 2], None]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(world)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]
    if world > 1:
        if rank == 0:
            dist.send_object_list([{"k": 1}], 1)
        if rank == 1:
            dist.recv_object_list(mine, 0)
            assert mine == [{"k": 1}]


def messages(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % world, (rank - 1) % world
    for size in (0, 1, 300_001):
        works = [dist.isend(torch.full((size,), float(rank)), right), dist.irecv(got := torch.empty(size), left)]
        for w in works:
            w.wait()
        assert (got == left).all()
    # Received in another order than sent, which the tags make possible.
    works = [dist.isend(torch.full((3,), 10.0 * rank + tag), right, tag=tag) for tag in (1, 2, 3)]
    for tag in (3, 1, 2):
        assert dist.recv(got := torch.empty(3), left, tag=tag) == left
        assert (got == 10 * left + tag).all()
    for w in works:
        w.wait()
    ops = [dist.P2POp(dist.isend, torch.tensor([rank]), right), dist.P2POp(dist.irecv, n := torch.tensor([-1]), left)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    assert n.item() == left
    dist.isend(torch.arange(6.0)[::2], right)
    dist.recv(c := torch.zeros(6)[::2], left)
    assert c.tolist() == [0, 2, 4]
    error = error_of(lambda: dist.recv(torch.empty(1)))
    assert isinstance(error, Unimplemented)
    assert isinstance(error, RuntimeError)
    assert "src=" in str(error)
    dist.barrier()


def groups(gloo):
    world, rank = dist.get_world_size(), dist.get_rank()
    evens = dist.new_group(list(range(0, world, 2)))
    pairs = [dist.new_group([a, a + 1]) for a in range(0, world - 1, 2)]
    if rank % 2 == 0:
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=evens)
        assert x.item() == sum(range(0, world, 2))
        dist.broadcast(x, src=0, group=evens)
        assert dist.get_process_group_ranks(evens) == list(range(0, world, 2))
    if rank // 2 < len(pairs):
        pair = pairs[rank // 2]
        dist.all_reduce(y := torch.tensor([rank]), group=pair)
        assert y.item() == 2 * (rank // 2 * 2) + 1
    parts = [dist.group.WORLD.split_group([r]) for r in range(world)]
    assert [p is not None for p in parts] == [r == rank for r in range(world)]
    parts[rank].allreduce([z := torch.ones(2)]).wait()
    assert z.tolist() == [1, 1]
    # Ranks split at once into groups that have no rank in common, each with a call for its own group.
    half = [r for r in range(world) if r % 2 == rank % 2]
    part = dist.group.WORLD.split_group(half)
    part.allreduce([w := torch.tensor([rank])]).wait()
    assert w.item() == sum(half)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):  # earlier versions refuse groups without an accelerator
        split = dist.split_group(
            split_ranks=[[r for r in range(world) if r % 2 == of] for of in range(min(2, world))], group_desc="of torch"
        )
        dist.all_reduce(v := torch.tensor([rank]), group=split)
        assert v.item() == sum(half)
        assert split.group_desc == "of torch"
    for group in ([evens] if rank % 2 == 0 else []) + pairs[rank // 2 : rank // 2 + 1]:
        dist.destroy_process_group(group)
    again = dist.new_group(list(range(world)))
    dist.all_reduce(z, group=again)
    assert z.tolist() == [world, world]


def sparse(gloo):
    rank = dist.get_rank()
    ours, theirs = [torch.sparse_coo_tensor([[rank, rank + 1]], torch.ones(2, 3), (dist.get_world_size() + 1, 3)) for _ in range(2)]
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=gloo)
    assert torch.equal(ours.to_dense(), theirs.to_dense())


def mistakes(gloo):
    world = dist.get_world_size()
    raises = [
        (InvalidArgument, "elements", lambda: all_gather_single(torch.empty(world * 2 + 1), torch.empty(2))),
        (InvalidArgument, "cannot be divided", lambda: dist.all_to_all_single(torch.empty(world * 2 + 1), torch.empty(world * 2 + 1))),
        (Unimplemented, "band", lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)),
        (InvalidArgument, "no backend for meta", lambda: dist.all_reduce(torch.ones(1, device="meta"))),
    ]
    for kind, text, call in raises[0 if world > 1 else 2 :]:
        error = error_of(call)
        assert isinstance(error, kind), (text, error)
        assert text in str(error), error
    dist.all_reduce(torch.ones(1))  # the group stays usable


def apart(gloo):
    """Ranks that share no memory."""
    assert dist.group.WORLD.transport != "shm"
    for part in (averages, in_place_and_async, not_contiguous, queried, overlapping, coalesced, objects, groups):
        part(gloo)
    world, rank = dist.get_world_size(), dist.get_rank()
    for dtype, op in product([torch.int32, torch.bfloat16, torch.float32], OPS):
        ours, theirs = values(dtype, 1001), values(dtype, 1001)
        dist.all_reduce(ours, op)
        dist.all_reduce(theirs, op, group=gloo)
        same(ours, theirs, f"all_reduce {dtype} {op}")
    works = [
        dist.isend(torch.full((3,), rank), (rank + 1) % world),
        dist.irecv(got := torch.empty(3, dtype=torch.int64), (rank - 1) % world),
    ]
    for w in works:
        w.wait()
    assert (got == (rank - 1) % world).all()


def main():
    dist.init_process_group("shoal")
    assert dist.get_backend() == "shoal"
    gloo = dist.new_group(backend="gloo")
    torch.manual_seed(dist.get_rank())
    for part in sys.argv[1].split(","):
        globals()[part](gloo)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
