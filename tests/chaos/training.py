"""An elastic training that counts its own steps: training.py ADDRESS CASE. It prints a line of JSON per report, and one with its result.

With SGD at a learning rate of 1 and without momentum, ``count`` falls by exactly one per step, and ``seen[i]`` by one per use of sample i.
Row i of ``count`` begins at i * SPACING, so that a value shows its row and its version. CASE is JSON: "epochs", "bounds", "resources",
"folder" (``places.Disk``), "devices" (the model lies outside of arenas; "copied": with torch's SGD, whose steps are copied to the host).
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import saves
import torch
from torch import nn

sys.path.append(str(Path(__file__).absolute().parent.parent))

NUM_SAMPLES, BATCH = 40, 8  # a power of two, so that the parts of a batch have exact weights
STEPS_PER_EPOCH = NUM_SAMPLES // BATCH
SPACING = 4096  # more than the steps of a training


class Broken(Exception):
    """A step has found a state that no training may have."""


class Layer(nn.Module):
    """A linear layer beside a counter of steps. ``step``: the steps that count before the present one."""

    def __init__(self, inputs: int, outputs: int, rows: int):
        super().__init__()
        self.linear, self.count, self.step = nn.Linear(inputs, outputs), nn.Parameter(SPACING * torch.arange(float(rows))), 0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = self.count.detach()
        if not torch.equal(count, SPACING * torch.arange(float(len(count))) - self.step):
            raise Broken(f"after {self.step} steps a counter is {count.tolist()}")
        return self.linear(x), self.count.sum()


class Model(nn.Module):
    batch = BATCH

    def __init__(self):
        super().__init__()
        self.first, self.second, self.seen = Layer(6, 15, 11), Layer(15, 1, 7), nn.Parameter(torch.zeros(NUM_SAMPLES))

    def forward(self, samples: torch.Tensor, x: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the prediction, and a sum of counters whose gradient is one per step, and one per use of a sample."""
        self.first.step = self.second.step = step
        if (uses := -self.seen.detach().sum().item()) != step * BATCH:
            raise Broken(f"after {step} steps samples were used {uses:g} times")
        epoch, rest = divmod(step, STEPS_PER_EPOCH)
        if not rest and (self.seen != -epoch).any():
            raise Broken(f"after {epoch} epochs samples were used {(-self.seen.detach()).tolist()} times")
        hidden, one = self.first(x)
        result, other = self.second(hidden.relu())
        return result, one + other + BATCH * self.seen[samples].mean()


def build() -> tuple[Model, torch.utils.data.TensorDataset]:
    torch.manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 6)
    return Model(), torch.utils.data.TensorDataset(torch.arange(NUM_SAMPLES), x, x.sum(1, keepdim=True))


def groups(model: Model) -> list[dict]:
    counters = [p for n, p in model.named_parameters() if n.endswith(("count", "seen"))]
    rest = [p for n, p in model.named_parameters() if not n.endswith(("count", "seen"))]
    return [{"params": counters, "lr": 1.0, "momentum": 0.0}, {"params": rest, "lr": 1e-2, "momentum": 0.9}]


def rows_of(model: Model) -> list[list[tuple[int, int]]]:
    """Returns the rows of each counter that this rank owns, with their versions."""
    own = [layer.count.to_local().detach().tolist() for layer in (model.first, model.second)]
    return [[(row := math.ceil(value / SPACING), int(SPACING * row - value)) for value in values] for values in own]


def check_rows(everyone: list[list[list[tuple[int, int]]]], step: int) -> None:
    """Each row has one owner, and all rows are of one version."""
    for unit, rows in enumerate((11, 7)):
        found = sorted(pair for of_rank in everyone for pair in of_rank[unit])
        if found != [(row, step) for row in range(rows)]:
            raise Broken(f"before step {step + 1} the rows of unit {unit} and their versions are {found}")


def step(batch, state) -> None:
    import torch.distributed as dist

    from shoal.train import report
    from shoal.train._worker import current_worker

    saves.grow_if_chosen(state.folder)
    samples, x, y = batch
    parts = [None] * dist.get_world_size()
    here = current_worker().generation, state.step
    mine = (samples.tolist()[: state.samples], os.getpid(), here, rows_of(state.model))
    dist.all_gather_object(parts, mine)
    if {at for _, _, at, _ in parts} != {here}:
        raise Broken(f"workers are in different generations, or at different steps: {[at for _, _, at, _ in parts]}")
    check_rows([rows for *_, rows in parts], state.step - 1)
    result, counters = state.model(samples, x, state.step - 1)
    loss = (result - y).square().mean()
    mean = state.mean(loss)
    (loss + counters).backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    used = [i for part, *_ in parts for i in part]
    report({"step": state.step, "epoch": state.epoch, "loss": mean, "samples": used, "pids": [pid for _, pid, *_ in parts]})
    if state.checkpoints.should_save(state.step):
        state.checkpoints.save(state.step, state.model, state.optimizer, state=state.state_dict())


def loop(config: dict) -> dict:
    from torch.utils.data import DataLoader

    import shoal.checkpoint
    from shoal.fsdp import fully_shard
    from shoal.optim import SGD
    from shoal.train import State, run

    if config.get("devices"):
        from internals.fsdp import leave_arenas

        leave_arenas()
    model, data = build()
    for unit in (model.first, model.second, model):
        fully_shard(unit)
    kind = torch.optim.SGD if config.get("devices") == "copied" else SGD
    state = State(model=model, optimizer=kind(groups(model), lr=1.0))
    state.folder = Path(config["folder"])
    state.checkpoints = saves.checkpoints(state.folder)
    run(step, DataLoader(data, batch_size=BATCH, shuffle=True), state, epochs=config["epochs"])
    shoal.checkpoint.wait()
    return {"step": state.step, "parameters": {n: p.full_tensor().detach().tolist() for n, p in model.named_parameters()}}


def plain_run(order: list[list[int]]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of one plain process over batches of these samples."""
    model, data = build()
    optimizer, losses = torch.optim.SGD(groups(model), lr=1.0), []
    for number, used in enumerate(order):
        samples, x, y = data[used]
        result, counters = model(samples, x, number)
        loss = (result - y).square().mean()
        losses.append(loss.item())
        (loss + counters).backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, {n: p.detach() for n, p in model.named_parameters()}


def verdict(history: list[dict], returns: list[dict], epochs: int) -> dict:
    """Returns the steps that the parameters lack, those that they have twice, and sentences about all else that is wrong."""
    wanted, wrong = epochs * STEPS_PER_EPOCH, []
    if [m["step"] for m in history] != list(range(1, wanted + 1)):
        wrong.append(f"the reports are those of the steps {[m['step'] for m in history]}")
    for epoch in range(epochs):
        used = sorted(i for m in history if m["epoch"] == epoch for i in m["samples"])
        if used != list(range(NUM_SAMPLES)):
            wrong.append(f"epoch {epoch} used the samples {used}")
    lost = twice = 0
    for returned in returns:
        made = -torch.tensor(returned["parameters"]["first.count"])[0].item()
        lost, twice = max(lost, wanted - made), max(twice, made - wanted)
        uses = (-torch.tensor(returned["parameters"]["seen"])).tolist()
        if uses != [float(epochs)] * NUM_SAMPLES:
            wrong.append(f"each sample counts {epochs} times, but the parameters have {uses}")
    if not wrong:
        wrong += differences(history, returns)
    return {"steps": wanted, "lost": int(lost), "twice": int(twice), "wrong": wrong}


def differences(history: list[dict], returns: list[dict]) -> list[str]:
    losses, parameters = plain_run([m["samples"] for m in history])
    wrong = [] if returns else ["no worker returned"]
    if not torch.allclose(torch.tensor([m["loss"] for m in history]), torch.tensor(losses), rtol=1e-3, atol=1e-5):
        wrong.append("the losses differ from those of one plain process")
    for rank, returned in enumerate(returns):
        for name, value in returned["parameters"].items():
            if not torch.allclose(torch.tensor(value), parameters[name], rtol=1e-3, atol=1e-5):
                wrong.append(f"{name} of rank {rank} differs from that of one plain process")
    return wrong


class Reports:
    """Prints the reports. After each change of the workers it checks the newest checkpoint."""

    def __init__(self, folder: Path):
        self._folder, self._model, self._pids = folder, Model(), []
        self.step = self.checked = 0
        self.wrong: list[str] = []

    def __call__(self, metrics: dict) -> None:
        self.step = metrics["step"]
        say(step=self.step, pids=metrics["pids"])
        if metrics["pids"] != self._pids:
            self._pids = metrics["pids"]
            # a save may be under way for a step that all workers have reported, and this process has not read yet
            self.check(0, self.step + saves.EVERY)

    def check(self, at_least: int, at_most: int) -> None:
        self.checked += 1
        self.wrong += saves.wrong_with_newest(self._folder, self._model, at_least, at_most)


def say(**line) -> None:
    print(json.dumps(line), flush=True)


def main(address: str, case: str) -> None:
    import shoal
    from shoal.train import ScalingConfig, Trainer, WorkerLost

    case = json.loads(case)
    shoal.init(address=address)
    scaling = ScalingConfig(tuple(case["bounds"]), resources_per_worker=case.get("resources"))
    reports = Reports(Path(case["folder"]))
    trainer = Trainer(loop, train_loop_config=case, scaling_config=scaling, on_report=reports)
    end: dict = {}
    try:
        result = trainer.fit()
        pauses = [c.seconds for c in result.changes if c.died]
        end["result"] = verdict(result.metrics_history, result.returns, case["epochs"]) | {"pauses": pauses}
        reports.check(reports.step - 2 * saves.EVERY, reports.step)
        reports.wrong += saves.leftovers(reports._folder)
    except WorkerLost as error:
        end["worker_lost"] = str(error)
        reports.check(0, reports.step + 1)
    say(**end, checked=reports.checked, wrong_saves=reports.wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
