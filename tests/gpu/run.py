"""All tests on a CUDA device, each under its own time limit, with one JSON for all results (at most 9 minutes together).

With --device cpu it rehearses them on the CPU, with the fakes of CUDA and NCCL. Needs Shoal, installed or built, and torch 2.11 or later;
no network, and no Bazel. Binaries that are not there are reported as skipped. Without a device: one sentence and exit code 2.
--json FILE: where the results go; --only PART: as often as needed.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TAIL = 2000  # characters of a part's output that the results keep


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    limit: int  # seconds
    program: str  # a script of this folder, or a binary, by its path from the repository's root
    arguments: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] | None = None  # arguments of the rehearsal; None: it leaves the part out
    environment: tuple[tuple[str, str], ...] = ()


PARTS = (
    Part("kernels beside the CPU's", 40, "fsdp/kernels/cuda/cuda_test", environment=(("SHOAL_TEST_GPU", "1"),)),
    Part("kernels, NCCL with one rank, copies between processes", 60, "tests/gpu/device_check", on_cpu=("--fake",)),
    Part("every way to shard, one rank", 60, "config_t.py", on_cpu=("--device", "cpu")),
    Part("1, 2 and 4 ranks on one device", 110, "ranks.py", on_cpu=("--device", "cpu")),
    Part("a worker joins, dies in a gather, and is replaced", 70, "elastic.py", on_cpu=("--device", "cpu")),
    Part("125 million parameters in small units, beside FSDP2", 40, "beside_fsdp2.py", ("--config", "125M"), on_cpu=("--device", "cpu")),
    Part("1.3 billion parameters, beside FSDP2", 70, "beside_fsdp2.py", ("--config", "1.3B")),
    Part("3 billion parameters, beside FSDP2", 90, "beside_fsdp2.py", ("--config", "3B", "--rounds", "2")),
)


def command_of(part: Part, arguments: tuple[str, ...]) -> list[str] | None:
    """Returns the command line, or None if the binary is not there."""
    if part.program.endswith(".py"):
        return [sys.executable, str(HERE / part.program), *arguments]
    # Bazel's runfiles, its output folder, or what was carried to the machine.
    places = (ROOT / part.program, ROOT / "bazel-bin" / part.program, HERE / "carried" / Path(part.program).name)
    found = next((str(place) for place in places if os.access(place, os.X_OK) and place.is_file()), None)
    return None if found is None else [found, *arguments]


def run(part: Part, arguments: tuple[str, ...]) -> dict:
    command = command_of(part, arguments)
    if command is None:
        return {"part": part.name, "state": "skipped", "why": f"{part.program} is not built"}
    begin = time.monotonic()
    environment = {**os.environ, **dict(part.environment)}
    if (carried := HERE / "carried") in Path(command[0]).parents:
        environment["LD_LIBRARY_PATH"] = str(carried / "lib")
    # A session of its own, so that a part's own processes end with it.
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, state = process.communicate(timeout=part.limit)[0], "passed" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, state = process.communicate()[0], "out of time"
    figures = []
    for line in (line for line in output.splitlines() if line.startswith("{")):
        with contextlib.suppress(ValueError):  # a line that the limit has cut off
            figures.append(json.loads(line))
    print(output, end="", flush=True)
    seconds = round(time.monotonic() - begin, 1)
    return {
        "part": part.name,
        "state": state,
        "code": process.returncode,
        "seconds": seconds,
        "limit": part.limit,
        "figures": figures,
        "end": output[-TAIL:],
    }


def versions(device: str) -> dict:
    import torch

    import shoal

    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    out = {"python": platform.python_version(), "torch": torch.__version__, "shoal": shoal.__version__, "commit": git or "unknown"}
    if device == "cuda":
        out |= {"card": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", default="")
    parser.add_argument("--only", action="append", choices=[p.name for p in PARTS])
    options = parser.parse_args()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"tests/gpu: there is no CUDA device that torch {torch.__version__} can use here; nothing was tested")
        return 2
    results = {"device": options.device, "versions": versions(options.device), "parts": []}
    for part in PARTS:
        arguments = part.on_cpu if options.device == "cpu" else part.arguments
        if arguments is None or (options.only and part.name not in options.only):
            continue
        print(f"tests/gpu: {part.name} (at most {part.limit} s)", flush=True)
        results["parts"].append(run(part, arguments))
        if options.json:  # after each part, so that a machine that is taken back leaves what it has
            Path(options.json).write_text(json.dumps(results, indent=1))
    for result in results["parts"]:
        print(f"tests/gpu: {result['part']}: {result['state']}" + (f", {result['seconds']} s" if "seconds" in result else ""))
    return 0 if all(r["state"] in ("passed", "skipped") for r in results["parts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
