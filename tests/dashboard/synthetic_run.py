"""Writes the folder of a run (docs/runs.md) without training anything: its numbers come from a seed.

    run = SyntheticRun(folder, ranks=4, hosts=2, trouble="straggler")
    run.advance(400)   # so many steps more
    run.end(0)         # the ranks end, and exit.json says how

As a program: `python synthetic_run.py FOLDER --ranks 4 --steps 400 --trouble straggler`; with --live it goes on until Ctrl-C.

Troubles: `straggler` (the last rank computes 31 % slower from the middle of each `advance`), `killed` (the last rank dies there, and
the others go on without it), `nan` (the loss is no number any more from there on), `hostile` (names are HTML and control characters).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

ACTIVITIES = ["out", "load", "fwd", "bwd", "opt", "save", "gather", "reduce", "window", "sync", "ended"]
MAGIC = 0x31766C6C616F6873
GIB = 1 << 30
HOSTILE = "<img src=x onerror=\"document.title='owned'\">\u202e\x1b[31m</script>"


class Process:
    """One process of the run: its folder and what it has open."""

    def __init__(self, run: SyntheticRun, rank: int, host: str, local_rank: int) -> None:
        self.run, self.rank, self.host, self.alive = run, rank, host, True
        self.pid = os.getpid() if run.own_pid else 4000 + rank
        self.folder = run.folder / "processes" / f"{host if not run.hostile else 'host'}-{4000 + rank}-{run.start}"
        self.folder.mkdir(parents=True)
        self.rng = random.Random(run.seed * 1009 + rank)
        self.cpu = self.runq = self.at_us = 0
        self.activity, self.since, self.unit = "fwd", run.now, -1
        who = {
            "schema": "shoal.process/1",
            "role": "rank",
            "rank": rank,
            "world": run.world,
            "host": host,
            "pid": self.pid,
            "start": run.start,
            "local_rank": local_rank,
            "units": run.units,
            "device": "cpu",
            "argv": ["train.py", "--layers", str(len(run.units) - 1)],
        }
        (self.folder / "process.json").write_text(json.dumps(who))
        self.append("events.0-0", {"t": run.start, "kind": "begin"})
        kinds = {"weights": 310 << 20, "gradients": 310 << 20, "optimizer": 620 << 20}
        self.append("events.0-0", {"t": run.start + 1_000_000, "kind": "memory", "kinds": kinds, "predicted": kinds | {"unit": 64 << 20}})
        self.live()

    def append(self, name: str, row: dict[str, Any]) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def live(self, activity: str | None = None) -> None:
        run = self.run
        if activity:
            self.activity, self.since = activity, run.now
        number = ACTIVITIES.index(self.activity if self.alive else "ended")
        page = struct.pack(
            "<QqqqqQIIIIii56x",
            *(MAGIC, self.pid, run.start, run.now, self.since, run.step),
            *(self.rank, run.world, run.generation, number, self.unit, self.pid),
        )
        (self.folder / "live").write_bytes(page)
        os.utime(self.folder / "live", ns=(run.now * 1000, run.now * 1000))


class SyntheticRun:
    def __init__(
        self,
        folder: str | Path,
        *,
        ranks: int = 4,
        hosts: int = 2,
        layers: int = 6,
        step_us: int = 180_000,
        trouble: str = "",
        seed: int = 1,
        start: int | None = None,
        own_pid: bool = False,
    ) -> None:
        self.folder, self.seed, self.trouble, self.own_pid = Path(folder), seed, trouble, own_pid
        self.hostile = trouble == "hostile"
        self.rng = random.Random(seed)
        self.start = start if start is not None else 1_790_000_000_000_000
        self.now, self.step, self.generation, self.world, self.step_us = self.start, 0, 1, ranks, step_us
        self.units = ["", *(HOSTILE if self.hostile and i == 0 else f"layers.{i}" for i in range(layers))]
        self.begun = self.now
        self.trouble_from: int | None = None
        self.next_sample = self.now
        self.now += 1_500_000
        names = [HOSTILE if self.hostile else "abcdefgh"[i % 8] + ("" if i < 8 else str(i // 8)) for i in range(hosts)]
        per_host = math.ceil(ranks / hosts)
        self.processes = [Process(self, r, names[min(r // per_host, hosts - 1)], r % per_host) for r in range(ranks)]

    @property
    def alive(self) -> list[Process]:
        return [p for p in self.processes if p.alive]

    def advance(self, steps: int) -> None:
        if self.trouble and self.trouble_from is None:
            self.trouble_from = self.step + steps // 2 + 1
        for _ in range(steps):
            if self.step + 1 == self.trouble_from and self.trouble == "killed":
                self.kill(self.processes[-1])
            self.one_step()
        for process in self.alive:
            process.live("gather" if process is not self.processes[-1] else "fwd")

    def keep_up(self) -> None:
        """Goes on from the time of day: for a run that is watched while it goes on."""
        self.now = max(self.now, time.time_ns() // 1000)
        for process in self.alive:
            process.live(process.activity)

    def one_step(self) -> None:
        self.step += 1
        begin, straggles = self.now, self.trouble == "straggler" and self.step >= (self.trouble_from or 0)
        parts: list[dict[str, int]] = []
        for p in self.alive:
            slow = 1.31 if straggles and p is self.processes[-1] else 1.0
            share = {"load": 0.03, "fwd": 0.27, "bwd": 0.5, "opt": 0.06, "out": 0.01}
            part = {k: int(v * self.step_us * slow * p.rng.uniform(0.98, 1.02)) for k, v in share.items()}
            part["save"] = int(0.9 * self.step_us) if self.step % 100 == 0 and p.rank == 0 else 0
            parts.append(part)
        wire = int(0.03 * self.step_us)
        total = max(sum(part.values()) for part in parts) + 3 * wire
        self.now = begin + total
        detailed = self.step % self.detail_every == 0
        for p, part in zip(self.alive, parts, strict=True):
            wait = total - sum(part.values())
            part["gather"], part["window"] = wait * 3 // 10, wait // 10
            part["reduce"] = wait - part["gather"] - part["window"]
            p.cpu += sum(part[k] for k in ("load", "fwd", "bwd", "opt", "out"))
            p.runq += part["fwd"] // 4 if straggles and p is self.processes[-1] else 100
            row = {"step": self.step, "n": 1, "rank": p.rank, "world": self.world, "gen": self.generation, "end": self.now, "us": total}
            p.append("steps.0-0", row | {k: part.get(k, 0) for k in ACTIVITIES[:-1]} | {"cpu": sum(part.values()) - wait, "max": total})
            if detailed:
                p.append("spans.0-0", {"step": self.step, "rank": p.rank, "begin": begin, "spans": self.spans(part)})
        self.report()
        while self.next_sample < self.now:
            self.sample()

    @property
    def detail_every(self) -> int:
        return 1 << max(0, math.ceil(math.log2(2_000_000 / self.step_us)))

    def spans(self, part: dict[str, int]) -> list[list[Any]]:
        """Units in turn: each waits for its parameters inside the forward, and for its gradients at the end of the backward."""
        at, out = 0, [["load", -1, 0, part["load"]]]
        at += part["load"]
        n = len(self.units)
        for name, wait, order in (("fwd", "gather", range(n)), ("bwd", "reduce", reversed(range(n)))):
            for unit in order:
                begin, held = at, part[wait] // n
                out.append([wait, unit, at, held])
                at += held + part[name] // n
                out.append([name, unit, begin, at - begin])
        for name in ("window", "opt", "save"):
            if part[name]:
                out.append([name, -1, at, part[name]])
                at += part[name]
        return out

    def report(self) -> None:
        first = self.alive[0]
        bad = self.trouble == "nan" and self.step >= (self.trouble_from or 0)
        loss = 1.6 + 3.2 * math.exp(-self.step / 180) + self.rng.gauss(0, 0.03)
        values: dict[str, Any] = {"loss": "nan" if bad else loss, "grad_norm": abs(self.rng.gauss(1.1, 0.12)), "lr": 3e-4}
        if self.hostile:
            values[HOSTILE] = 1.0
        first.append("metrics.0-0", {"t": self.now, "step": self.step, "values": values})
        if bad and self.step == self.trouble_from:
            first.append("events.0-0", {"t": self.now, "kind": "not_finite", "what": "loss", "step": self.step})
        if self.step % 100 == 0:
            path = f"/checkpoints/{HOSTILE if self.hostile else 'run'}/step-{self.step}"
            first.append(
                "events.0-0",
                {"t": self.now, "kind": "save", "path": path, "step": self.step, "bytes": 1_288_490_188, "us": int(0.9 * self.step_us)},
            )

    def sample(self) -> None:
        self.next_sample += 1_000_000
        for p in self.alive:
            rss = int((1.4 + 0.5 * (1 - math.exp(-self.step / 60))) * GIB + p.rng.uniform(0, 30 << 20))
            slow = self.trouble == "straggler" and self.trouble_from is not None and self.step >= self.trouble_from
            row = {"t": self.next_sample, "n": 1, "rss": rss, "cpu": p.cpu, "runq": p.runq, "faults": 12}
            row |= {"host_free": 22 * GIB - 2 * rss, "host_total": 32 * GIB, "disk_free": 180 * GIB - self.step * (1 << 20)}
            pressure = 38.5 if slow and p.host == self.processes[-1].host else 1.2
            p.append("samples.0-0", row | {"psi_cpu": pressure, "psi_io": 0.4, "psi_mem": 0.0, "step": self.step})

    def kill(self, process: Process) -> None:
        process.alive = False
        self.generation, self.world = self.generation + 1, self.world - 1
        pause = {"detect": 4_200, "agree": 31_000, "reshard": 212_000, "next_step": 48_000}
        driver = self.processes[0]
        death = {"kind": "death", "rank": process.rank, "host": process.host, "cause": "killed by signal 9 (SIGKILL)"}
        driver.append("events.0-0", {"t": self.now} | death)
        self.now += sum(pause.values())
        event = {"t": self.now, "kind": "generation", "generation": self.generation, "world": self.world, "cause": "dies"}
        more = {"workers": [p.rank for p in self.alive], "pause_us": sum(pause.values()), "phases": pause}
        driver.append("events.0-0", event | more | {"bytes": 3 << 28, "steps_lost": 0})

    def verdict(self, sentence: str, **fields: Any) -> None:
        """An event as `shoal run` writes it when it finds a trouble."""
        self.processes[0].append("events.0-0", {"t": self.now, "kind": "verdict", "sentence": sentence, **fields})

    def end(self, code: int, cause: str = "") -> None:
        for process in self.alive:
            process.append("events.0-0", {"t": self.now, "kind": "end", "code": code, "cause": cause or "the program has ended"})
            process.alive = False
            process.live()
        record = {"schema": "shoal.exit/1", "exit_code": code, "cause": cause, "rank": None if code == 0 else 0, "retryable": code != 0}
        (self.folder / "exit.json").write_text(json.dumps(record | {"checkpoint": None, "unix_s": self.now // 1_000_000}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-us", type=int, default=180_000)
    parser.add_argument("--trouble", default="", choices=["", "straggler", "killed", "nan", "hostile"])
    parser.add_argument("--live", action="store_true", help="go on in real time until Ctrl-C")
    options = parser.parse_args()
    length = options.steps * options.step_us * 13 // 10
    start = time.time_ns() // 1000 - length
    run = SyntheticRun(
        options.folder,
        ranks=options.ranks,
        hosts=options.hosts,
        step_us=options.step_us,
        trouble=options.trouble,
        start=start,
        own_pid=options.live,
    )
    run.advance(options.steps)
    if not options.live:
        run.end(0)
    while options.live:
        run.keep_up()
        time.sleep(options.step_us / 1e6)
        run.advance(1)


if __name__ == "__main__":
    main()
