"""shoal.optim's AdamW beside torch's fused one and the memory bandwidth, with one and two threads, also protected; casts and sums of the
engine (MB/s)."""

import json

from launch import OURS, ROOT, Failed, run, say
from report import Report, Row

NEEDS_PEERS = False
BUILT = ROOT / "bazel-bin" / "tests" / "bench" / "cpp"
THREADS = (1, 2)


def _rows(t):
    n = f", {t} thread{'s' if t > 1 else ''}"
    return [
        Row(f"AdamW{n}", "MB/s", f"shoal's AdamW{n}", f"a += b{n}", goal=(">=", 0.8)),
        Row(f"AdamW{n}", "MB/s", f"shoal's AdamW{n}", f"torch's AdamW{n}", goal=(">=", 1.0)),
        Row(f"AdamW, 300 parameters of 1,000{n}", "s", f"shoal's AdamW, 300 small{n}", f"torch's AdamW, 300 small{n}"),
        Row(f"AdamW, bfloat16 with master weights{n}", "MB/s", f"shoal's AdamW of bfloat16{n}", f"a += b{n}"),
        Row(f"AdamW with undo records{n}", "MB/s", f"protected AdamW{n}", f"AdamW in the node's memory{n}", goal=(">=", 0.85)),
        Row(f"AdamW in memory of the node{n}", "MB/s", f"AdamW in the node's memory{n}", f"AdamW in private memory{n}"),
        Row(f"float32 to bfloat16{n}", "MB/s", f"cast of float32 to bfloat16{n}", f"a += b{n}"),
        Row(f"two bfloat16 summed into float32{n}", "MB/s", f"sum of bfloat16 in float32{n}", f"a += b{n}"),
    ]


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=2, help="repetitions of all, in turn")


def measure(options) -> Report:
    report = Report("optim", [row for t in THREADS for row in _rows(t)])
    for r in range(options.rounds):
        for t in THREADS:
            say(f"bench optim: round {r + 1} of {options.rounds}, threads: {t}")
            n = f", {t} thread{'s' if t > 1 else ''}"
            try:
                measured = json.loads(run([OURS / "python", "update.py"], threads=t))
                lines = [line for name in ("memory", "protected") for line in run([BUILT / name, t]).splitlines()]
                figures = measured["figures"] | {f["name"]: f["mb_per_second"] for f in map(json.loads, lines)}
            except Failed as error:
                report.failures[f"round {r + 1}{n}"] = str(error)
                continue
            report.raw.append({"round": r + 1, "threads": t, "figures": figures})
            for name, values in figures.items():
                report.add(name + n, values)
    return report
