"""./dev bench NAME [--json FILE]: Shoal beside its peer or its limit, measured in one run. Exit code 1: a missed goal, 2: bad usage."""

import argparse
import importlib
import sys
import time
from pathlib import Path

from launch import PEERS
from report import load

BENCHES = ["first", "actors", "step", "spmd", "parity", "checkpoint", "collectives", "calls", "hosts", "hosts_calls", "head", "optim"]
BENCHES += ["peak", "elastic", "recovery", "backend", "soak", "schedule", "dashboard"]
MODULES = {"hosts": "hosts_data"}  # where the module has another name


def main() -> int:
    benches = {name: importlib.import_module(MODULES.get(name, name)) for name in BENCHES}
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Benches:\n" + "\n".join(f"  {name:10} {b.__doc__.splitlines()[0]}" for name, b in benches.items()),
    )
    names = parser.add_subparsers(dest="name", metavar="NAME")
    for name, bench in benches.items():
        sub = names.add_parser(name, help=argparse.SUPPRESS, description=bench.__doc__)
        sub.add_argument("--json", type=Path, metavar="FILE", help="every sample, and the machine, as JSON")
        bench.add_options(sub)
    options = parser.parse_args()
    if options.name is None:
        print(parser.description)
        return 0
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: no folder {options.json.parent}")
    if getattr(benches[options.name], "NEEDS_PEERS", True) and not PEERS.exists():
        parser.error("no .venv-peers: run this through ./dev bench, which makes it")
    begin, load_before = time.perf_counter(), load()
    report = benches[options.name].measure(options)
    seconds = time.perf_counter() - begin
    print(report.table())
    missed = sum(report.holds(r) is False for r in report.rows)
    goals = sum(r.goal is not None for r in report.rows)
    print(f"{goals - missed} of {goals} goals hold; {seconds:.0f} s; load of the machine before: {load_before:.1f}")
    if options.json:
        options.json.write_text(report.to_json(seconds=seconds, load_before=load_before) + "\n")
    return 0 if report.good() else 1


if __name__ == "__main__":
    sys.exit(main())
