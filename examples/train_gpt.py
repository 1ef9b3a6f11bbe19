"""Trains a small GPT on the source code of Python's standard library, byte by byte, on a few workers.

    python examples/train_gpt.py                                a cluster of its own, two workers
    shoal submit examples/train_gpt.py --num-workers 4          as a job of the cluster that runs (shoal start --head)
    python examples/train_gpt.py --resume --steps 1400          on from the checkpoint, with any number of workers

The model is sharded: each worker keeps its rows of every parameter, gradient and moment. Afterwards the same loop runs once more in this
process, on plain PyTorch without Shoal, and out/loss.png shows both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import sys
import sysconfig
import time
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
from shoal.train import ScalingConfig, Trainer

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
        for name, p in self.named_parameters():  # so that every rank has the same initial values
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
    """The text in pieces of ``context`` bytes; each predicts the byte after every one of its own."""

    def __init__(self, text: bytes, context: int):
        self.bytes, self.context = torch.frombuffer(bytearray(text), dtype=torch.uint8), context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.bytes[i * self.context : (i + 1) * self.context + 1]


class RankSampler(Sampler):
    """Gives this rank's windows at each step. The seed shuffles each epoch, a global batch takes the next samples of it, and each rank
    takes its part. So sample n of the run is the same at every world size, and a position in the run is one number."""

    def __init__(self, num_windows: int, c: dict, rank: int, world: int, start: int):
        self.num_windows, self.seed, self.batch = num_windows, c["seed"], c["batch"]
        self.mine = range(rank * c["batch"] // world, (rank + 1) * c["batch"] // world)
        self.start, self.end = start, c["steps"] * c["batch"]

    def __iter__(self):
        epoch = order = None
        for position in range(self.start, self.end, self.batch):
            windows = []
            for i in self.mine:
                if (position + i) // self.num_windows != epoch:
                    epoch = (position + i) // self.num_windows
                    order = torch.randperm(self.num_windows, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + epoch))
                windows.append(int(order[(position + i) % self.num_windows]))
            yield windows


# ---- the loop: on each worker, and once on plain PyTorch -----------------------------------------------------------------------------


def train(c: dict) -> dict:
    """Trains to step ``c["steps"]`` and returns the results. ``c["sharded"]`` alone distinguishes Shoal from plain PyTorch."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if c["sharded"] else (0, 1)
    model = GPT(c)
    if c["sharded"]:
        from shoal.fsdp import fully_shard, step_graph
        from shoal.optim import AdamW

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        from torch.optim import AdamW
    optimizer = AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), weight_decay=0.1)

    done = {"step": 0, "position": 0, "loss": [], "validation": []}
    if c["resume"]:
        done = shoal.checkpoint.load(c["checkpoint"], model, optimizer)
    first = done["step"]
    text, held_out = (Windows(t, c["context"]) for t in read_stdlib())
    sampler = RankSampler(len(text), c, rank, world, done["position"])
    loader = DataLoader(text, batch_sampler=sampler, num_workers=c["loaders"])

    def loss_of(windows: torch.Tensor, rows: int) -> torch.Tensor:
        """This rank's part of the mean over ``rows`` rows of all ranks."""
        ids = windows.long()
        total = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        return total / (rows * c["context"])

    def over_ranks(loss: torch.Tensor) -> float:
        loss = loss.detach().clone()
        if c["sharded"]:
            dist.all_reduce(loss)
        return loss.item()

    @torch.no_grad()
    def validate() -> float:
        at = torch.linspace(0, len(held_out) - 1, c["validation_windows"]).long().tolist()
        at = at[rank * len(at) // world : (rank + 1) * len(at) // world]
        parts = [torch.stack([held_out[i] for i in at[n : n + 16]]) for n in range(0, len(at), 16)]
        return over_ranks(sum(loss_of(part, c["validation_windows"]) for part in parts))

    clock, tokens = time.perf_counter(), c["batch"] * c["context"]
    for step, windows in enumerate(loader, first + 1):
        for group in optimizer.param_groups:  # warm-up, then the inverse square root of the step, whatever the run's last step is
            group["lr"] = c["lr"] * min(step / c["warmup"], math.sqrt(c["warmup"] / step))
        loss = loss_of(windows, c["batch"])
        (loss * world).backward()  # fully_shard takes the mean over the ranks
        optimizer.step()
        optimizer.zero_grad()
        metrics = {"step": step, "loss": over_ranks(loss), "tokens_per_s": tokens / (time.perf_counter() - clock)}
        clock = time.perf_counter()
        done["loss"].append(metrics["loss"])
        if step % c["validate_every"] == 0 or step == c["steps"]:
            if c["sharded"] and rank == 0 and step > first + 1:
                step_graph(model).to_perfetto(c["timeline"])
            metrics["validation"] = validate()
            done["validation"].append([step, metrics["validation"]])
            done |= {"step": step, "position": step * c["batch"]}
            if c["sharded"]:
                state = {**done, "config": {k: c[k] for k in OF_THE_RUN}}
                shoal.checkpoint.save(c["checkpoint"], model, optimizer, state=state)
            clock = time.perf_counter()
        if c["sharded"]:
            shoal.train.report(metrics)
        elif c["on_step"]:
            c["on_step"](metrics)
    return {**done, "sample": sample(model, c)}


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

    def __init__(self, name: str, steps: int):
        self.name, self.steps, self.live = name, steps, sys.stdout.isatty()
        self.began, self.first, self.speed, self.validation = time.perf_counter(), None, 0.0, ""

    def __call__(self, m: dict) -> None:
        step, now = m["step"], time.perf_counter()
        if self.first is None:
            print(f"{self.name}: the first step was done after {now - self.began:.1f} s", flush=True)
            self.began, self.first = now, step
        # The first step starts threads and loaders, so its speed is not representative.
        self.speed = m["tokens_per_s"] if step <= self.first + 1 else 0.9 * self.speed + 0.1 * m["tokens_per_s"]
        left = (self.steps - step) * (now - self.began) / max(1, step - self.first)
        if "validation" in m:
            self.validation = f"  held-out {m['validation']:.4f}"
        if self.live:
            print(f"\r\x1b[K{self.name}: {self.line(m, left)}", end="\n" if step == self.steps else "", flush=True)
        elif step == self.steps or step % max(1, self.steps // 20) == 0:
            print(f"{self.name}: {self.line(m, left)}", flush=True)

    def line(self, m: dict, left: float) -> str:
        eta = f"{int(left) // 60}:{int(left) % 60:02d}"
        return f"step {m['step']}/{self.steps}  loss {m['loss']:.4f}{self.validation}  {self.speed:,.0f} tokens/s  ETA {eta}"


def draw(path: Path, ours: dict, reference: dict | None, world: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    if reference:
        axes.plot(
            range(1, len(reference["loss"]) + 1),
            reference["loss"],
            color="tab:orange",
            lw=3,
            alpha=0.5,
            label="training, one plain process",
        )
        axes.plot(
            *zip(*reference["validation"], strict=True), "s", color="tab:orange", ms=9, alpha=0.5, label="held-out, one plain process"
        )
    axes.plot(range(1, len(ours["loss"]) + 1), ours["loss"], color="tab:blue", lw=0.9, label=f"training, {world} workers")
    axes.plot(*zip(*ours["validation"], strict=True), "o-", color="tab:green", ms=4, label=f"held-out, {world} workers")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title="A GPT on the standard library's sources")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def largest_difference(ours: dict, reference: dict) -> float:
    """The largest relative difference, over all training and held-out losses."""
    pairs = [*zip(ours["loss"], reference["loss"], strict=True)]
    theirs = dict(reference["validation"])  # validation losses; a resumed run has one more, from the step at which it was interrupted
    pairs += [(loss, theirs[step]) for step, loss in ours["validation"] if step in theirs]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def arguments() -> tuple[argparse.Namespace, str]:
    """Returns the arguments, and those that a resumed run must repeat."""

    class OneSentence(argparse.ArgumentParser):
        def error(self, message):
            self.exit(2, f"{self.prog}: {message}; see --help\n")

    def number(low: float, kind: type = int):
        def parse(text: str):
            value = kind(text)
            if not low <= value < math.inf:
                raise argparse.ArgumentTypeError(f"{text} is less than {low}" if value < low else f"{text} is no finite number")
            return value

        parse.__name__ = "number"
        return parse

    p = OneSentence(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--num-workers", type=number(1), default=2, help="ranks")
    p.add_argument("--steps", type=number(1), default=700, help="where the run ends")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    p.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    p.add_argument("--seed", type=number(0), default=0, help="of the start, the order of the data and the sample")
    p.add_argument("--layers", type=number(1), default=3)
    p.add_argument("--width", type=number(1), default=128)
    p.add_argument("--heads", type=number(1), default=4)
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
    given = {"out": shlex.quote(str(a.out)), **{k: getattr(a, k) for k in OF_THE_RUN if getattr(a, k) != p.get_default(k)}}
    return a, " ".join(f"--{k.replace('_', '-')} {v}" for k, v in given.items())


def main() -> None:
    a, again = arguments()
    out = a.out.absolute()
    c = {**vars(a), "out": str(out), "checkpoint": str(out / "checkpoint"), "timeline": str(out / "timeline.json"), "on_step": None}
    try:
        out.mkdir(parents=True, exist_ok=True)
        if a.resume:
            saved = shoal.checkpoint.read_manifest(c["checkpoint"]).state
            if "config" not in saved:
                sys.exit(f"train_gpt: the checkpoint in {c['checkpoint']} is of another program")
            for k in OF_THE_RUN:
                if saved["config"][k] != c[k]:
                    sys.exit(
                        f"train_gpt: the checkpoint was trained with --{k.replace('_', '-')} {saved['config'][k]}, not {c[k]}: pass that"
                    )
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
    workers = Trainer(
        train,
        train_loop_config={**c, "sharded": True},
        scaling_config=ScalingConfig(num_workers=a.num_workers),
        on_report=Progress(f"{a.num_workers} workers", a.steps),
    )
    try:
        try:
            shoal.init(address="auto")
        except shoal.exceptions.Unavailable:  # no cluster runs; CPUs are logical, so more workers than cores are slow but correct
            shoal.init(address="local", num_cpus=max(a.num_workers, len(os.sched_getaffinity(0))))
        ours = workers.fit().returns[0]
    except shoal.exceptions.ResourceExhausted as error:
        sys.exit(f"train_gpt: {error}")
    shoal.shutdown()
    seconds = time.perf_counter() - began
    reference = None
    if not a.no_reference:
        torch.set_num_threads(min(a.num_workers, len(os.sched_getaffinity(0))))
        reference = train({**c, "sharded": False, "resume": False, "on_step": Progress("one plain process", a.steps)})
    (out / "losses.json").write_text(json.dumps({"workers": {k: ours[k] for k in ("loss", "validation")}, "reference": reference}))
    (out / "sample.txt").write_text(ours["sample"], encoding="utf-8")
    draw(out / "loss.png", ours, reference, a.num_workers)
    summary(a, again, ours, reference, seconds)


def summary(a: argparse.Namespace, again: str, ours: dict, reference: dict | None, seconds: float) -> None:
    first, last, held_out = ours["loss"][0], ours["loss"][-1], ours["validation"][-1][1]
    print(f"\nIt wrote:\n\n    {ours['sample'].strip()}\n".replace("\n", "\n    ").rstrip())
    print(f"\nLoss {first:.3f} -> {last:.3f} nats per byte, held-out {held_out:.3f}, {seconds:.0f} s on {a.num_workers} workers.")
    if reference:
        print(f"Largest relative difference to one plain process: {largest_difference(ours, reference):.1e}.")
    bin = Path(os.path.relpath(sys.executable)).parent
    script = os.path.relpath(sys.argv[0])
    print(f"""
{a.out}/loss.png        the losses{" of both runs" if reference else ""}
{a.out}/timeline.json   the last step of rank 0, planned and measured: open it at https://ui.perfetto.dev
{a.out}/checkpoint      model, optimizer and position of the data, as safetensors

Next:
  {bin / "python"} {script} --resume --steps {2 * a.steps} --num-workers {min(a.num_workers + 1, a.batch)} {again}
      go on from the checkpoint, with one worker more
  {bin / "shoal"} start --head && {bin / "shoal"} submit {script} {again}
      the same as a job of a cluster that stays; look at it: {bin / "shoal"} status""")


if __name__ == "__main__":
    main()
