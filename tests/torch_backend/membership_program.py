"""Groups of the backend shoal that get other members. argv: a function, a folder.

With a torch that has ``_reconfigure`` the groups have no members at first and torch's functions are called. Older ones have the same
methods on the process group.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from fails import fails
from launching.forking import fork_ranks
from torch._C._distributed_c10d import ErrorType

import shoal.torch
from shoal.exceptions import ActorDiedError, Cancelled, DeadlineExceeded, Unavailable

WORLD = 3
TORCH_HAS_IT = hasattr(dist, "_reconfigure")
LONG = timedelta(seconds=50)


class Part:
    """This process and its store."""

    def __init__(self, rank, folder):
        self.rank, self.folder = rank, folder
        self.store = dist.FileStore(f"{folder}/store", WORLD)
        more = {"enable_reconfigure": True} if TORCH_HAS_IT else {}
        dist.init_process_group("shoal", store=self.store, rank=rank, world_size=WORLD, timeout=LONG, **more)
        self.backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def handle(self):
        return dist._get_reconfigure_handle() if TORCH_HAS_IT else dist.group.WORLD.get_reconfigure_handle()

    def handles(self, at):
        """Every process's handle, by rank."""
        self.store.set(f"{at}/{self.rank}", self.handle())
        return [self.store.get(f"{at}/{r}").decode() for r in range(WORLD)]

    def reconfigure(self, uuid, handles, timeout=LONG):
        if TORCH_HAS_IT:
            dist._reconfigure(uuid, handles, timeout=timeout).wait()
        else:
            dist.group.WORLD.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout)).wait()

    def all(self, uuid):
        """All processes become members, with their ranks."""
        handles = self.handles(f"all/{uuid}")
        self.reconfigure(uuid, handles)
        self.is_rank(self.rank, WORLD)
        return handles

    def is_rank(self, rank, size):
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size), (dist.get_rank(), dist.get_world_size())
        assert (self.backend.rank(), self.backend.size()) == (rank, size)
        sums(rank, size)

    def after_all(self, at):
        """Waits for every process, members or not."""
        self.handles(f"after/{at}")


def sums(rank, size):
    x = torch.full((5,), rank + 1.0)
    dist.all_reduce(x)
    assert x.eq(size * (size + 1) / 2).all(), x
    whole = torch.empty(size, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, torch.tensor([rank]))
    assert whole.tolist() == list(range(size)), whole


def unformed(part):
    """No member takes part in an operation before the first generation."""
    fails(Unavailable, "no members yet", lambda: dist.all_reduce(torch.ones(1)))
    fails(Unavailable, "no members yet", lambda: dist.send(torch.ones(1), (part.rank + 1) % WORLD))
    assert "none" in repr(dist.group.WORLD)
    part.all(1)


def again(part):
    """The same members make generation after generation; messages and the memory of FSDP2 are those of the last one."""
    for uuid in range(3):
        part.all(uuid)
        to, source = (part.rank + 1) % WORLD, (part.rank - 1) % WORLD
        for tag in (0, 5):
            got = torch.zeros(3)
            works = [part.backend.send([torch.full((3,), part.rank + 1.0)], to, tag), part.backend.recv([got], source, tag)]
            assert all(work.wait() for work in works)
            assert got.eq(source + 1).all(), got
        gather = shoal.torch.AllGather(dist.group.WORLD)
        whole = gather.allocate((WORLD * 2048,), dtype=torch.float32, device=torch.device("cpu"))
        own = whole.view(WORLD, -1)[part.rank].fill_(part.rank)
        gather(whole, own, dist.group.WORLD)
        assert [row[0].item() for row in whole.view(WORLD, -1)] == list(range(WORLD))


def without_the_last(part):
    _without(part, WORLD - 1)


def without_the_middle(part):
    _without(part, 1)


def without_the_first(part):
    _without(part, 0)


def _without(part, excluded):
    """The others get new ranks in the order of their handles; then all come together again."""
    handles = part.all(1)
    if part.rank != excluded:
        part.reconfigure(2, [h for r, h in enumerate(handles) if r != excluded])
        part.is_rank(part.rank - (part.rank > excluded), WORLD - 1)
        x = torch.tensor([42.0 if dist.get_rank() == 1 else 0.0])
        dist.broadcast(x, group_src=1)
        assert x.item() == 42
    part.all(3)


def alone_and_together(part):
    for uuid in (10, 20):
        part.reconfigure(uuid + part.rank, [part.handle()])
        part.is_rank(0, 1)
        part.all(uuid + WORLD)


def later(part):
    """Members join a group that works already."""
    handles = part.handles("first")
    if part.rank < 2:
        part.reconfigure(1, handles[:2])
        part.is_rank(part.rank, 2)
    part.all(2)


def counted_alike(part):
    """Barriers and groups have the same names on members that had others in former generations."""
    handles = part.handles("first")
    if part.rank < 2:
        part.reconfigure(1, handles[:2])
        dist.monitored_barrier()
        dist.group.WORLD.split_group([0, 1]).allreduce([torch.ones(1)]).wait()
        dist.group.WORLD.setGroupName("another")
    part.all(2)
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    for name in (None, "chosen"):
        split = dist.group.WORLD.split_group([0, 1, 2], timeout=timedelta(seconds=20), group_name=name)
        split.allreduce([x := torch.ones(1)]).wait()
        assert x.item() == WORLD


def two_groups(part):
    handles = part.handles("first")
    if part.rank == 0:
        part.reconfigure(1, handles[:1])
        part.is_rank(0, 1)
    else:
        part.reconfigure(2, handles[1:])
        part.is_rank(part.rank - 1, 2)
    part.all(3)


def in_any_order(part):
    """A set of handles has ranks that all members agree on."""
    part.reconfigure(1, set(part.handles("first")))
    part.is_rank(dist.get_rank(), WORLD)


def in_another_order(part):
    part.reconfigure(1, part.handles("first")[::-1])
    part.is_rank(WORLD - 1 - part.rank, WORLD)


def after_an_abort(part):
    part.all(1)
    part.backend.abort()
    fails(Cancelled, "aborted", lambda: dist.all_reduce(torch.ones(1)))
    assert part.backend.get_error() == ErrorType.SUCCESS
    part.all(2)


def after_a_late_operation(part):
    """An operation that ran out of time ends the group; the next generation works."""
    part.all(1)
    if part.rank == 0:
        fails(DeadlineExceeded, "barrier", lambda: dist.barrier(timeout=timedelta(milliseconds=300)))
    while dist.group.WORLD._native.failed() is None:
        time.sleep(0.005)
    assert part.backend.get_error() == ErrorType.TIMEOUT
    fails(DeadlineExceeded, "", lambda: dist.all_reduce(torch.ones(1)))
    part.all(2)


def after_a_death(part):
    """The survivors agree on their handles and continue."""
    handles = part.all(1)
    if part.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fails(ActorDiedError, "rank 1 is gone", lambda: dist.all_reduce(torch.ones(1)))
    assert part.backend.get_error() == ErrorType.REMOTE_ERROR
    part.reconfigure(2, [handles[0], handles[2]])
    part.is_rank(0 if part.rank == 0 else 1, 2)


def under_way(part):
    """An operation of the former generation that cannot end any more raises an error, and does not block."""
    part.all(1)
    work = None
    if part.rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
    part.reconfigure(2, part.handles("second"))
    if work is not None:
        fails(RuntimeError, "", work.wait)
    part.is_rank(part.rank, WORLD)


def missing_member(part):
    """A member that does not come is named, and the former generation stays usable."""
    handles = part.all(1)
    if part.rank != 2:
        fails(DeadlineExceeded, "ranks [2]", lambda: part.reconfigure(2, handles, timedelta(milliseconds=400)))
    part.is_rank(part.rank, WORLD)
    fails(RuntimeError, "already used", lambda: part.reconfigure(1, handles))
    part.all(3)


def wrong_calls(part):
    own = part.handle()
    part.reconfigure(100 + part.rank, [own])
    fails(RuntimeError, "already used", lambda: part.reconfigure(100 + part.rank, [own]))
    fails(RuntimeError, "without members", lambda: part.reconfigure(1, []))
    fails(RuntimeError, "twice", lambda: part.reconfigure(1, [own, own]))
    fails(RuntimeError, "not among those", lambda: part.reconfigure(1, ["shoal:1:0:"]))
    fails(RuntimeError, "not a handle", lambda: part.reconfigure(1, [own, "gloo:1:2"]))
    part.is_rank(0, 1)
    part.all(1)


def other_backends(part):
    """A group with a second backend has no generations."""
    config = dist.distributed_c10d._world.pg_backend_config
    alone, config[dist.group.WORLD] = config[dist.group.WORLD], "cpu:shoal,cuda:nccl"
    assert not dist.group.WORLD.supports_reconfigure
    fails(RuntimeError, "multiple backends", part.handle)
    fails(RuntimeError, "multiple backends", lambda: part.reconfigure(1, ["shoal:1:0:"]))
    config[dist.group.WORLD] = alone
    part.after_all("refused")  # the node of all ends with one of them


def a_newcomer(rank, folder):
    """A process with a store of its own joins by the handle of a group's first member, whose store it reaches."""
    mine = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = dist.FileStore(f"{folder}/meeting", WORLD)
    more = {"enable_reconfigure": True} if TORCH_HAS_IT else {}
    dist.init_process_group("shoal", store=mine, rank=0, world_size=1, timeout=LONG, **more)
    part = Part.__new__(Part)
    part.rank, part.store, part.backend = rank, meeting, dist.group.WORLD._get_backend(torch.device("cpu"))
    part.all(1)
    part.after_all("all")  # the store of rank 0 ends with it


def main():
    name, folder = sys.argv[1:3]
    if name == "a_newcomer":
        fork_ranks(WORLD, lambda rank: a_newcomer(rank, folder))
    fork_ranks(WORLD, lambda rank: _run(Part(rank, folder), globals()[name]))


def _run(part, function):
    assert part.backend.supports_reconfigure
    function(part)


if __name__ == "__main__":
    main()
