"""The tests of torch's backend and of FSDP2 with another torch than that of requirements.txt, and another Python: the oldest or the newest
supported torch and each supported Python, by turns of days, or those of $SHOAL_TORCH and $SHOAL_OTHER_PYTHON.

Not part of ``bazel test //...``: it installs torch. $SHOAL_TORCH_HOME: a folder in which to keep it. The turn of a Python that is not on
PATH nor in pyenv falls to the present one.
"""

import datetime
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).resolve().parents[2]
DAY = datetime.date.today().toordinal()
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PRESENT = f"{sys.version_info.major}.{sys.version_info.minor}"


def interpreter(version: str) -> str | None:
    """The path of a Python of this version that runs: a shim of pyenv may not."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser(), "versions").glob(f"{version}.*/bin/python")
    for path in [shutil.which(f"python{version}"), *sorted(kept)]:
        if path and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return str(path)
    return None


CHOSEN = os.environ.get("SHOAL_OTHER_PYTHON") or PYTHONS[DAY // 2 % len(PYTHONS)]
OTHER = interpreter(CHOSEN) if CHOSEN != PRESENT else None  # without one: the present Python and its packages
PYTHON = CHOSEN if OTHER else PRESENT
OLDEST, NEWEST = "2.11.0", "2.14.1" if PYTHON == "3.10" else "2.15.0"  # torch 2.15 needs Python 3.11
VERSION = os.environ.get("SHOAL_TORCH") or (OLDEST, NEWEST)[DAY % 2]
# For another Python: what torch and Shoal import, but for torch itself.
PACKAGES = ["cloudpickle", "filelock", "fsspec", "jinja2", "nanobind-backend", "networkx", "numpy", "pytest", "pyyaml", "safetensors"]
PACKAGES += ["setuptools", "sympy", "typing_extensions"]
LIMIT_S = 1500
TESTS = [  # with two ranks; what the record says of this version's names
    ["tests/torch_versions/names_test.py"],
    ["tests/torch_backend", "-k", "not 1] and not 3] and not 4]"],
    ["tests/parity/fsdp_later_test.py"],
    # torch's errors, with the oldest torch that has all the names in them
    *([] if VERSION == OLDEST else [["tests/parity/fsdp_uses_test.py"]]),
]


@pytest.fixture(scope="session")
def python(tmp_path_factory) -> Path:
    """Makes an environment of this Python with this torch. Behind it are the packages of the present one, or packages of its own."""
    if os.environ.get("SHOAL_OTHER_PYTHON") and PYTHON != CHOSEN:
        pytest.skip(f"there is no Python {CHOSEN} on PATH or in pyenv")
    kept = os.environ.get("SHOAL_TORCH_HOME")
    name = f"{VERSION}-{PYTHON}"
    folder = Path(kept) / name if kept else tmp_path_factory.mktemp("torch") / name
    python = folder / "bin" / "python"
    subprocess.run([OTHER or sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    packages = [ROOT / "python", Path(shoal._native.__file__).parents[1], *([] if OTHER else [sysconfig.get_paths()["purelib"]])]
    (site / "shoal-test.pth").write_text("\n".join(map(str, packages)) + "\n" + (ROOT / "python/wheel/shoal-fsdp.pth").read_text())
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir"]
    for words in (["--no-deps", f"torch=={VERSION}"], *([PACKAGES] if OTHER else [])):
        done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=900, env={**os.environ, "PIP_CONSTRAINT": os.devnull})
        if done.returncode:
            pytest.skip(f"{words[-1]} cannot be installed for Python {PYTHON}: {done.stderr.strip().splitlines()[-1]}")
    make_stand_ins(site)
    return python


def make_stand_ins(site: Path) -> None:
    """Makes empty libraries in the place of NVIDIA's, of gigabytes, without which a build of torch for CUDA cannot be imported."""
    lib, out = site / "torch" / "lib", site / "nvidia" / "cu13" / "lib"
    if not (lib / "libtorch_cuda.so").exists() or out.exists():
        return
    out.mkdir(parents=True)
    undefined = set(_lines("nm", "-D", "--undefined-only", *lib.glob("*.so")))
    symbols = {line.split()[1] for line in undefined if line.split()[:1] == ["U"]}
    needed = {n for line in _lines("readelf", "-d", *lib.glob("*.so")) for n in re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl).*)\]", line)}
    anywhere = {s for s in symbols if re.fullmatch(r"(cu|nccl|nvshmem|nvrtc|nvtx|nvml)\w*", s)}  # without a version: in one library
    for name in sorted(n for n in needed if not (lib / n).exists()):
        version = "NVSHMEM" if name.startswith("libnvshmem") else name
        own = {s.split("@")[0] for s in symbols if s.endswith(f"@{version}")} | anywhere
        anywhere = set()
        code = "".join(f"long {s}(void) {{ return 100; }}\n" for s in sorted(own)) + "void stand_in(void) {}\n"
        (out / "stand_in.map").write_text(f"{version} {{ global: *; }};\n")
        flags = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={out / 'stand_in.map'}", "-x", "c", "-"]
        subprocess.run(["gcc", "-o", out / name, *flags], input=code, text=True, check=True)


def _lines(*words: object) -> list[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("arguments", TESTS, ids=lambda arguments: arguments[0])
def test_with_this_torch(python, arguments, tmp_path):
    env = {**os.environ, "SHOAL_PYTHON": str(python), "SHOAL_OWN_LOOPBACK": "1", "XML_OUTPUT_FILE": str(tmp_path / "results.xml")}
    env["SHOAL_IMPORTS"] = ":".join(f"tests/{name}" for name in ("torch_versions", "torch_backend", "parity"))
    words = ["sh", "third_party/pytest.sh", *arguments]
    done = subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"torch {VERSION}, Python {PYTHON}\n{done.stdout[-12000:]}"
