"""An elastic training, which `shoal run` starts on the first of several hosts: elastic_hosts.py FOLDER.

It trains until FOLDER has a file `end`, and writes its reports to `out.json` there. It prints "workers N" whenever their number has
changed, and "step N" at each tenth step. ``PACE`` in the environment is the least duration of a step in seconds, so that few steps pass
while a test does its harm.
"""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from shoal.fsdp import fully_shard
from shoal.optim import AdamW
from shoal.train import ScalingConfig, State, Trainer, report, steps

NUM_SAMPLES, BATCH = 64, 8
STEPS_PER_LINE = 10


def identity() -> str:
    """This process among those of all hosts: two hosts may have processes of one number."""
    with open("/proc/self/stat") as file:
        return f"{socket.gethostname()} {os.getpid()} {file.read().rpartition(')')[2].split()[19]}"


def loop(config):
    torch.manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 16)
    data = TensorDataset(torch.arange(NUM_SAMPLES), x, x.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    for unit in (model[0], model[3], model):
        fully_shard(unit)
    state = State(model=model, optimizer=AdamW(model.parameters(), lr=1e-3))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    samples = []
    for indices, x, y in steps(loader, state, epochs=1_000_000_000):
        samples += indices[: state.samples].tolist()
        loss = (state.model(x) - y).square().mean()
        mean, ends = state.mean(loss), state.mean(torch.tensor(float(os.path.exists(config["end"]))))
        loss.backward()
        if state.last_part:
            time.sleep(config["pace"])
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, (identity(), samples))
            samples = []
        state.optimizer.step()
        state.optimizer.zero_grad()
        if state.last_part:
            workers, samples_of_all = [worker for worker, _ in parts], [i for _, s in parts for i in s]
            report({"step": state.step, "epoch": state.epoch, "loss": mean, "workers": workers, "samples": samples_of_all})
            if ends:
                break


def main(folder: str) -> None:
    number = 0

    def on_report(metrics):
        nonlocal number
        if number != len(metrics["workers"]):
            number = len(metrics["workers"])
            print("workers", number, flush=True)
        if metrics["step"] % STEPS_PER_LINE == 0:
            print("step", metrics["step"], flush=True)

    config = {"end": f"{folder}/end", "pace": float(os.environ.get("PACE", "0"))}
    scaling = ScalingConfig(num_workers=(1, 3), deterministic=True)
    result = Trainer(loop, train_loop_config=config, scaling_config=scaling, on_report=on_report).fit()
    with open(f"{folder}/out.json", "w") as file:
        json.dump(result.metrics_history, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
