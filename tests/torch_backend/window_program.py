"""Windows of a group of the backend shoal. argv: a function, a folder.

Torch's ``_new_window`` makes them where this torch has it, else the process group's method.
"""

import os
import signal
import sys
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from fails import fails
from launching.forking import fork_ranks

import shoal.torch
from shoal.exceptions import ActorDiedError, DeadlineExceeded, Unimplemented

WORLD = 3
TORCH_HAS_IT = hasattr(dist, "_new_window")


def new_window(tensor=None):
    if TORCH_HAS_IT:
        assert dist._supports_window()
        return dist._new_window(tensor)
    return dist.group.WORLD.new_window(tensor)


def ring(rank):
    """Each rank puts into the next one's tensor, which reads it after the signal; sizes, dtypes and ways of the calls."""
    to, source = (rank + 1) % WORLD, (rank - 1) % WORLD
    for numel, dtype, async_op, at_once in [
        (1024, torch.float32, False, True),
        (1024, torch.float32, True, False),
        (4, torch.bfloat16, False, False),
        (65536, torch.int8, True, True),
    ]:
        tensor = torch.full((WORLD, numel), 1, dtype=dtype)
        window = new_window(tensor if at_once else None)
        if not at_once:
            window.tensor_register(tensor)
        for step in range(4):
            value = rank + step * WORLD
            window.put(torch.full((numel,), value, dtype=dtype), to, rank * numel, async_op).wait()
            window.wait_signal(source, async_op).wait()
            assert tensor[source].eq(source + step * WORLD).all()  # the tensor itself has the memory
            assert window.map_remote_tensor(rank)[source].eq(tensor[source]).all()
            assert tensor[to if WORLD > 2 else rank].eq(1).all()
            dist.barrier()
        window.tensor_deregister()
        assert tensor[rank].eq(1).all()  # keeps its elements


def signals(rank):
    """Each wait takes one signal; signals without a waiting rank block no sender."""
    window, to, source = new_window(torch.zeros(1)), (rank + 1) % WORLD, (rank - 1) % WORLD
    for _ in range(200):
        window.signal(to, False)
    for _ in range(200):
        window.wait_signal(source, False)
    soon = SimpleNamespace(timeout=timedelta(milliseconds=200))
    fails(DeadlineExceeded, "", lambda: window.wait_signal(source, False, soon))
    own = new_window(torch.zeros(1))
    own.signal(rank, False)
    own.wait_signal(rank, False)
    fails(RuntimeError, "did not send", lambda: own.wait_signal(rank, False))


def shapes(rank):
    """Tensors of ranks differ in shape and dtype; every rank sees them without a copy, empty ones and parameters too."""
    tensor = torch.arange(6.0).view(2, 3).clone() if rank == 0 else torch.full((rank - 1, 4), rank, dtype=torch.int32)
    window = new_window(tensor)
    first = window.map_remote_tensor(0)
    assert first.equal(torch.arange(6.0).view(2, 3)), first
    assert window.map_remote_tensor(1).shape == (0, 4)
    assert window.map_remote_tensor(2).tolist() == [[2] * 4]
    dist.barrier()
    if rank == 2:
        first[1, 1] = 40.0
    dist.barrier()
    assert first[1, 1] == 40
    assert rank or tensor[1, 1] == 40
    parameter = torch.nn.Parameter(torch.ones(3) * rank)
    window = new_window(parameter)
    (parameter * 2).sum().backward()
    assert parameter.grad.tolist() == [2.0] * 3
    assert [window.map_remote_tensor(r)[0].item() for r in range(WORLD)] == [0.0, 1.0, 2.0]
    if TORCH_HAS_IT:
        from torch._C._distributed_c10d import WindowAccessType

        assert window.get_attr(1).access_type == WindowAccessType.UNIFIED


def wrong_calls(rank):
    """Mistakes are errors of the rank that makes them, without effect on others."""
    window = new_window()
    fails(RuntimeError, "not registered", lambda: window.put(torch.ones(1), 0, 0, False))
    fails(RuntimeError, "not registered", lambda: window.signal(0, False))
    fails(RuntimeError, "not registered", window.tensor_deregister)
    base = torch.ones(16)
    fails(RuntimeError, "other tensors have the memory", lambda view=base[2:4]: window.tensor_register(view))
    fails(RuntimeError, "contiguous", lambda: window.tensor_register(torch.ones(4, 4).T))
    tensor = torch.zeros(16 + rank)
    window.tensor_register(tensor)
    to = (rank + 1) % WORLD
    fails(RuntimeError, "double registration", lambda: window.tensor_register(torch.ones(3)))
    if rank == 0:
        fails(RuntimeError, "exceeds the window size", lambda: window.put(torch.ones(16), to, 8, False))
        fails(RuntimeError, "exceeds", lambda: window.put(torch.ones(1), to, sys.maxsize, False))
        fails(RuntimeError, "nonnegative", lambda: window.put(torch.ones(1), to, -1, False))
        fails(RuntimeError, "does not match", lambda: window.put(torch.ones(1, dtype=torch.int32), to, 0, False))
        fails(RuntimeError, "no rank 3", lambda: window.put(torch.ones(1), 3, 0, False))
    size = 16 + to
    window.put(tensor[:1] + 10 + rank, to, size - 1, False)  # the bounds are those of the target
    source = (rank - 1) % WORLD
    window.wait_signal(source, False)
    assert tensor[-1] == 10 + source
    window.tensor_deregister()


def dead_peer(rank):
    window = new_window(torch.zeros(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fails(ActorDiedError, "rank 1 is gone", lambda: window.wait_signal(1, False))


def other_members(rank):
    """A window belongs to the generation that made it."""
    group, tensor = dist.group.WORLD, torch.full((2,), rank)
    window, store = new_window(tensor), dist.distributed_c10d._get_default_store()
    store.set(f"handle/{rank}", group.get_reconfigure_handle())
    handles = [store.get(f"handle/{r}").decode() for r in range(WORLD)]
    group.reconfigure(SimpleNamespace(uuid=1, handles=handles, timeout=None))
    fails(RuntimeError, "other members", lambda: window.signal(0, False))
    assert tensor.tolist() == [rank] * 2
    window = new_window(tensor)
    assert window.map_remote_tensor(1).tolist() == [1, 1]


def apart(rank):
    """Ranks that share no memory have no windows."""
    assert not dist.group.WORLD.supports_window
    fails(Unimplemented, "share memory", lambda: dist.group.WORLD.new_window())
    assert isinstance(dist.group.WORLD, shoal.torch.ProcessGroup)


def rank_main(rank, name, folder):
    if name == "apart":
        os.environ["SHOAL_HOST"] = f"host {rank}"
    limit = timedelta(seconds=50)
    dist.init_process_group("shoal", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=limit)
    globals()[name](rank)


if __name__ == "__main__":
    fork_ranks(WORLD, lambda rank: rank_main(rank, *sys.argv[1:3]))
