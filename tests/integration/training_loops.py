"""Training loops of the tests of steps and of elastic trainings: the same model and data in each, also for one plain process."""

import random

NUM_SAMPLES, BATCH = 37, 8  # the last batch has 5 samples


def model_and_data():
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 6)
    model = nn.Sequential(nn.Linear(6, 15), nn.ReLU(), nn.BatchNorm1d(15, affine=False, momentum=None).eval(), nn.Linear(15, 1))
    return model, TensorDataset(torch.arange(NUM_SAMPLES), x, x.sum(1, keepdim=True))


def build(config):
    """Returns (state, loader) of a loop. ``config``: "shard", "batch", "readers" (the loader's workers), "optimizer" (its class, of
    shoal.optim or "torch.", and options), "bf16" (parameters), "scales" (by a GradScaler), "mixed" (precision) and "devices" are optional.
    The last one is True for a model outside of arenas, and "own groups" if Shoal's groups move its bytes."""
    import torch
    from torch.utils.data import DataLoader

    import shoal.optim
    from shoal.fsdp import MixedPrecisionPolicy, fully_shard
    from shoal.train import State

    model, data = model_and_data()
    if config.get("devices"):
        from internals.fsdp import leave_arenas, use_own_groups

        leave_arenas()
        if config["devices"] == "own groups":
            use_own_groups()
    if config.get("bf16"):
        model.bfloat16()
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if config.get("shard", True):
        for unit in (model[0], model[3], model):
            fully_shard(unit, mp_policy=mixed if config.get("mixed") else MixedPrecisionPolicy())
    kind, options = config.get("optimizer", ("AdamW", {}))
    found = getattr(torch.optim, kind[6:]) if kind.startswith("torch.") else getattr(shoal.optim, kind)
    optimizer = found(model.parameters(), lr=1e-2, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    loader = DataLoader(data, batch_size=config.get("batch", BATCH), shuffle=True, num_workers=config.get("readers", 0))
    scaler = {"scaler": torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)} if config.get("scales") else {}
    return State(model=model, optimizer=optimizer, scheduler=scheduler, **scaler), loader


def train_step(state, batch):
    """Runs one step. Returns (loss over the whole batch, this worker's samples)."""
    import torch.distributed as dist

    indices, x, y = batch
    loss = (state.model(x) - y).square().mean()
    loss.backward()
    norm = float(sum(p.grad.full_tensor().square().sum() if hasattr(p.grad, "full_tensor") else 0 for p in state.model.parameters()))
    state.optimizer.step()
    state.scheduler.step()
    state.optimizer.zero_grad()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, indices.tolist()[: state.samples])
    return {
        "step": state.step,
        "epoch": state.epoch,
        "loss": state.mean(loss.item()),
        "norm": norm,
        "samples": [i for part in parts for i in part],
        "workers": dist.get_world_size(),
        "lr": state.scheduler.get_last_lr()[0],
    }


def loop(config):
    """Trains, and waits after the steps of ``config["changes"]`` until the driver has published the next membership."""
    import torch
    from internals.core import process

    import shoal
    from shoal.train import get_context, report, steps

    state, loader = build(config)
    state.on_change = lambda change: seen.append(change.workers)
    seen = []
    for batch in steps(loader, state, epochs=config["epochs"]):
        report(train_step(state, batch))
        if state.step in config.get("changes", ()):
            shoal.wait([state.gang._next], timeout=120)
    draws = random.random(), torch.rand(1).item()
    return {
        "rank": get_context().get_world_rank(),
        "world": get_context().get_world_size(),
        "seen": seen,
        "random": draws,
        "ending": len(process.state.ending),  # the session's end has to leave these
        "step": state.step,
    }


def plain_run(order):
    """Losses of one plain process over batches of these samples."""
    import torch

    model, data = model_and_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    losses = []
    for samples in order:
        _, x, y = data[samples]
        loss = (model(x) - y).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def samples_by_epoch(history):
    found = {}
    for m in history:
        found.setdefault(m["epoch"], []).extend(m["samples"])
    return found
