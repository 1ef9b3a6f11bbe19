"""Changes of meshes that fail: all ranks raise, stay on the old mesh, and can try again."""

import pytest
import reshard_test
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from shoal.exceptions import Cancelled, DataLoss, InvalidArgument, Unavailable, Unimplemented
from shoal.train import ScalingConfig, Trainer

OLD, NEW = (0, 1), (0, 1, 2)


class Failing:
    """One rank's part in a world of three, in which two train and the third joins them."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.old, self.new = DeviceMesh("cpu", list(OLD)), DeviceMesh("cpu", list(NEW))
        self.alone = [DeviceMesh("cpu", [r]) for r in NEW][self.rank]
        self.config = {"optimizer": "shoal.AdamW"}
        self.model, self.optimizer, self.scheduler = self.build()
        self.losses = []

    def build(self):
        return reshard_test.build(self.config, self.old if self.rank in OLD else self.alone)

    def train(self, steps):
        if self.rank in OLD:
            self.losses += reshard_test.train(self.model, self.optimizer, self.scheduler, steps, self.rank, self.old)

    def move(self, mesh=None, **arguments):
        from internals.fsdp import reshard

        where = {"old_owners": OLD, "old_index": self.rank if self.rank in OLD else None, **arguments}
        return reshard(self.model, self.optimizer, mesh or self.new, **where)

    def refused(self, *expected, match):
        """Tries to move, which fails on this rank; then trains on the old mesh."""
        with pytest.raises(expected, match=match):
            self.move()
        dist.barrier()
        self.train([0, 1])


def another_model_on_a_newcomer(f):
    if f.rank == 2:
        f.config = {**f.config, "tied": True}
        f.model, f.optimizer, f.scheduler = f.build()
    f.refused(InvalidArgument, match="rank 2 has another model or optimizer than rank 0: ")
    if f.rank == 2:
        f.config = {"optimizer": "torch.SGD"}
        f.model, f.optimizer, f.scheduler = f.build()
    f.refused(InvalidArgument, match="optimizer 0: SGD with groups of .*; rank 0: optimizer 0: AdamW")
    if f.rank == 2:
        f.config = {"optimizer": "shoal.AdamW"}
        f.model, f.optimizer, f.scheduler = f.build()


def gradients_that_are_not_reduced(f):
    if f.rank in OLD:
        f.model.set_requires_gradient_sync(False)
        f.model(torch.ones(1, 8)).sum().backward()
        f.model.set_requires_gradient_sync(True)
    f.refused(InvalidArgument, match="a gradient that is not reduced yet")


def no_memory_on_one_rank(f):
    from internals.fsdp import memory

    original = memory.long_lived

    def fails(*_, **__):
        raise MemoryError("no room for the states")

    if f.rank == 1:
        memory.long_lived = fails
    try:
        f.refused(*([MemoryError] if f.rank == 1 else [Unavailable]), match="no room for the states")
    finally:
        memory.long_lived = original


def a_message_with_wrong_bytes(f):
    from internals.fsdp import stream

    original = stream._checksum
    if f.rank == 1:  # sends to the newcomer
        stream._checksum = lambda rows, number: original(rows, number) ^ (number == 0)
    try:
        f.refused(DataLoss, Cancelled, match="wrong checksum")
    finally:
        stream._checksum = original


def a_state_that_cannot_move(f):
    p = f.optimizer.param_groups[0]["params"][0]
    if f.rank == 0:
        f.optimizer.state[p]["mean"] = DTensor.from_local(torch.ones(3), f.old, [Replicate()], run_check=False)
    with pytest.raises(Unimplemented if f.rank == 0 else Unavailable, match="mean of an optimizer's state of parameter inp"):
        f.move()
    f.optimizer.state[p].pop("mean", None)
    dist.barrier()
    f.train([0, 1])


CASES = (
    another_model_on_a_newcomer,
    gradients_that_are_not_reduced,
    no_memory_on_one_rank,
    a_message_with_wrong_bytes,
    a_state_that_cannot_move,
)


def wrong_arguments(f):
    for arguments, text in (
        ({"mesh": DeviceMesh("cpu", [0, 2, 1])}, "do not ascend"),
        ({"old_owners": ()}, "should name each rank of the old mesh once"),
        ({"old_owners": (0, 1, 2), "old_index": None}, "calls itself a newcomer"),
        ({"old_index": 2}, "does not fit old_owners|differ at rank"),
        ({"old_owners": (0, 1, 2), "old_index": f.rank, "mesh": f.old}, "is on a mesh of [12] ranks, but old_owners"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            f.move(**arguments)


def loop(config):
    if config["devices"]:
        from internals.fsdp import leave_arenas

        leave_arenas()
    f = Failing()
    f.train([0, 1])
    before = reshard_test.gathered(f.model, f.optimizer) if f.rank in OLD else None
    wrong_arguments(f)
    names = []
    for case in CASES[: config["cases"]]:
        case(f)
        names.append(case.__name__)
    report = f.move()
    after = reshard_test.gathered(f.model, f.optimizer)
    if f.rank == 0:
        assert before.keys() == after.keys()
    f.losses += reshard_test.train(f.model, f.optimizer, f.scheduler, [2], f.rank, f.new)
    return names, f.losses, report.received_bytes


# The last case's state is none of a device's.
@pytest.mark.parametrize(("devices", "cases"), [(False, len(CASES)), (True, len(CASES) - 1)])
def test_all_ranks_stay_on_the_old_mesh_when_one_fails_and_can_try_again(devices, cases):
    config = {"devices": devices, "cases": cases}
    returns = Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=3)).fit().returns
    assert [names for names, _, _ in returns] == [[case.__name__ for case in CASES[:cases]]] * 3
    assert returns[0][1] == returns[1][1]
    assert returns[2][2] > 0
