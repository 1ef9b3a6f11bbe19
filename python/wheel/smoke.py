"""Installs a wheel into a fresh environment and uses it like a new user: python smoke.py WHEEL [--cpp]

It runs with the Python of the environment, and needs the package index for the wheel's three dependencies. It takes seconds; with --cpp
(smoke_cpp.py) half a minute.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import shoal, sys
assert {environment!r} in shoal.__file__, shoal.__file__
assert "torch" not in sys.modules
shoal.init(num_cpus=1)

@shoal.remote
class Counter:
    def __init__(self, start):
        self.value = start
    def add(self, n):
        self.value += n
        return self.value

counter = Counter.remote(40)
assert shoal.get(counter.add.remote(2)) == 42
shoal.shutdown()
print("shoal", shoal.__version__)
"""
SCRIPT = """
import os, shoal
assert {environment!r} in shoal.__file__
print("cpus", shoal.cluster_resources()["CPU"])  # it has joined the cluster made for it
"""
SWITCH = "import sys; print('_shoal_switch' in sys.modules, 'torch' in sys.modules)"

wheel = Path(sys.argv[1]).resolve()


def run(*argv, timeout=120, **how):
    process = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout, **how)
    if process.returncode:
        sys.exit(f"smoke: {' '.join(map(str, argv))[:200]}: exit code {process.returncode}\n{process.stdout}{process.stderr}")
    return process.stdout


with tempfile.TemporaryDirectory(prefix="shoal-smoke.") as temporary:
    folder = Path(temporary)
    environment = folder / "venv"
    run(sys.executable, "-m", "venv", environment)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "PYTHON", "VIRTUAL_ENV"))}
    clean |= {"SHOAL_HOME": str(folder / "sessions"), "PATH": "/usr/bin:/bin"}
    run(environment / "bin" / "pip", "install", "-q", "--disable-pip-version-check", wheel, env=clean)
    command, python = environment / "bin" / "shoal", environment / "bin" / "python"

    if not list(environment.rglob("site-packages/shoal/_native.pyi")):
        sys.exit("smoke: the wheel has no stub of the extension module")
    # The binaries use no library of the build machine other than the C and C++ runtimes.
    for binary in [*environment.rglob("site-packages/shoal/_native*.so"), *environment.rglob("site-packages/shoal/bin/shoal")]:
        outside = [
            line for line in run("ldd", binary, env=clean).splitlines() if "=>" in line and str(environment) not in line.split("=>")[1]
        ]
        allowed = ("libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux", "libz.so")
        if strangers := [line.strip() for line in outside if not line.strip().startswith(allowed)]:
            sys.exit(f"smoke: {binary.name} needs what the wheel does not bring: {strangers}")

    run(python, Path(__file__).with_name("smoke_imports.py"), env=clean, cwd=folder)
    said = run(python, "-c", PROGRAM.format(environment=str(environment)), env=clean, cwd=folder).strip()
    if (version := run(command, "--version", env=clean).strip()) != said:
        sys.exit(f"smoke: the command is {version!r}, the package {said!r}")
    if "cannot import" in (doctor := run(command, "doctor", env=clean)) or said.split()[1] not in doctor:
        sys.exit(f"smoke: doctor does not find the package:\n{doctor}")
    for name, value, loaded in (("FSDP", "", "False False"), ("FSDP", "1", "True False"), ("SPMD", "1", "True False")):
        started = run(python, "-c", SWITCH, env={**clean, f"SHOAL_{name}": value}, cwd=folder).strip()
        if started != loaded:
            sys.exit(f"smoke: an interpreter that starts with SHOAL_{name}={value} has the switch and torch: {started}, expected {loaded}")
    script = folder / "job.py"
    script.write_text(SCRIPT.format(environment=str(environment)))
    if "cpus" not in (out := run(command, "submit", script, env=clean, cwd=folder)):  # the script makes no gang, which would need torch
        sys.exit(f"smoke: submit did not show what its script printed:\n{out}")
    limit = time.monotonic() + 5  # a cluster made for a job ends just after it
    while left := [p for p in (folder / "sessions").glob("*/pids/*") if Path("/proc", p.name.partition(".")[2]).exists()]:
        if time.monotonic() > limit:
            sys.exit(f"smoke: still running: {left}")
        time.sleep(0.05)
    if "--cpp" in sys.argv:
        print(run(sys.executable, Path(__file__).with_name("smoke_cpp.py"), command, timeout=900).strip())
tried = f"installed, imported, init, actor, shutdown, {version}, doctor, submit and the switch are fine"
print(f"{wheel.name}: with Python {sys.version.split()[0]} {tried}")
