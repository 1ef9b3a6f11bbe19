"""Loops of the tests of accumulated gradients, over a sampler with a generator of its own."""

import pytest
import training_loops as loops
from recovery_loops import Killer


class OwnOrder:
    """A sampler with a generator of its own."""

    def __init__(self):
        import numpy

        self.generator = numpy.random.default_rng(5)

    def __iter__(self):
        return iter(self.generator.permutation(loops.NUM_SAMPLES).tolist())

    def __len__(self):
        return loops.NUM_SAMPLES


ACCUMULATED = 3  # batches of one step of the optimizer


def accumulating_form(config):
    """A step of the optimizer has the gradients of three batches. ``reduced``: "each", with each batch; "late", with the last one; "kept",
    by one backward pass over the sum of their losses. ``again``: the loop is an ordinary one, which runs again after a death."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    import shoal
    from shoal.train import report, run, steps

    state, loader = loops.build(config)
    loader = DataLoader(loader.dataset, batch_size=loops.BATCH, sampler=OwnOrder())
    killer, losses = Killer(config.get("deaths", ()), config.get("folder")), []

    def step(batch, state):
        indices, x, y = batch
        last = state.step % ACCUMULATED == 0
        if config["reduced"] == "late":
            state.model.set_requires_gradient_sync(last)
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, indices.tolist()[: state.samples])
        loss = (state.model(x) - y).square().mean()
        mean = state.mean(loss)
        losses.append(loss / ACCUMULATED)
        if last or config["reduced"] != "kept":
            sum(losses).backward()
            losses.clear()
        killer.at(state, "between")
        if last:
            state.optimizer.step()
            state.optimizer.zero_grad()
        report({"step": state.step, "epoch": state.epoch, "loss": mean, "samples": [i for part in parts for i in part]})
        if state.step in config.get("changes", ()):
            shoal.wait([state.gang._next], timeout=120)

    if config.get("again"):
        for batch in steps(loader, state, epochs=config["epochs"]):
            step(batch, state)
    else:
        run(step, loader, state, epochs=config["epochs"])
    return state.step


def check_accumulated(history, epochs):
    """The reports are those of one plain process that accumulates the same batches."""
    import torch

    assert [m["step"] for m in history] == list(range(1, 5 * epochs + 1))
    everything = list(range(loops.NUM_SAMPLES))
    assert {e: sorted(s) for e, s in loops.samples_by_epoch(history).items()} == dict.fromkeys(range(epochs), everything)
    model, data = loops.model_and_data()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for m in history:
        _, x, y = data[m["samples"]]
        loss = (model(x) - y).square().mean()
        losses.append(loss.item())
        (loss / ACCUMULATED).backward()
        if m["step"] % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert [m["loss"] for m in history] == pytest.approx(losses, rel=1e-5)
