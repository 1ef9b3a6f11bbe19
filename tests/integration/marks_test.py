"""The point from which a step runs again after a death: what a worker remembers there, without other workers."""

import torch
from torch import nn

from shoal.train import State
from shoal.train._recovery import Mark


def test_running_statistics_of_an_abandoned_batch_are_undone():
    model = nn.BatchNorm1d(3)
    state, kept = State(model=model), {}
    Mark(0, state, kept)
    model(torch.randn(8, 3))
    mark = Mark(1, state, kept)
    before = {name: b.clone() for name, b in model.named_buffers()}
    model(torch.randn(8, 3))
    assert not torch.equal(before["running_mean"], model.running_mean)
    mark.restore(state)
    for name, b in model.named_buffers():
        assert torch.equal(before[name], b), name
