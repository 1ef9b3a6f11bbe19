"""An elastic training whose workers share one CUDA device: one worker, a second one joins, it is killed in a gather, a replacement joins.

Every step is reported once, and losses are those of one worker that trains alone. One training has the AdamW of shoal.optim, whose steps
the host repeats, and one has torch's, whose rows and states are copied. With --device cpu, the model lies outside of arenas, as on a
device. Prints a JSON line for each with the changes and their pauses, then `N passed, N failed`. Without a device: exit code 2, one
sentence.
"""

import argparse
import json
import os
import signal
import sys

import gpt
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CONFIG, EPOCHS, BATCHES, ROWS = gpt.CONFIGS["T"], 2, 8, 4
JOIN, DIES = (3, 12), 7  # steps behind which a worker joins, and in which it dies
PAUSE_S = 10  # the most that a death on a device may cost


def die_once(folder):
    """Kills this process, unless an earlier one has died."""
    try:
        open(os.path.join(folder, "died"), "x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def loop(config):
    import shoal
    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    from shoal.train import State, get_context, report, run

    device = config["device"]
    if device == "cpu":
        from internals.fsdp import leave_arenas

        leave_arenas()
    model = gpt.build(CONFIG).to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    tokens = gpt.stream(CONFIG)
    rows = [gpt.batch(tokens, CONFIG, step, ROWS, 0, ROWS) for step in range(BATCHES)]
    data = TensorDataset(torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows]))
    kind, options = (torch.optim.AdamW, {"fused": True}) if config["optimizer"] == "torch" else (AdamW, {})
    state = State(model=model, optimizer=kind(model.parameters(), lr=1e-3, **options))

    def die(*_):
        if config["folder"] and state.step == DIES and get_context().get_world_rank() == 1:
            die_once(config["folder"])

    model.blocks[1].register_forward_pre_hook(die)  # the other worker waits for this one's rows

    def step(batch, state):
        x, y = (t.to(device) for t in batch)
        loss = F.cross_entropy(state.model(x).flatten(0, 1).float(), y.flatten())
        mean = state.mean(loss)
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        report({"step": state.step, "loss": mean, "workers": get_context().get_world_size()})
        if config["folder"] and state.step in JOIN:
            shoal.wait([state.gang._next], timeout=60)  # until the next workers are known

    run(step, DataLoader(data, batch_size=ROWS), state, epochs=EPOCHS)


def fit(device, optimizer, folder=None):
    """``folder``: the training has changes, which are noted there."""
    from shoal.train import ScalingConfig, Trainer

    def on_report(metrics):
        if folder and metrics["step"] == JOIN[0]:
            trainer.scale(2)

    resources = {"GPU": 0.5} if device == "cuda" else None
    scaling = ScalingConfig((1, 2), initial_workers=1, use_gpu=device == "cuda", resources_per_worker=resources)
    config = {"device": device, "optimizer": optimizer, "folder": folder}
    trainer = Trainer(loop, train_loop_config=config, scaling_config=scaling, on_report=on_report)
    return trainer.fit()


def main():
    import tempfile

    import shoal

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        print(f"tests/gpu: there is no CUDA device that torch {torch.__version__} can use here; nothing was tested")
        return 2
    shoal.init(num_cpus=4, num_gpus=int(device == "cuda"))
    expected = [m["loss"] for m in fit(device, "shoal").metrics_history]
    checks = []
    for optimizer in ("shoal", "torch"):
        with tempfile.TemporaryDirectory() as folder:
            checks += check(device, optimizer, fit(device, optimizer, folder), expected).values()
    failed = sum(not good for good in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


def check(device, optimizer, changing, expected):
    """Prints the figures of a training with changes, and returns what holds of it."""
    found, steps = ([m[name] for m in changing.metrics_history] for name in ("loss", "step"))
    off = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=False))
    changes = [{"to": c.workers, "died": len(c.died), "pause_s": round(c.seconds, 3), "phases": c.phases} for c in changing.changes]
    deaths = [c for c in changes if c["died"]]
    checks = {
        "each step once": steps == list(range(1, EPOCHS * BATCHES + 1)),
        "the losses of one worker": len(found) == len(expected) and off <= 1e-3,
        "a second worker, its death, and a replacement": [c["to"] for c in changes] == [2, 1, 2] and len(deaths) == 1,
        "survivors go on in time": device == "cpu" or all(c["pause_s"] <= PAUSE_S for c in deaths),
    }
    print(json.dumps({"optimizer": optimizer, "off_by": off, "changes": changes, "checks": checks}), flush=True)
    return checks


if __name__ == "__main__":
    sys.exit(main())
