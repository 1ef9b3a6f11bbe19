"""Threads that use a group of the backend shoal at once."""

import pytest
from ranks import check

# Rank 1 dies while the others wait for it in the first collective of a callback. argv: a name, a folder.
_DEATH = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from fails import fails
from launching.forking import fork_ranks
import shoal.torch
from internals.distributed import Exchange
from shoal.exceptions import ActorDiedError

WORLD = 3


def rank_main(rank):
    store = dist.FileStore(f"{sys.argv[2]}/store", WORLD)
    dist.init_process_group("shoal", store=store, rank=rank, world_size=WORLD, timeout=timedelta(minutes=30))
    original = Exchange._get

    def get(self, key, of, began):
        if "/callbacks/" in key and of == 1:
            store.set(f"forming/{rank}", "")
        return original(self, key, of, began)

    Exchange._get = get

    def again(future):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()

    def started():
        return dist.all_reduce(torch.ones(1), async_op=True).get_future()

    if rank == 1:
        future = started()
        store.wait(["forming/0", "forming/2"])
        future.then(again).wait()
    fails(ActorDiedError, "rank 1 is gone", lambda: started().then(again).wait())
    fails(ActorDiedError, "rank 1 is gone", lambda: dist.all_reduce(torch.ones(1)))
    fails(ActorDiedError, "rank 1 is gone", started().then(again).wait)  # the turns go on


fork_ranks(WORLD, rank_main)
"""


@pytest.mark.parametrize("part", ["keeping", "waiting", "opening", "nesting", "interrupts", "turns_of_threads"])
def test_two_threads_use_one_group(part):
    check("threads_program.py", part, 1)


def test_a_message_that_does_not_come_delays_no_future_but_its_own():
    check("threads_program.py", "futures", 2)


@pytest.mark.parametrize("part", ["chains", "callbacks_of_torch", "a_program_that_goes_on"])
def test_callbacks_of_futures_wait_for_further_operations(part):
    check("threads_program.py", part, 2)


def test_a_death_ends_the_wait_for_the_first_collective_of_a_callback(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_DEATH)
    check(str(program), "death", 0)  # a hang would end the ranks at the guard's limit
