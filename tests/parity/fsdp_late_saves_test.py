"""Snapshots of a sharded model on a late device: the copies are ordered behind the last update and before the next one, and the host of
the training waits for neither."""

import functools
import re

import pytest
import torch
from compared_runs import Net
from late_device import Faults, LateDevice, LateStreams, without
from launching.trained import check, run, worlds
from torch.distributed.tensor import DTensor

SEEDS = range(8)
SGD = functools.partial(torch.optim.SGD, momentum=0.9)  # its states are on the device; AdamW's host reads its steps
KINDS = {"AdamW": torch.optim.AdamW, "SGD": SGD}


class Late:
    """A late device, and the model and its optimizer on it after two steps."""

    def __init__(self, seed, kind):
        from internals.fsdp import transfers

        from shoal.fsdp import fully_shard

        self.device = LateDevice(seed, torch.distributed.get_rank())
        transfers.forget()
        transfers.opens = lambda _: LateStreams(self.device)
        self.model = Net()
        self.model.register_buffer("seen", torch.zeros(4))
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = kind(self.model.parameters(), lr=0.05)

    def step(self):
        self.model(torch.ones(4, 8)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.seen.add_(1)

    def plan(self):
        from internals.checkpoint import Plan, Ranks, contents_of

        contents = contents_of(self.model)
        return Plan(contents, self.optimizer, None, Ranks(contents.tensors.values()))

    def expected(self):
        """Copies of this rank's part, taken on the present stream."""
        found = {n: t.to_local() if isinstance(t, DTensor) else t for n, t in self.model.state_dict().items()}
        for n, p in self.model.named_parameters():
            for key, value in self.optimizer.state[p].items():
                found[f"{n}/{key}"] = value.to_local() if isinstance(value, DTensor) else value
        return {n: t.detach().clone() for n, t in found.items()}


def saved(plan, snapshot):
    from internals.checkpoint import tensor_in

    return {
        part.name: tensor_in(image, at, part.counted.numel(), part.counted.dtype).view(part.shape).clone()
        for layout, image in zip(plan.layouts, snapshot.images, strict=True)
        for part, at in zip(layout.parts, layout.at, strict=True)
        if part.counted.numel()
    }


def a_snapshot_beside_the_training(seed, kind, steps=2):
    from internals.checkpoint import Snapshot

    late = Late(seed, kind)
    queues, host_waits = late.device.queues, []
    with late.device:
        late.step()
        plan = late.plan()  # its reads of the mesh count as a wait for the device
        late.step()
        wait, queues.host_waits = queues.host_waits, host_waits.append
        expected, snapshot = late.expected(), Snapshot(plan.layouts)
        for _ in range(steps):
            late.step()
        assert not host_waits
        queues.host_waits = wait
        snapshot.complete()
        found = {name: t.tolist() for name, t in saved(plan, snapshot).items()}
        expected = {name: t.tolist() for name, t in expected.items()}
    assert snapshot.error is None
    assert len(found) > 20
    for name, values in found.items():
        assert values == expected[name], name
    snapshot.release()


PLANTED = {
    "a copy before the last update": ("begin", "updated.wait()", 2, "on stream saves reads .* on stream present"),
    "an update before the copy": ("order_writes", "self._copied.wait()", 2, "on stream present writes .* on stream saves"),
    "a save before the copy": ("complete", "self._streams.synchronize(self._copied)", 0, "lacks values"),
}


def _report(method, line, steps, seed):
    from internals.checkpoint import Staging

    try:
        with without(Staging, method, line):
            a_snapshot_beside_the_training(seed, SGD, steps)
    except Faults as faults:
        return str(faults)
    except AssertionError as error:
        return f"lacks values: {error}"
    return None


def _find(method, line, steps, report):
    found = next(filter(None, (_report(method, line, steps, seed) for seed in SEEDS)), "no fault")
    assert re.search(report, found), found


def on_a_rank():
    from internals.fsdp import leave_arenas

    leave_arenas()
    uses = {f"{name} {seed}": functools.partial(a_snapshot_beside_the_training, seed, k) for name, k in KINDS.items() for seed in SEEDS}
    uses |= {name: functools.partial(_find, *planted) for name, planted in PLANTED.items()}
    return run(uses)


failed = worlds(on_a_rank)


@pytest.mark.parametrize("name", [*(f"{name} {seed}" for name in KINDS for seed in SEEDS), *PLANTED])
def test_use(name, failed):
    check(name, failed(2))
