"""The tests of torch's backend and of FSDP2 with another torch than that of requirements.txt: the oldest or the newest supported one, by
turns of days, or that of $SHOAL_TORCH.

Not part of ``bazel test //...``: it installs torch. $SHOAL_TORCH_HOME: a folder in which to keep it.
"""

import datetime
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = "2.11.0", "2.15.0"
VERSION = os.environ.get("SHOAL_TORCH") or (OLDEST, NEWEST)[datetime.date.today().toordinal() % 2]
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
    """Makes an environment with this torch, and the other packages of the present one behind it."""
    if sys.version_info < (3, 11) and VERSION == NEWEST:
        pytest.skip(f"torch {VERSION} needs Python 3.11")
    kept = os.environ.get("SHOAL_TORCH_HOME")
    folder = Path(kept) / VERSION if kept else tmp_path_factory.mktemp("torch") / VERSION
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    packages = [ROOT / "python", Path(shoal._native.__file__).parents[1], sysconfig.get_paths()["purelib"]]
    (site / "shoal-test.pth").write_text("\n".join(map(str, packages)) + "\n" + (ROOT / "python/wheel/shoal-fsdp.pth").read_text())
    words = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", f"torch=={VERSION}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env={**os.environ, "PIP_CONSTRAINT": os.devnull})
    if done.returncode:
        pytest.skip(f"torch {VERSION} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
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
    assert done.returncode == 0, f"torch {VERSION}\n{done.stdout[-12000:]}"
