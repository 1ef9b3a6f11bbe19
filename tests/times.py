"""Measures what building and testing cost from nothing, target by target: `./dev times`.

Bazel builds and tests the workspace in an empty output base without a disk cache, once plainly and once under each sanitizer. Its profiles
have the wall time of each action, which this program adds up by target. The figures grow if the machine has other work.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SANITIZED = ["//runtime/...", "//actors/..."]  # the targets that ./dev test runs under the sanitizers
CONFIGS = {"plain": ["//..."], "asan": SANITIZED, "tsan": SANITIZED}
KINDS = {"Compiling": "compile", "Linking": "link", "Testing": "test"}  # by the first word of an action's progress message


@dataclass
class Run:
    """The times of one configuration: seconds of wall time, and seconds by (target, kind), where kind is compile, link, test or other."""

    build_s: float = 0.0
    test_s: float = 0.0
    failed: bool = False  # Bazel ended with an error, so that figures are missing
    actions: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))


def read_profile(path: Path, into: dict[tuple[str, str], float]) -> None:
    """Adds the seconds of each executed action of a Bazel profile (JSON trace events) to ``into``."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    for event in events:
        if event.get("cat") != "action processing" or "dur" not in event:
            continue
        target = event.get("args", {}).get("target", event["name"])
        into[target, KINDS.get(event["name"].partition(" ")[0], "other")] += event["dur"] / 1e6


def measure(config: str, targets: list[str], base: Path, test: bool) -> Run:
    run = Run()
    flags = ["--disk_cache=", "--experimental_profile_include_target_label", "--experimental_convenience_symlinks=ignore"]
    if config != "plain":
        flags.append(f"--config={config}")
    for command in ["build", "test"] if test else ["build"]:
        profile = base.parent / f"{config}-{command}.gz"
        begin = time.monotonic()
        done = subprocess.run(["bazel", f"--output_base={base}", command, *flags, f"--profile={profile}", "--keep_going", *targets])
        seconds = time.monotonic() - begin
        if done.returncode:
            print(f"times: bazel {command} of {config} ended with {done.returncode}", file=sys.stderr)
            run.failed = True
        if command == "build":
            run.build_s = seconds
        else:
            run.test_s = seconds
        read_profile(profile, run.actions)
    return run


def table(runs: dict[str, Run], rows: int) -> str:
    columns = [(config, kind) for config in runs for kind in ("compile", "link", "test")]
    by_target: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    by_room: dict[str, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    for config, run in runs.items():
        for (target, kind), seconds in run.actions.items():
            by_target[target][config, kind] = seconds
            by_room["/".join(target.partition(":")[0].split("/")[:3])][config, kind] += seconds
    lines = [f"{'seconds':<60}" + "".join(f"{config + ' ' + kind:>15}" for config, kind in columns)]

    def write(name: str, row: dict[tuple[str, str], float]) -> None:
        lines.append(f"{name:<60}" + "".join(f"{row.get(c, 0):>15.1f}" for c in columns))

    largest = sorted(by_target.items(), key=lambda item: -sum(item[1].values()))
    for target, row in largest[:rows]:
        write(target, row)
    lines.append("")
    for room, row in sorted(by_room.items(), key=lambda item: -sum(item[1].values())):
        write(room, row)
    write("all", {c: sum(row.get(c, 0) for row in by_target.values()) for c in columns})
    lines.append("")
    for config, run in runs.items():
        lines.append(f"{config}: wall {run.build_s:.0f} s to build, {run.test_s:.0f} s to test")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev times", description=__doc__.partition("\n")[0])
    parser.add_argument("--config", choices=CONFIGS, action="append", help="only this one (may be given again)")
    parser.add_argument("--no-test", action="store_true", help="only build")
    parser.add_argument("--rows", type=int, default=60, help="how many targets to print (60)")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-times."))
    base = folder / "base"
    try:
        chosen = arguments.config or list(CONFIGS)
        runs = {c: measure(c, CONFIGS[c], base, not arguments.no_test) for c in chosen}
    finally:
        subprocess.run(["bazel", f"--output_base={base}", "shutdown"], stderr=subprocess.DEVNULL)
        subprocess.run(["chmod", "-R", "u+w", str(base)], stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    print(table(runs, arguments.rows))
    if arguments.json:
        rows = [{"config": c, "target": t, "kind": k, "seconds": s} for c, run in runs.items() for (t, k), s in sorted(run.actions.items())]
        arguments.json.write_text(json.dumps(rows, indent=1))
    if any(run.failed for run in runs.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
