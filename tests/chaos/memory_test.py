"""A worker whose allocation fails ends its training with its own error: other workers have nothing to take over."""

import pytest

TRAIN = """
import resource
import shoal
from shoal.train import ScalingConfig, Trainer, get_context, run

def step(batch, state):
    import torch
    (x,) = batch
    if state.step == 3 and get_context().get_world_rank() == 1:
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), resource.RLIM_INFINITY))
        try:
            ALLOCATE
        finally:  # the worker needs memory to report the error: without it, its process may end, and the others go on
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    loss = state.model(x).square().mean()
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()

def loop():
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from shoal.fsdp import fully_shard
    from shoal.optim import SGD
    from shoal.train import State
    model = torch.nn.Linear(4, 2)
    fully_shard(model)
    state = State(model=model, optimizer=SGD(model.parameters(), lr=0.1))
    run(step, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4), state)

if __name__ == "__main__":
    shoal.init(address="auto")
    Trainer(loop, scaling_config=ScalingConfig((1, 2))).fit()
"""


@pytest.mark.parametrize(
    ("allocate", "error"),
    [("bytearray(1 << 30)", "MemoryError"), ("torch.ones(1 << 28)", "can't allocate memory: you tried to allocate 1073741824 bytes")],
)
def test_a_worker_without_memory_ends_the_training_with_its_own_error(shoal_command, allocate, error):
    shoal_command.start(cpus=2)
    driver = shoal_command.driver(TRAIN.replace("ALLOCATE", allocate))
    assert driver.code() == 1
    assert error in driver.err
    assert allocate in driver.err  # the line of the loop
    assert shoal_command("stop").returncode == 0
