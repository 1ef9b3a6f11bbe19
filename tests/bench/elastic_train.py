"""One training of shoal.train with the GPT of gpt.py: of fixed size, or with workers that come and go. It prints a line of JSON.

  python elastic_train.py --config M --workers 2 --steps 40             # fixed size
  python elastic_train.py --config M --workers 2 --changes 4,3,1,2      # a change after every few steps
  python elastic_train.py --address HEAD --changes 1,2                  # on a cluster of hosts, a worker per `one_each`
Figures of rank 0: per step its end (seconds), its loss, the number of workers and the generation; the bytes that its host's devices have
sent and received before the step and after it; and the changes of the Result.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import gpt

import shoal
from shoal.train import ScalingConfig, Trainer, get_context, report

QUIET = 5  # steps between two changes, at least


def traffic():
    """Bytes that each network device of this host has sent and received, but for the loopback device."""
    rows = [line.replace(":", " ").split() for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]]
    return {row[0]: int(row[1]) + int(row[9]) for row in rows if row[0] != "lo"}


def loop(options):
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, Dataset

    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    from shoal.train import State, steps

    torch.set_num_threads(1)
    config = gpt.CONFIGS[options["config"]]
    tokens, length = gpt.stream(config), config["seq"]

    class Sequences(Dataset):
        def __len__(self):
            return (len(tokens) - 1) // length

        def __getitem__(self, i):
            return tokens[i * length : (i + 1) * length], tokens[i * length + 1 : (i + 1) * length + 1]

    model = gpt.build(config)
    for unit in (*model.blocks, model):
        fully_shard(unit)
    optimizer = AdamW(model.parameters(), lr=3e-4)
    changed = []  # the step and the generation of each change that this worker has seen
    state = State(model=model, optimizer=optimizer, on_change=lambda change: changed.append((state.step, change.generation)))
    loader = DataLoader(Sequences(), batch_size=options["batch"], shuffle=True)
    for x, y in steps(loader, state, epochs=1_000_000):
        before = traffic()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        at, (step, generation) = time.perf_counter(), changed[-1] if changed else (0, 1)
        mean = state.mean(loss)
        report(
            {
                "at": at,
                "loss": mean,
                "workers": get_context().get_world_size(),
                "generation": generation,
                "traffic": [before, traffic()],
            }
        )
        if state.step == options["steps"] or (generation == options["last"] and state.step >= step + QUIET):
            break
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters())  # parameters and two moments


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", choices=list(gpt.CONFIGS), default="M")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="end after this step (0: after the last change)")
    parser.add_argument("--changes", default="", help="numbers of workers, one after the other")
    parser.add_argument("--batch", type=int, default=0, help="samples of a global batch (default: twice the config's)")
    parser.add_argument("--address", help="of the head of a cluster (default: a local one)")
    options = parser.parse_args()
    changes = [int(n) for n in options.changes.split(",") if n]
    most, history, asked = max([options.workers, *changes]), [], []

    def on_report(metrics):
        history.append(metrics)
        quiet = len(history) >= QUIET and len({m["generation"] for m in history[-QUIET:]}) == 1
        if quiet and len(asked) < len(changes) and metrics["generation"] == len(asked) + 1:
            asked.append(trainer.scale(changes[len(asked)]))

    if options.address:
        shoal.init(address=options.address)
    else:
        shoal.init(num_cpus=most)
    if changes and most > options.workers:  # an elastic training begins with as many workers as fit: come down first
        changes = [options.workers, *changes]
    config = {
        "config": options.config,
        "steps": options.steps or -1,
        "batch": options.batch or 2 * gpt.CONFIGS[options.config]["batch"],
        "last": 1 + len(changes) if changes else -1,
    }
    scaling = ScalingConfig((1, most) if changes else options.workers)
    if options.address:  # no replicas: their bytes are no part of a change
        scaling = ScalingConfig((1, most), resources_per_worker={"CPU": 0, "one_each": 1}, protect="host")
    trainer = Trainer(loop, train_loop_config=config, scaling_config=scaling, on_report=on_report)
    result = trainer.fit()
    changed = [dataclasses.asdict(c) for c in result.changes]
    print(json.dumps({"steps": result.metrics_history, "changes": changed, "state_bytes": result.returns[0]}))


if __name__ == "__main__":
    main()
