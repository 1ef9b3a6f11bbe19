"""The other peer of recovery_train.py: torchft with two replica groups of one process each, one of which is killed. It prints a line of
JSON.

  python recovery_torchft.py --config M --kills 3 --heartbeat-ms 400 --join-ms 100 --timeout 5
Figures: of each kill, the seconds until the survivor's next committed step; the durations of steps of both groups.
"""

import argparse
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import gpt

QUIET = 6  # steps of both groups before a kill
LIMIT_S = 200


def train(options):
    """One replica group. It appends a line of JSON per committed step to its log."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torchft import Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    config, limit = gpt.CONFIGS[options.config], timedelta(seconds=options.timeout)
    model = gpt.build(config, seed=options.group + os.getpid())  # other values in each life: only healing can make them equal
    inner = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"group{options.group}",
        hostname="127.0.0.1",
    )
    optimizer, tokens, size = Optimizer(manager, inner), gpt.stream(config), config["batch"]
    with Path(options.folder, str(options.group)).open("a", buffering=1) as log:
        while True:
            step = manager.current_step()
            x, y = gpt.batch(tokens, config, step, 2 * size, options.group * size, (options.group + 1) * size)
            optimizer.zero_grad()  # begins the quorum
            F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            gradients = [p.grad for p in model.parameters()]
            flat = torch.cat([g.flatten() for g in gradients])
            manager.allreduce(flat).wait()
            for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                g.copy_(part.view_as(g))
            optimizer.step()  # commits, or does nothing
            if manager.current_step() > step:
                line = {"at": time.perf_counter(), "pid": os.getpid(), "groups": manager.num_participants()}
                log.write(json.dumps(line) + "\n")


class Groups:
    """Both replica groups and their lighthouse."""

    def __init__(self, options, folder: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._options, self._folder = options, folder
        program = Path(sys.executable).with_name("torchft_lighthouse")
        settings = ["--heartbeat_timeout_ms", options.heartbeat_ms, "--join_timeout_ms", options.join_ms, "--quorum_tick_ms", 100]
        argv = [program, "--bind", f"[::]:{port}", "--min_replicas", 1, *settings]
        self._lighthouse = subprocess.Popen([str(a) for a in argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._environment = os.environ | {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        self.processes = [self._start(0), self._start(1)]

    def _start(self, group: int) -> subprocess.Popen:
        o = self._options
        argv = [sys.executable, __file__, "--group", group, "--folder", self._folder, "--config", o.config, "--timeout", o.timeout]
        with Path(self._folder, f"errors{group}").open("a") as errors:
            return subprocess.Popen([str(a) for a in argv], env=self._environment, stdout=subprocess.DEVNULL, stderr=errors)

    def kill_second(self) -> float:
        at = time.perf_counter()
        self.processes[1].send_signal(signal.SIGKILL)
        self.processes[1].wait()
        self.processes[1] = self._start(1)
        return at

    def steps(self, group: int) -> list[dict]:
        try:
            return [
                json.loads(line) for line in Path(self._folder, str(group)).read_text().splitlines(keepends=True) if line.endswith("\n")
            ]
        except FileNotFoundError:
            return []

    def wait(self, what: str, find):
        end = time.perf_counter() + LIMIT_S
        while time.perf_counter() < end:
            if (found := find()) is not None:
                return found
            time.sleep(0.005)
        errors = [Path(self._folder, f"errors{i}").read_text()[-600:] for i in (0, 1)]
        sys.exit(f"torchft: no {what} within {LIMIT_S} s: {errors}")

    def end(self) -> None:
        for process in (*self.processes, self._lighthouse):
            process.kill()
            process.wait()


def main(options):
    kills, durations = [], []
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        groups = Groups(options, folder)

        def both():
            last = groups.steps(1)[-QUIET:]
            together = len(last) == QUIET and all(s["groups"] == 2 and s["pid"] == groups.processes[1].pid for s in last)
            return last if together else None

        try:
            for _ in range(options.kills):
                last = groups.wait("steps of both groups", both)
                durations += [b["at"] - a["at"] for a, b in itertools.pairwise(last)]
                at = groups.kill_second()
                after = groups.wait("step after a kill", lambda at=at: next((s for s in groups.steps(0) if s["at"] > at), None))
                kills.append(after["at"] - at)
        finally:
            groups.end()
    print(json.dumps({"kill to next step": kills, "step": statistics.median(durations)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", choices=list(gpt.CONFIGS), default="M")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--heartbeat-ms", type=int, default=5000, help="silence after which a group is dead (the default is torchft's)")
    parser.add_argument("--join-ms", type=int, default=60000, help="maximum wait for other groups (the default is torchft's)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds of an operation (the default is torchft's)")
    parser.add_argument("--group", type=int, help="train as this replica group; for the program itself")
    parser.add_argument("--folder")
    chosen = parser.parse_args()
    if chosen.group is None:
        main(chosen)
    else:
        train(chosen)
