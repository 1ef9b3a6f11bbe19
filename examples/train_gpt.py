"""Trains a small GPT on the source code of Python's standard library, byte by byte, on a few workers that come and go.

    python examples/train_gpt.py                                a cluster of its own, two workers; a third one joins, and one is killed
    python examples/train_gpt.py --fixed                        the number of workers stays as it is
    shoal submit examples/train_gpt.py --num-workers 4          as a job of the cluster that runs (shoal start --head)
    python examples/train_gpt.py --resume --steps 1000          on from the checkpoint, with any number of workers

The model is sharded: each worker keeps its rows of every parameter, gradient and moment. Afterwards one plain process trains alike, on
PyTorch without Shoal, and out/loss.png shows both.

No worker is added or killed with --fixed, --resume or --num-workers 1, and where --batch or --validation-windows has no window for one
worker more. In a cluster that runs already, `shoal scale` adds workers, and the training survives their deaths, unless it is --fixed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

# set before torch is imported: threads that wait actively are slow on cores that others use
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

import shoal
import shoal.checkpoint
import shoal.train
from shoal.train import Change, Result, ScalingConfig, State, Trainer

# ---- the model ---------------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(self.norm1(x_BTD)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.proj(y.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))


class GPT(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.token, self.position = nn.Embedding(256, c["width"]), nn.Embedding(c["context"], c["width"])
        self.blocks = nn.ModuleList(Block(c["width"], c["heads"]) for _ in range(c["layers"]))
        self.norm, self.head = nn.LayerNorm(c["width"]), nn.Linear(c["width"], 256, bias=False)
        g = torch.Generator().manual_seed(c["seed"])
        for name, p in self.named_parameters():  # from one generator, so that every rank has the same initial values
            if p.dim() == 2:
                last = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c["layers"]) if last else 0.02, generator=g)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.token(ids_BT) + self.position.weight[: ids_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


# ---- the data ----------------------------------------------------------------------------------------------------------------------


def read_stdlib() -> tuple[bytes, bytes]:
    """(training, held-out) bytes: every 16th file is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    files = sorted(f for f in root.rglob("*.py") if not skip & set(f.relative_to(root).parts))
    texts = [f.read_bytes() for f in files]
    held_out = texts[15::16] or texts[-1:]
    return b"".join(t for i, t in enumerate(texts) if i % 16 != 15), b"".join(held_out)


class Windows(Dataset):
    """The text in pieces of ``context`` bytes, each with the byte behind it: the model predicts the next byte for every byte of a piece."""

    def __init__(self, text: bytes, context: int):
        self.bytes, self.context = torch.frombuffer(bytearray(text), dtype=torch.uint8), context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.bytes[i * self.context : (i + 1) * self.context + 1]


class Shuffled(Sampler):
    """Another order of the windows in each epoch, which the seed decides."""

    def __init__(self, num_windows: int, seed: int):
        self.num_windows, self.seed, self.epoch = num_windows, seed, 0

    def __len__(self) -> int:
        return self.num_windows

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(self.num_windows, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch))
        return iter(order.tolist())


def read_data(c: dict) -> tuple[DataLoader, Windows]:
    """Returns the loader, whose batches are those of all workers together, and the held-out windows."""
    text, held_out = (Windows(t, c["context"]) for t in read_stdlib())
    loader = DataLoader(text, batch_size=c["batch"], sampler=Shuffled(len(text), c["seed"]), num_workers=c["loaders"])
    return loader, held_out


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    ids = windows.long()
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, held_out: Windows, c: dict) -> float:
    """The mean over some held-out windows, of which each worker takes a part."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    at = torch.linspace(0, len(held_out) - 1, c["validation_windows"]).long().tolist()
    at = at[rank * len(at) // world : (rank + 1) * len(at) // world]
    parts = [torch.stack([held_out[i] for i in at[n : n + 16]]) for n in range(0, len(at), 16)]
    total = sum(loss_of(model, part) * len(part) for part in parts)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.item() / c["validation_windows"]


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, c: dict) -> None:
    """Warm-up, then the inverse square root of the step, whatever the run's last step is."""
    for group in optimizer.param_groups:
        group["lr"] = c["lr"] * min(step / c["warmup"], math.sqrt(c["warmup"] / step))


class History:
    """The losses so far: of each step, and the held-out ones as [step, loss]."""

    def __init__(self):
        self.loss: list[float] = []
        self.validation: list[list[float]] = []

    def validate(self, step: int, model: nn.Module, held_out: Windows, c: dict) -> dict[str, float]:
        """Adds the held-out loss after a step, where one is due. Returns it as metrics."""
        due = step > 0 and (step % c["validate_every"] == 0 or step == c["steps"])
        if not due or (self.validation and self.validation[-1][0] == step):
            return {}
        self.validation.append([step, held_out_loss(model, held_out, c)])
        return {"validation": self.validation[-1][1]}

    def state_dict(self) -> dict[str, list]:
        return {"loss": self.loss, "validation": self.validation}

    def load_state_dict(self, saved: dict[str, list]) -> None:
        self.loss, self.validation = list(saved["loss"]), list(saved["validation"])


def train(c: dict) -> dict:
    """Trains to step ``c["steps"]`` with the other workers, whose number may change at every step."""
    from shoal.fsdp import fully_shard, step_graph
    from shoal.optim import AdamW

    model = GPT(c)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.1)
    state = State(model=model, optimizer=optimizer, history=History())
    if c["resume"] and not shoal.train.get_context().joins:
        state.load_state_dict(shoal.checkpoint.load(c["checkpoint"], model, optimizer))
    loader, held_out = read_data(c)

    def step(windows: torch.Tensor, state: State) -> None:
        """One step, which runs again if a worker dies during it. ``state`` has all that changes, so that it is restored before. The report
        comes last, so that it is made once."""
        metrics = state.history.validate(state.step - 1, model, held_out, c)
        set_learning_rate(optimizer, state.step, c)
        loss = loss_of(model, windows)
        metrics["loss"] = state.mean(loss)
        state.history.loss.append(metrics["loss"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        updates = next(int(s["step"]) for s in optimizer.state.values())
        metrics |= {"step": state.step, "updates": updates, "workers": dist.get_world_size(), "pid": os.getpid()}
        shoal.train.report(metrics)
        if state.step % c["validate_every"] == 0 and state.step < c["steps"]:
            save(c, state)

    first = state.step
    shoal.train.run(step, loader, state, max_steps=c["steps"])
    if dist.get_rank() == 0 and state.step > first + 1:
        step_graph(model).to_perfetto(c["timeline"])
    state.history.validate(state.step, model, held_out, c)
    save(c, state)
    return {**state.history.state_dict(), "sample": sample(model, c)}


def save(c: dict, state: State) -> None:
    about = {**state.state_dict(), "config": {k: c[k] for k in OF_THE_RUN}}
    shoal.checkpoint.save(c["checkpoint"], state.model, state.optimizer, state=about)


def train_plain(c: dict, on_step: Callable[[dict], None]) -> dict:
    """Trains the same model in one process, on plain PyTorch, for comparison."""
    model, history, step = GPT(c), History(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.1)
    loader, held_out = read_data(c)
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for windows in itertools.islice(loader, c["steps"] - step):
            step += 1
            metrics = history.validate(step - 1, model, held_out, c)
            set_learning_rate(optimizer, step, c)
            loss = loss_of(model, windows)
            history.loss.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            on_step({**metrics, "step": step, "loss": history.loss[-1], "workers": 1})
        if step == c["steps"]:
            break
    history.validate(step, model, held_out, c)
    return history.state_dict()


@torch.no_grad()
def sample(model: GPT, c: dict) -> str:
    """Lets the model write a text. Every rank draws the same bytes, because a sharded forward needs all ranks."""
    g = torch.Generator().manual_seed(c["seed"])
    text = list(b"def ")
    for _ in range(c["sample_bytes"]):
        logits = model(torch.tensor([text[-c["context"] :]]))[0, -1]
        text.append(int(torch.multinomial((logits / 0.7).softmax(0), 1, generator=g)))
    return bytes(text).decode(errors="replace")


# ---- the driver --------------------------------------------------------------------------------------------------------------------

# Settings that a resumed run must keep.
OF_THE_RUN = ("layers", "width", "heads", "context", "batch", "lr", "warmup", "seed", "validation_windows")


class Progress:
    """Shows progress: one rewritten line on a terminal, otherwise a line at intervals."""

    def __init__(self, c: dict):
        self.steps, self.tokens, self.live = c["steps"], c["batch"] * c["context"], sys.stdout.isatty()
        self.began = self.last = time.perf_counter()
        self.first, self.seconds, self.validation = None, 0.0, ""

    def __call__(self, m: dict) -> None:
        step, now = m["step"], time.perf_counter()
        name = f"{m['workers']} workers" if m["workers"] > 1 else "one process"
        if self.first is None:
            print(f"{name}: the first step was done after {now - self.began:.1f} s", flush=True)
            self.began, self.first = now, step
        # The first step starts threads and loaders, so its duration is not representative.
        self.seconds = now - self.last if step <= self.first + 1 else 0.9 * self.seconds + 0.1 * (now - self.last)
        self.last, left = now, (self.steps - step) * (now - self.began) / max(1, step - self.first)
        if "validation" in m:
            self.validation = f"  held-out {m['validation']:.4f}"
        if self.live:  # the next output begins in the same line
            print(f"\x1b[K{name}: {self.line(m, left)}", end="\n" if step == self.steps else "\r", flush=True)
        elif step == self.steps or step % max(1, self.steps // 20) == 0:
            print(f"{name}: {self.line(m, left)}", flush=True)

    def line(self, m: dict, left: float) -> str:
        at, rate = f"step {m['step']}/{self.steps}  loss {m['loss']:.4f}", self.tokens / self.seconds
        return f"{at}{self.validation}  {rate:,.0f} tokens/s  ETA {int(left) // 60}:{int(left) % 60:02d}"


class Show:
    """Adds a worker to a training, and later kills rank 0, as a crash would."""

    def __init__(self, workers: int, steps: int):
        self.workers, self.pause, self.kill_until = workers, max(1, steps // 8), steps - max(1, steps // 8)
        self.scaled_at = self.joined_at = 0

    def __call__(self, trainer: Trainer, m: dict) -> None:
        step = m["step"]
        if not self.scaled_at and step >= self.pause:
            self.scaled_at = step
            trainer.scale(self.workers + 1)  # the worker starts in the background, and joins when it is ready
        elif not self.joined_at and m["workers"] > self.workers:
            self.joined_at = step
        elif self.joined_at and self.joined_at + self.pause <= step <= self.kill_until:
            self.kill_until = 0
            threading.Timer(0.02, os.kill, (m["pid"], signal.SIGKILL)).start()  # within the next step


def name_of(change: Change) -> str:
    what = "a worker dies" if change.died else "a worker joins" if change.workers > change.workers_before else "a worker leaves"
    return f"{what}: {change.workers_before} -> {change.workers}"


def draw(path: Path, ours: dict, reference: dict | None, workers: str, changes: list[Change]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5))
    axes = figure.subplots()
    runs = [(ours, workers, {"color": "tab:blue", "lw": 0.9}, {"color": "tab:green", "ms": 4, "fmt": "o-"})]
    if reference:
        wide = {"color": "tab:orange", "alpha": 0.5}
        runs.insert(0, (reference, "one plain process", {**wide, "lw": 3}, {**wide, "ms": 9, "fmt": "s"}))
    for run, name, line, dots in runs:
        axes.plot(range(1, len(run["loss"]) + 1), run["loss"], label=f"training, {name}", **line)
        axes.errorbar(*zip(*run["validation"], strict=True), label=f"held-out, {name}", **dots)
    for change in changes:
        axes.axvline(change.step + 0.5, color="0.4", ls="--", lw=1)
        axes.text(change.step + 0.5, 0.5, name_of(change), transform=axes.get_xaxis_transform(), rotation=90, ha="right", va="center")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title="A GPT on the standard library's sources")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def largest_difference(ours: dict, reference: dict) -> float:
    """The largest relative difference, over all training and held-out losses."""
    theirs = dict(reference["validation"])  # after --resume, `ours` also has the loss at the last step of the run before
    pairs = [(loss, theirs[step]) for step, loss in ours["validation"] if step in theirs]
    pairs += zip(ours["loss"], reference["loss"], strict=True)
    return max(abs(a - b) / abs(b) for a, b in pairs)


def lost_and_repeated(history: list[dict]) -> tuple[int, int]:
    """Returns how many steps were never applied, and how many were applied twice, by the optimizer's own count of updates."""
    lost, repeated, before = 0, 0, {"step": 0, "updates": 0}
    for m in history:
        more = (m["updates"] - before["updates"]) - (m["step"] - before["step"])
        lost, repeated, before = lost + max(0, -more), repeated + max(0, more), m
    return lost, repeated


def arguments() -> tuple[argparse.Namespace, str]:
    """Returns the arguments, and the command line's words that a resumed run must repeat."""

    class OneSentence(argparse.ArgumentParser):
        def error(self, message):
            self.exit(2, f"{self.prog}: {message}; see --help\n")

    def number(low: float, kind: type = int):
        def parse(text: str):
            if not low <= (value := kind(text)) < math.inf:
                raise argparse.ArgumentTypeError(f"{text} is less than {low}" if value < low else f"{text} is no finite number")
            return value

        parse.__name__ = "number"
        return parse

    p = OneSentence(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--num-workers", type=number(1), default=2, help="ranks")
    p.add_argument("--steps", type=number(1), default=500, help="where the run ends")
    p.add_argument("--fixed", action="store_true", help="add and kill no worker")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    p.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    p.add_argument("--seed", type=number(0), default=0, help="of the start, the order of the data and the sample")
    for name, default in (("layers", 3), ("width", 128), ("heads", 4)):
        p.add_argument(f"--{name}", type=number(1), default=default)
    p.add_argument("--context", type=number(1), default=64, help="bytes")
    p.add_argument("--batch", type=number(1), default=24, help="windows in a step, of all workers together")
    p.add_argument("--lr", type=number(0.0, float), default=3e-3, help="peak learning rate")
    p.add_argument("--warmup", type=number(1), default=40, help="steps until the peak")
    p.add_argument("--validate-every", type=number(1), default=100, help="steps between held-out losses and checkpoints")
    p.add_argument("--validation-windows", type=number(1), default=64)
    p.add_argument("--loaders", type=number(0), default=1, help="DataLoader workers of each rank")
    p.add_argument("--sample-bytes", type=number(0), default=400)
    p.add_argument("--no-reference", action="store_true", help="leave out the plain PyTorch run")
    a = p.parse_args()
    if a.width % a.heads:
        p.error(f"--width {a.width} is no multiple of --heads {a.heads}")
    for name in ("batch", "validation_windows"):
        if getattr(a, name) < a.num_workers:
            p.error(f"--{name.replace('_', '-')} {getattr(a, name)} leaves some of the {a.num_workers} workers without a window")
    a.show = not (a.fixed or a.resume) and 1 < a.num_workers < min(a.batch, a.validation_windows)
    given = {"out": shlex.quote(str(a.out)), **{k: getattr(a, k) for k in OF_THE_RUN if getattr(a, k) != p.get_default(k)}}
    return a, " ".join(f"--{k.replace('_', '-')} {v}" for k, v in given.items())


def main() -> None:
    a, again = arguments()
    out = a.out.absolute()
    c = {**vars(a), "out": str(out), "checkpoint": str(out / "checkpoint"), "timeline": str(out / "timeline.json")}
    try:
        out.mkdir(parents=True, exist_ok=True)
        if a.resume:
            saved = shoal.checkpoint.read_manifest(c["checkpoint"]).state
            if "config" not in saved:
                sys.exit(f"train_gpt: the checkpoint in {c['checkpoint']} is of another program")
            for k in OF_THE_RUN:
                if (was := saved["config"][k]) != c[k]:
                    sys.exit(f"train_gpt: the checkpoint was trained with --{k.replace('_', '-')} {was}, not {c[k]}: pass that")
            if saved["step"] >= a.steps:
                sys.exit(f"train_gpt: the checkpoint is at step {saved['step']} already: pass a larger --steps")
        elif (out / "checkpoint").exists():
            shutil.rmtree(out / "checkpoint.before", ignore_errors=True)
            (out / "checkpoint").rename(out / "checkpoint.before")
            print(f"the checkpoint of an earlier run is kept as {a.out}/checkpoint.before (--resume goes on from it)")
    except OSError as error:
        sys.exit(f"train_gpt: --out {a.out} cannot be written: {error.strerror}")
    except shoal.exceptions.ShoalError as error:
        sys.exit(f"train_gpt: {error}")

    began = time.perf_counter()
    try:
        result = fit(a, c)
    except shoal.exceptions.ResourceExhausted as error:
        sys.exit(f"train_gpt: {error}")
    shoal.shutdown()
    seconds = time.perf_counter() - began
    ours, reference = result.returns[0], None
    if not a.no_reference:
        torch.set_num_threads(min(a.num_workers, len(os.sched_getaffinity(0))))
        reference = train_plain(c, Progress(c))
    changes = [dataclasses.asdict(change) for change in result.changes]
    losses = {"workers": {k: ours[k] for k in ("loss", "validation")}, "reference": reference, "changes": changes}
    (out / "losses.json").write_text(json.dumps(losses))
    (out / "sample.txt").write_text(ours["sample"], encoding="utf-8")
    sizes = {a.num_workers, *(change.workers for change in result.changes)}
    workers = " to ".join(str(n) for n in sorted({min(sizes), max(sizes)})) + " workers"
    draw(out / "loss.png", ours, reference, workers, result.changes)
    print(f"\nIt wrote:\n\n    {ours['sample'].strip()}\n".replace("\n", "\n    ").rstrip())
    first, last, held_out = ours["loss"][0], ours["loss"][-1], ours["validation"][-1][1]
    print(f"\nLoss {first:.3f} -> {last:.3f} nats per byte, held-out {held_out:.3f}, {seconds:.0f} s on {workers}.")
    if reference:
        print(f"Largest relative difference to one plain process: {largest_difference(ours, reference):.1e}.")
    if a.show or changes:
        print_changes(result, a.show)
    print_next(a, again, reference is not None)


def fit(a: argparse.Namespace, c: dict) -> Result:
    try:
        shoal.init(address="auto")
        a.show = False
    except shoal.exceptions.Unavailable:  # no cluster runs; CPUs are logical, so more workers than cores are slow but correct
        shoal.init(address="local", num_cpus=max(a.num_workers + a.show, len(os.sched_getaffinity(0))))
    scaling, progress, show = ScalingConfig(num_workers=a.num_workers), Progress(c), Show(a.num_workers, a.steps)
    if not (a.fixed or a.resume):
        scaling = ScalingConfig(num_workers=(1, min(a.batch, a.validation_windows)), initial_workers=a.num_workers)

    def on_report(metrics: dict) -> None:
        progress(metrics)
        if a.show:
            show(trainer, metrics)

    trainer = Trainer(train, train_loop_config=c, scaling_config=scaling, on_report=on_report)
    return trainer.fit()


def print_changes(result: Result, show: bool) -> None:
    for change in result.changes:
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in change.phases.items() if seconds >= 0.01)
        print(f"  after step {change.step}: {name_of(change)} workers, pause {change.seconds:.2f} s{phases and f' ({phases})'}")
    if show and not any(change.died for change in result.changes):
        print("The training ended before a worker had joined and could be killed: pass more --steps.")
    lost, repeated = lost_and_repeated(result.metrics_history)
    print(f"{lost} steps were lost, {repeated} were applied twice.")


def print_next(a: argparse.Namespace, again: str, compared: bool) -> None:
    bin, script = Path(os.path.relpath(sys.executable)).parent, os.path.relpath(sys.argv[0])
    print(f"""
{a.out}/loss.png        the losses{" of both runs" if compared else ""}
{a.out}/timeline.json   the last step of rank 0, planned and measured: open it at https://ui.perfetto.dev
{a.out}/checkpoint      model, optimizer and position of the data, as safetensors

Next:
  {bin / "python"} {script} --resume --steps {2 * a.steps} --num-workers {min(a.num_workers + 1, a.batch)} {again}
      go on from the checkpoint, with one worker more
  {bin / "shoal"} start --head && {bin / "shoal"} submit {script} {again}
      the same as a job of a cluster that stays, and whose number of workers {bin / "shoal"} scale changes""")


if __name__ == "__main__":
    main()
