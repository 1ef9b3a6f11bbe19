"""Loops of the tests of deterministic trainings: a small transformer with dropout, random samples, and clipped gradients."""

import recovery_loops as r

NUM_SAMPLES, BATCH, TOKENS, WORDS = 37, 8, 6, 24  # the last batch of an epoch has 5 samples


def model_of():
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(16, 2, 40, dropout=0.2, batch_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, 16), *layers, nn.Linear(16, WORDS))


class Samples:
    """Tokens of which some are replaced at random, each time that they are read."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        import torch

        tokens = (torch.arange(TOKENS) * (index + 1)) % WORDS
        noisy = torch.where(torch.rand(TOKENS) < 0.2, torch.randint(WORDS, (TOKENS,)), tokens)
        return noisy, tokens


def build(config):
    """Returns (state, loader). ``config``: "bf16", "fp16", "double", "readers" (the loader's workers), "optimizer", "accumulates" (batches
    per step of the optimizer), "evaluates" (in "each" part, or in the "last") and "devices" are optional. The last one is True for a model
    outside of arenas, and "own groups" if Shoal's groups move its bytes."""
    import torch
    from torch.utils.data import DataLoader

    import shoal.optim
    from shoal.fsdp import MixedPrecisionPolicy, fully_shard
    from shoal.train import State

    if config.get("devices"):
        from internals.fsdp import leave_arenas, take_norms_by_operators, use_own_groups

        leave_arenas()
        take_norms_by_operators()
        if config["devices"] == "own groups":
            use_own_groups()
    model = model_of().double() if config.get("double") else model_of()
    half = next((kind for name, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)) if config.get(name)), None)
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    for unit in (*model, model):
        fully_shard(unit, mp_policy=policy)
    kind, options = config.get("optimizer", ("AdamW", {}))
    optimizer = getattr(shoal.optim, kind)(model.parameters(), lr=1e-2, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9)
    loader = DataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=config.get("readers", 0))
    return State(model=model, optimizer=optimizer, scheduler=scheduler, seed=3), loader


def train_step(state, batch, config, killer):
    import torch

    from shoal.optim import clip_grad_norm_
    from shoal.train import report

    noisy, tokens = batch
    killer.at(state, "begin")
    if (evaluates := config.get("evaluates")) == "each" or (evaluates == "last" and state.last_part):
        state.model.eval()  # without dropout, whose draws would be the last part's
        with torch.no_grad():
            state.model(noisy)
        state.model.train()
    logits = state.model(noisy).to(torch.float64 if config.get("double") else torch.float32)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    mean, right = state.mean(loss), state.mean((logits.argmax(-1) == tokens).float().mean())
    loss.backward()
    killer.at(state, "between" if state.last_part else "earlier")
    norm = 0.0
    if state.step % config.get("accumulates", 1) == 0:
        norm = clip_grad_norm_(state.model.parameters(), 0.5).item()
        if state.last_part and config["deaths"]:
            killer.in_optimizer(state)
        state.optimizer.step()
        if state.last_part:
            killer.at(state, "after")
        state.scheduler.step()
        state.optimizer.zero_grad()
    report({"step": state.step, "loss": mean, "right": right, "norm": norm, "lr": state.scheduler.get_last_lr()[0]})
    if state.last_part and state.step in config.get("changes", ()):
        import shoal

        shoal.wait([state.gang._next], timeout=120)


def result_of(state):
    import torch

    return {"step": state.step, "bits": r.bits_of(state), "draw": torch.rand(1).item()}


def loop_form(config):
    from shoal.train import steps

    state, loader = build(config)
    killer = r.Killer(config["deaths"], config["folder"])
    for batch in steps(loader, state, epochs=config["epochs"]):
        train_step(state, batch, config, killer)
    return result_of(state)


def steps_form(config):
    from shoal.train import run

    state, loader = build(config)
    killer = r.Killer(config["deaths"], config["folder"], config.get("victims", "worker"))
    run(lambda batch, state: train_step(state, batch, config, killer), loader, state, epochs=config["epochs"])
    return result_of(state)


def unfit(config):
    """A loop that begins with one object that is not deterministic; ``config`` is its kind."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.utils.data import DataLoader, TensorDataset

    from shoal.fsdp import MixedPrecisionPolicy, fully_shard
    from shoal.optim import AdamW, Muon
    from shoal.train import State, steps

    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4) if config == "statistics" else nn.Identity())
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) if config == "half" else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")) if config == "replicas" else None
    if config != "copies":
        fully_shard(model, mp_policy=policy, mesh=mesh)
    optimizer = {"torch": torch.optim.AdamW, "muon": Muon}.get(config, AdamW)([model[0].weight], lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
    for (x,) in steps(loader, State(model=model, optimizer=optimizer)):
        if config == "accumulates":
            model.set_requires_gradient_sync(False)
        model(x).sum().backward()
        if config == "backward":
            model(x).sum().backward()
