"""One elastic training of the GPT of gpt.py, two workers of which one is killed now and then. It prints a line of JSON.

  python recovery_train.py --config M --kills 5            # SIGKILL in turn of rank 1 and rank 0, each once two workers train again
  python recovery_train.py --config M --steps 30           # without a death; --unprotected: no step records
Figures: of each kill, the seconds until the driver has the report of the next step; of each step its loss, its samples and the number of
updates that the optimizer has counted; the durations of the steps of two workers, and of each worker that was left alone.
"""

import argparse
import json
import os
import signal
import time

import gpt

import shoal
from shoal.train import ScalingConfig, Trainer

QUIET = 6  # steps of two workers before a kill, at least


def loop(options):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, Dataset

    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    from shoal.train import State, report, run

    torch.set_num_threads(1)
    config = gpt.CONFIGS[options["config"]]
    tokens, length = gpt.stream(config), config["seq"]

    class Sequences(Dataset):
        def __len__(self):
            return (len(tokens) - 1) // length

        def __getitem__(self, i):
            return i, tokens[i * length : (i + 1) * length], tokens[i * length + 1 : (i + 1) * length + 1]

    model = gpt.build(config)
    for unit in (*model.blocks, model):
        fully_shard(unit)
    state = State(model=model, optimizer=AdamW(model.parameters(), lr=3e-4))

    def step(batch, state):
        samples, x, y = batch
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (os.getpid(), samples.tolist()))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        mean = state.mean(loss)
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        ends = state.step >= options["steps"] > 0
        updates = next(int(s["step"]) for s in state.optimizer.state.values())
        used = sorted(i for _, ids in everyone for i in ids)
        report({"step": state.step, "loss": mean, "pids": [pid for pid, _ in everyone], "samples": used, "updates": updates})
        if ends:
            raise StopIteration

    try:
        run(step, DataLoader(Sequences(), batch_size=2 * config["batch"], shuffle=True), state, epochs=1_000_000)
    except StopIteration:
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", choices=list(gpt.CONFIGS), default="M")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="end after this step (0: after the last kill)")
    parser.add_argument("--unprotected", action="store_true")
    options = parser.parse_args()
    reports, kills, durations = [], [], {1: [], 2: []}  # durations by the number of workers

    class Enough(Exception):
        pass

    def on_report(metrics):
        now = time.perf_counter()
        if kills and kills[-1]["next"] is None:
            kills[-1]["next"] = now - kills[-1]["at"]
        elif reports and len(metrics["pids"]) == len(reports[-1][1]["pids"]):
            durations[len(metrics["pids"])].append(now - reports[-1][0])
        reports.append((now, metrics))
        if options.steps:
            return
        pair = [len(m["pids"]) == 2 for _, m in reports[-QUIET:]]
        if len(kills) == options.kills and (not kills or (len(pair) == QUIET and all(pair))):
            raise Enough
        if len(pair) == QUIET and all(pair) and (not kills or reports[-QUIET][0] > kills[-1]["at"]):
            kills.append({"at": time.perf_counter(), "next": None})
            os.kill(metrics["pids"][len(kills) % 2], signal.SIGKILL)

    shoal.init(num_cpus=2)
    scaling = ScalingConfig((1, 2), protect=not options.unprotected)
    trainer = Trainer(
        loop, train_loop_config={"config": options.config, "steps": options.steps}, scaling_config=scaling, on_report=on_report
    )
    try:
        trainer.fit()
    except Enough:
        pass
    steps = [{name: m[name] for name in ("step", "loss", "samples", "updates")} for _, m in reports]
    figures = {"kill to next step": [k["next"] for k in kills], "durations": durations[2][2:], "alone": durations[1], "steps": steps}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
