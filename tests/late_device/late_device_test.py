"""The late device itself: programs that events order have the usual results, and it reports those that only luck orders."""

import pytest
import torch
from torch import nn

from late_device import Faults, LateDevice, LateStreams, without

SEEDS = range(8)


def _trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        x, y = torch.arange(8).view(4, 2) + step // 2, torch.arange(4) % 3
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_stream_computes_as_the_cpu(seed):
    loss, parameters = _trained()
    with LateDevice(seed):
        late_loss, late_parameters = _trained()
    assert late_loss == loss
    torch.testing.assert_close(late_parameters, parameters, rtol=0, atol=0)


def test_operators_run_late():
    with LateDevice(0, eager=0) as device:
        x = torch.ones(4)
        y = x * 2
        with device.raw():
            assert y.isnan().all()
        assert y.sum().item() == 8  # the host waits


class Program:
    """Two streams, which share ``t``."""

    def __init__(self, device):
        self.streams = LateStreams(device)

    def ordered(self):
        t = torch.ones(4)
        mark = self.streams.mark()
        with self.streams.pack:
            mark.wait()
            t *= 3
            done = self.streams.mark()
        done.wait()
        return t.sum().item()

    def freed(self):
        t = torch.ones(4)
        mark = self.streams.mark()
        with self.streams.pack:
            mark.wait()
            out = t + 1
            done = self.streams.mark()
        done.wait()
        del t
        torch.zeros(4)  # gets the memory of t
        return out.sum().item()

    def resized(self):
        t = torch.ones(4)
        mark = self.streams.mark()
        with self.streams.pack:
            mark.wait()
            out = t + 1
            done = self.streams.mark()
        done.wait()
        storage = t.untyped_storage()
        storage.resize_(0)
        assert storage.size() == 0
        storage.resize_(16)
        t.fill_(5)
        return out.sum().item() + t.sum().item()


@pytest.mark.parametrize("name", ["ordered", "freed", "resized"])
def test_marks_order_streams(name):
    for seed in SEEDS:
        device = LateDevice(seed)
        with device:
            assert getattr(Program(device), name)() == {"ordered": 12, "freed": 8, "resized": 28}[name]


@pytest.mark.parametrize(
    ("name", "line", "fault"),
    [
        ("ordered", "mark.wait()", "mul_ at .* on stream pack writes the float32.* no mark orders it behind ones"),
        ("ordered", "done.wait()", "sum at .* on stream present reads the float32.* no mark orders it behind mul_ .* which writes it"),
        ("freed", "done.wait()", "may get the freed memory of the float32.* no mark orders it behind add .* on stream pack, which uses it"),
        (
            "resized",
            "done.wait()",
            "may get the freed memory of the float32.* no mark orders it behind add .* on stream pack, which uses it",
        ),
    ],
)
def test_missing_marks_are_reported(name, line, fault):
    wrong = 0
    for seed in SEEDS:
        device = LateDevice(seed)
        with without(Program, name, line), pytest.raises(Faults, match=fault), device:
            wrong += getattr(Program(device), name)() != {"ordered": 12, "freed": 8, "resized": 28}[name]
    assert wrong, "some seeds run the operators in the wrong order"


def _use_freed():
    t = torch.ones(4)
    t.untyped_storage().resize_(0)
    torch.neg(t)


def test_freed_memory_may_not_be_used():
    with pytest.raises(Faults, match=r"neg at .* reads the float32.*, which has been freed"), LateDevice(0):
        _use_freed()
