"""``shoal cpp new`` and ``shoal cpp prefix``. Their projects are compiled and run by ``./dev wheel`` (python/wheel/smoke_cpp.py)."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from internals.core import binary

PROJECT = Path("actors/api/sdk/project")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """A folder as the wheel's package has it: the command, the files that it looks for, and a project."""
    prefix = tmp_path_factory.mktemp("prefix")
    (prefix / "bin").mkdir()
    shutil.copy(binary(), prefix / "bin" / "shoal")
    (prefix / "lib" / "cmake" / "shoal").mkdir(parents=True)
    (prefix / "lib" / "cmake" / "shoal" / "shoal-config.cmake").touch()
    shutil.copytree(PROJECT, prefix / "share" / "shoal" / "project")
    shutil.copy("examples/counter.cc", prefix / "share" / "shoal" / "project" / "main.cc")
    return prefix


@pytest.fixture
def cpp(prefix, tmp_path):
    def run(*words, command=prefix / "bin" / "shoal"):
        return subprocess.run([str(command), "cpp", *words], capture_output=True, text=True, cwd=tmp_path)

    return run


def test_a_new_project_has_its_name_in_its_files(cpp, tmp_path):
    done = cpp("new", "my-counter_2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "my-counter_2/ has CMakeLists.txt, README.md, main.cc. Next:\n"
        "  cd my-counter_2\n  cmake -B build && cmake --build build\n  build/my-counter_2\n"
    )
    project = tmp_path / "my-counter_2"
    assert "add_executable(my-counter_2 main.cc)" in (project / "CMakeLists.txt").read_text()
    assert (project / "README.md").read_text().startswith("# my-counter_2\n")
    assert not [f.name for f in project.iterdir() if "@NAME@" in f.read_text()]
    assert (project / "main.cc").read_bytes() == Path("examples/counter.cc").read_bytes()


def test_an_existing_folder_or_file_is_refused_and_kept(cpp, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("folder", "file"):
        done = cpp("new", name)
        assert done.returncode == 1
        assert f"{name} exists already" in done.stderr
        assert "choose another name" in done.stderr
    assert not list((tmp_path / "folder").iterdir())
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "2d", "a/b", "../up", "a b", "-x", "ä", "x" * 65, "test", "shoal"])
def test_a_bad_name_is_refused(cpp, tmp_path, name):
    done = cpp("new", "--", name)
    assert done.returncode == 2, done.stdout
    assert "letters, digits" in done.stderr or "a meaning of its own" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_prefix_is_the_commands_folder_wherever_it_lies(cpp, prefix, tmp_path):
    assert cpp("prefix").stdout == f"{prefix}\n"
    assert json.loads(cpp("prefix", "--json").stdout) == {"schema": "shoal.cpp_prefix/1", "prefix": str(prefix)}
    moved = shutil.copytree(prefix, tmp_path / "moved")
    assert cpp("prefix", command=moved / "bin" / "shoal").stdout == f"{moved}\n"


def test_a_command_without_headers_names_the_wheel(cpp, tmp_path):
    for words in (("new", "counter"), ("prefix",)):
        done = cpp(*words, command=binary())
        assert done.returncode == 3
        assert "has no C++ headers and library beside it" in done.stderr
        assert "installed wheel" in done.stderr
    assert not list(tmp_path.iterdir())
