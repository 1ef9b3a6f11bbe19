"""Puts what C++ programs outside the workspace need into the package's folder: headers, libshoal.so, files for CMake and pkg-config.

The compiler lists the headers: those that shoal.h includes, and no others. Asio, nlohmann's JSON and tl::expected come along, because a
program and the library have to agree on them.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

DEFINES = ("-DASIO_STANDALONE", "-DASIO_SEPARATE_COMPILATION", "-DASIO_HAS_STD_ALIGNED_ALLOC=1")
PACKAGES = {"asio": "libasio-dev", "asio.hpp": "libasio-dev", "nlohmann": "nlohmann-json3-dev", "tl": "libexpected-dev"}


def run(*argv):
    process = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"sdk: {Path(argv[0]).name} failed:\n{process.stdout[-2000:]}{process.stderr[-4000:]}")
    return process.stdout


def headers(root: Path):
    """Each header that shoal.h includes: its path, and its path below include/shoal."""
    listed = run("g++", "-std=c++20", *DEFINES, f"-I{root}", "-M", root / "actors" / "api" / "shoal.h")
    for name in re.sub(r"\\\n|^[^:]*:", " ", listed).split():
        path = Path(name)
        if path.is_relative_to(root):
            yield path, path.relative_to(root)
        elif path.is_relative_to("/usr/include") and (within := path.relative_to("/usr/include")).parts[0] in PACKAGES:
            yield path, Path("third_party") / within


def stage(root: Path, folder: Path, version: str):
    """Copies the headers, the library and the project into `folder`, the package's folder, which has bin/shoal already."""
    include = folder / "include" / "shoal"
    for path, within in headers(root):
        (include / within).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, include / within)
    for package in sorted(set(PACKAGES.values())):  # their licences
        shutil.copyfile(Path("/usr/share/doc") / package / "copyright", include / "third_party" / f"{package}.copyright")

    (folder / "lib").mkdir()
    library = folder / "lib" / f"libshoal.so.{version}"
    run("strip", "--strip-unneeded", "-o", library, root / "bazel-bin" / "actors" / "api" / "sdk" / "libshoal.so")
    library.chmod(0o755)
    run("patchelf", "--set-soname", library.name, library)

    sources = root / "actors" / "api" / "sdk"
    for name, to in (
        ("shoal-config.cmake", "cmake/shoal"),
        ("shoal-config-version.cmake", "cmake/shoal"),
        ("shoal.pc", "pkgconfig"),
    ):
        (folder / "lib" / to).mkdir(parents=True, exist_ok=True)
        (folder / "lib" / to / name).write_text((sources / name).read_text().replace("@VERSION@", version))

    project = folder / "share" / "shoal" / "project"  # `shoal cpp new` copies it
    shutil.copytree(sources / "project", project)
    shutil.copyfile(root / "examples" / "counter.cc", project / "main.cc")
