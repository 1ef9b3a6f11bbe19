"""Builds programs of C++ actors with what an installed wheel has: python smoke_cpp.py COMMAND, where COMMAND is the environment's `shoal`.

One comes from `shoal cpp new` and CMake, the other is an example that g++ compiles with the flags of pkg-config. Both run on clusters of
their own, the first one on a running one, too. They need no Python.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNTS = ("rank 3 counts 120", "hint: pass another number", "the others have 330")
LEARNS = ("step 40: gradient", "started again", "y = 3.00 a + -2.00 b + 0.50")

command = Path(sys.argv[1]).absolute()


def run(*argv, code=0, **how):
    process = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=300, **how)
    if process.returncode != code:
        sys.exit(f"smoke: {' '.join(map(str, argv))[:200]}: exit code {process.returncode}, not {code}\n{process.stdout}{process.stderr}")
    return process.stdout if code == 0 else process.stderr


def shows(out, wanted):
    if missing := [w for w in wanted if w not in out]:
        sys.exit(f"smoke: a C++ program did not print {missing}:\n{out}")


def check_library(prefix):
    """The library exports nothing of OpenSSL, Cap'n Proto and fmt, needs no Python, and has the name that programs are linked with."""
    (library,) = (prefix / "lib").glob("libshoal.so.*")
    foreign = (" SSL_", " EVP_", " capnp::", " fmt::", " spdlog::")
    exported = run("nm", "-D", "--defined-only", "-C", library).splitlines()
    if strangers := [line for line in exported if any(name in line.partition("(")[0] for name in foreign)]:
        sys.exit(f"smoke: {library.name} exports {len(strangers)} foreign names, such as {strangers[:3]}")
    if (prefix / "include" / "shoal" / "actors" / "session" / "session.h").exists():
        sys.exit("smoke: shoal.h includes session.h again, which has the layers below the API: declare what is needed instead")
    if f"soname: [{library.name}]" not in run("readelf", "-d", library):
        sys.exit(f"smoke: {library.name} has another soname")
    if "libpython" in run("ldd", library) or "not found" in run("ldd", library):
        sys.exit(f"smoke: {library.name} does not bring what it needs:\n{run('ldd', library)}")


with tempfile.TemporaryDirectory(prefix="shoal-cpp.") as temporary:
    folder = Path(temporary)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "PYTHON", "VIRTUAL_ENV"))}
    clean |= {"SHOAL_HOME": str(folder / "sessions"), "TMPDIR": str(folder), "PATH": f"{command.parent}:/usr/bin:/bin"}
    without = clean | {"PATH": "/usr/bin:/bin"}  # the library finds the command beside itself
    prefix = Path(run(command, "cpp", "prefix", env=clean).strip())
    check_library(prefix)

    said = run(command, "cpp", "new", "counter", env=clean, cwd=folder)
    shows(said, ("CMakeLists.txt, README.md, main.cc", "cmake -B build", "build/counter"))
    shows(run(command, "cpp", "new", "counter", code=1, env=clean, cwd=folder), ("counter exists already",))
    project = folder / "counter"
    run("cmake", "-B", "build", env=clean, cwd=project)
    run("cmake", "--build", "build", env=clean, cwd=project)
    shows(run("build/counter", env=without, cwd=project), COUNTS)
    run(command, "start", "--head", "--port", "0", "--num-cpus", "2", env=clean)
    try:
        shows(run("build/counter", env=without | {"SHOAL_ADDRESS": "auto"}, cwd=project), COUNTS)
        shows(run(command, "list", "jobs", env=clean), ("SUCCEEDED",))
    finally:
        run(command, "stop", env=clean)

    packages = clean | {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "shoal", env=packages).split()
    run("g++", "-O0", EXAMPLES / "parameter_server.cc", *flags, "-o", folder / "server", env=packages)
    shows(run(folder / "server", env=without), LEARNS)
print("C++: a project of `shoal cpp new`, and an example by the flags of pkg-config, are built and run")
