"""Failures on a group of the backend shoal. argv: a function, a folder."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from fails import fails
from launching.forking import fork_ranks

import shoal.torch  # noqa: F401 (registers the backend)
from shoal.exceptions import ActorDiedError, Cancelled, DeadlineExceeded, InvalidArgument

WORLD = 3


def killed(rank):
    """A rank dies while the others wait for it."""
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    fails(ActorDiedError, "rank 1 is gone", lambda: dist.all_reduce(torch.ones(1)))
    fails(dist.DistBackendError, "rank 1 is gone", lambda: dist.all_reduce(torch.ones(1)))  # torch's class, too
    assert time.monotonic() - began < 30
    work = dist.all_reduce(torch.ones(1), async_op=True)
    fails(ActorDiedError, "rank 1 is gone", work.wait)
    assert work.is_completed()
    assert not work.is_success()
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    fails(RuntimeError, "rank 1 is gone", future.wait)


def killed_in_training(rank):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(3)).sum().backward()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    fails((RuntimeError, ActorDiedError), "rank 2 is gone", lambda: model(torch.ones(3)).sum().backward())


def killed_in_hook(rank):
    """A communication hook's future has the error, through the callbacks of the hook. torch takes it for no result."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))

    def hook(group, bucket):
        future = group.allreduce([bucket.buffer()], asynchronous()).get_future()
        return future.then(lambda f: f.value()[0]).then(lambda f: f.value() / WORLD)

    model.register_comm_hook(dist.group.WORLD, hook)
    model(torch.ones(3)).sum().backward()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    fails(ActorDiedError, "rank 2 is gone", lambda: model(torch.ones(3)).sum().backward())


def asynchronous():
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return options


def killed_in_message(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for tag in (0, 5):
        fails(ActorDiedError, "is gone", lambda tag=tag: dist.recv(torch.ones(1), 1, tag=tag))
    with dist.distributed_c10d._coalescing_manager(dist.group.WORLD, torch.device("cpu"), async_ops=True) as manager:
        dist.irecv(torch.ones(1), 1, tag=6)
    fails(ActorDiedError, "is gone", manager.wait)


def diverged(rank):
    fails(InvalidArgument, "differ", lambda: dist.all_reduce(torch.ones(1 + rank)))


def aborted(rank):
    if rank == 0:
        dist.group.WORLD.abort()
    fails(Cancelled, "rank 0 aborted", lambda: dist.barrier())


def late(rank):
    dist.barrier()
    if rank == 0:
        fails(DeadlineExceeded, "barrier", lambda: dist.barrier(timeout=timedelta(milliseconds=300)))
    else:  # the failure of the group is every rank's
        while dist.group.WORLD._native.failed() is None:
            time.sleep(0.01)
        fails(DeadlineExceeded, "rank 0 waited", lambda: dist.barrier())


def late_by_default(rank):
    """The group's own limit, changed after it was made."""
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(milliseconds=200))
    if rank == 0:
        fails(DeadlineExceeded, "all_reduce", lambda: dist.all_reduce(torch.ones(1)))
    else:
        while dist.group.WORLD._native.failed() is None:
            time.sleep(0.01)


def wait_limit(rank):
    """A wait that ends early leaves the operation, and the group, as they are."""
    if rank == 0:
        work = dist.barrier(async_op=True)
        fails(DeadlineExceeded, "not complete", lambda: work.wait(timedelta(milliseconds=50)))
        dist.distributed_c10d._get_default_store().set("seen", "1")
        assert work.wait()
    else:
        dist.distributed_c10d._get_default_store().wait(["seen"])
        dist.barrier()
    dist.barrier()


def monitored(rank):
    dist.monitored_barrier()
    if rank == 0:
        fails(DeadlineExceeded, "Ranks 1, 2", lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=True))
        for _ in range(2):  # first without rank 2, too
            fails(DeadlineExceeded, "Rank 1 failed", lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=300)))
    elif rank == 2:
        group = dist.group.WORLD
        group._barriers += 2  # not in the barriers before, of which rank 0 counts it as missing
        fails(DeadlineExceeded, "Rank 1 failed", lambda: dist.monitored_barrier(timeout=timedelta(seconds=20)))
    else:
        dist.group.WORLD._barriers += 3
    dist.all_reduce(x := torch.ones(1))  # the group stays usable
    assert x.item() == WORLD
    dist.monitored_barrier(timeout=timedelta(seconds=30))


def left(rank):
    """A rank that destroyed its groups is missing, and the others' error names it."""
    dist.barrier()
    if rank == 1:
        dist.destroy_process_group()
        return
    fails(ActorDiedError, "rank 1 has left", lambda: dist.all_reduce(torch.ones(1)))


def rank_main(rank, function, folder):
    dist.init_process_group("shoal", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    function(rank)


def main():
    function, folder = globals()[sys.argv[1]], sys.argv[2]
    fork_ranks(WORLD, lambda rank: rank_main(rank, function, folder))


if __name__ == "__main__":
    main()
