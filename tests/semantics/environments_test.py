"""``runtime_env``: environment variables, folders, modules and packages of jobs, actors and functions."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
from internals.core import ignored
from launching.actors import Log
from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal
from shoal.exceptions import RuntimeEnvSetupError
from shoal.runtime_env import RuntimeEnv, RuntimeEnvConfig


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=4, runtime_env={"env_vars": {"COLOUR": "blue", "SIZE": "small"}})
    yield
    shoal.shutdown()


@shoal.remote
def variable(name):
    return os.environ.get(name)


@shoal.remote
def read(path):
    with open(path) as file:
        return file.read()


@shoal.remote
def imported(name):
    import importlib

    return importlib.import_module(name).VALUE


@shoal.remote(num_cpus=0)
class Looker:
    def variable(self, name):
        return os.environ.get(name)

    def childs(self, name):
        return shoal.get(variable.remote(name))

    def cwd(self):
        return os.getcwd()


def test_a_jobs_variables_reach_actors_and_functions():
    assert shoal.get(variable.remote("COLOUR")) == "blue"
    assert shoal.get(Looker.remote().variable.remote("COLOUR")) == "blue"
    assert "COLOUR" not in os.environ


def test_an_actors_variables_override_the_jobs_one_by_one():
    looker = Looker.options(runtime_env={"env_vars": {"COLOUR": "red"}}).remote()
    assert shoal.get([looker.variable.remote("COLOUR"), looker.variable.remote("SIZE")]) == ["red", "small"]


@pytest.mark.parametrize(
    ("cpus", "variables", "threads"), [(None, {}, "1"), (2, {}, "2"), (1.5, {}, "1"), (2, {"OMP_NUM_THREADS": "3"}, "3")]
)
def test_a_process_computes_with_as_many_threads_as_it_has_cpus(cpus, variables, threads):
    def said():
        return os.environ["OMP_NUM_THREADS"]

    @shoal.remote(runtime_env={"env_vars": variables})
    class Computes:
        told = staticmethod(said)

    options = {} if cpus is None else {"num_cpus": cpus}
    computes = Computes.options(**options).remote()
    assert shoal.get(computes.told.remote()) == threads
    shoal.kill(computes)
    assert shoal.get(shoal.remote(said).options(runtime_env={"env_vars": variables}, **options).remote()) == threads


def test_child_processes_inherit_the_variables():
    looker = Looker.options(runtime_env={"env_vars": {"COLOUR": "red"}}).remote()
    assert shoal.get([looker.childs.remote("COLOUR"), looker.childs.remote("SIZE")]) == ["red", "small"]


def test_functions_of_different_environments_do_not_share_processes():
    red, blue = variable.options(runtime_env={"env_vars": {"COLOUR": "red"}}), variable
    assert shoal.get([f.remote("COLOUR") for f in (red, blue, red, blue)]) == ["red", "blue", "red", "blue"]


def test_a_working_dir_is_a_snapshot(tmp_path):
    (tmp_path / "data.txt").write_text("one")
    (tmp_path / "own_module.py").write_text("VALUE = 7\n")
    env = {"working_dir": str(tmp_path)}
    reader = read.options(runtime_env=env)
    assert shoal.get(reader.remote("data.txt")) == "one"
    assert shoal.get(imported.options(runtime_env=env).remote("own_module")) == 7
    looker = Looker.options(runtime_env=env).remote()
    (tmp_path / "data.txt").write_text("two!")
    assert shoal.get(looker.cwd.remote()) != str(tmp_path)
    assert shoal.get(reader.remote("data.txt")) == "one"
    assert shoal.get(read.options(runtime_env={**env, "env_vars": {"A": "b"}}).remote("data.txt")) == "two!"


def test_excluded_files_are_not_shipped(tmp_path):
    (tmp_path / "kept.txt").write_text("k")
    (tmp_path / "left.log").write_text("l")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "x.txt").write_text("x")
    reader = read.options(runtime_env={"working_dir": tmp_path, "excludes": ["*.log", "cache/"]})
    assert shoal.get(reader.remote("kept.txt")) == "k"
    for path in ("left.log", "cache/x.txt"):
        with pytest.raises(FileNotFoundError):
            shoal.get(reader.remote(path))


def test_a_zip_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        archive.writestr("inside.txt", "z")
    assert shoal.get(read.options(runtime_env={"working_dir": str(tmp_path / "files.zip")}).remote("inside.txt")) == "z"


def test_py_modules_can_be_imported(tmp_path):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("VALUE = 'packaged'\n")
    env = {"py_modules": [str(tmp_path / "own_package")]}
    assert shoal.get(imported.options(runtime_env=env).remote("own_package")) == "packaged"
    with pytest.raises(ModuleNotFoundError):
        shoal.get(imported.remote("own_package"))


def test_packages_are_installed_from_a_folder(tmp_path):
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='own-wheel', version='1', py_modules=['own_wheel'])\n")
    (tmp_path / "own_wheel.py").write_text("VALUE = 'installed'\n")
    env = {"pip": ["--no-build-isolation", "--no-index", str(tmp_path)]}
    assert shoal.get(imported.options(runtime_env=env).remote("own_wheel")) == "installed"


def test_a_failed_installation_has_its_reason():
    with pytest.raises(RuntimeEnvSetupError, match="no-such-package-of-anybody"):
        variable.options(runtime_env={"pip": ["--no-index", "no-such-package-of-anybody"]}).remote("A")


def test_a_folder_that_is_too_large_is_refused(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(501 << 20)
    with pytest.raises(RuntimeEnvSetupError, match="excludes"):
        Looker.options(runtime_env={"working_dir": tmp_path}).remote()


def test_the_context_returns_the_runtime_env_object():
    @shoal.remote(runtime_env=RuntimeEnv(env_vars={"COLOUR": "red"}))
    def seen():
        context = shoal.get_runtime_context()
        return os.environ["COLOUR"], context.runtime_env, json.loads(context.get_runtime_env_string())

    colour, env, text = shoal.get(seen.remote())
    assert (colour, env["env_vars"]["COLOUR"], text["env_vars"]["COLOUR"]) == ("red", "red", "red")
    assert isinstance(env, RuntimeEnv)
    with pytest.raises(ValueError, match="colour"):
        RuntimeEnv(colour="red")
    assert RuntimeEnv(env_vars={"A": "b"}).to_dict() == {"env_vars": {"A": "b"}}


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ([], TypeError),
        ({"env_vars": {"A": 1}}, TypeError),
        ({"env_vars": ["A"]}, TypeError),
        ({"working_dirs": "/"}, ValueError),
        ({"working_dir": 5}, TypeError),
        ({"py_modules": "x"}, TypeError),
        ({"pip": 5}, TypeError),
        ({"conda": "x"}, NotImplementedError),
        ({"py_executable": "python3"}, NotImplementedError),
        ({"config": 5}, TypeError),
        ({"config": {"setup_timeout_seconds": "1"}}, TypeError),
        ({"config": {"setup_timeout_seconds": 0}}, ValueError),
        ({"config": {"eager_install": 1}}, TypeError),
        ({"config": {"colour": 1}}, ValueError),
    ],
    ids=lambda v: json.dumps(v) if not isinstance(v, type) else v.__name__,
)
def test_invalid_environments_are_refused_at_once(env, error):
    with pytest.raises(error):
        Log.options(runtime_env=env)


def test_a_missing_folder_is_a_value_error():
    with pytest.raises(ValueError, match="/no/such/folder is none"):
        Looker.options(runtime_env={"working_dir": "/no/such/folder"}).remote()


def test_special_files_are_left_out_of_a_working_dir(tmp_path):
    (tmp_path / "text").write_text("here")
    (tmp_path / ".#text").symlink_to("user@host.1:2")
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    os.mkfifo(tmp_path / "pipe")
    there = read.options(runtime_env={"working_dir": str(tmp_path)})
    assert shoal.get(there.remote("text")) == "here"


def test_a_link_to_a_folder_ships_its_content(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "inner", elsewhere / "deep"):
        folder.mkdir(parents=True)
    (elsewhere / "deep" / "text").write_text("linked")
    (here / "linked").symlink_to(elsewhere)
    (here / "inner" / "again").symlink_to(here)  # a link back to a folder above it is left out
    (elsewhere / "deep" / "up").symlink_to(tmp_path)
    there = read.options(runtime_env={"working_dir": str(here)})
    assert shoal.get(there.remote("linked/deep/text")) == "linked"
    assert [name for _, name in ignored.files(here, [], from_folders=True)] == ["linked/deep/text"]


def test_workers_have_their_drivers_import_path(tmp_path):
    """The driver runs under ``python -m``, so that its main module is no script. Entries of ``sys.path`` that are no str are ignored;
    archives work."""
    package = tmp_path / "app"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "colorsys.py").write_text("mine = True\n")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 5\n")
    (package / "main.py").write_text(
        """
import colorsys, os, pathlib, sys
import shoal
from internals.core import ignored

sys.path += [pathlib.Path("/no/such/folder"), os.path.abspath("more.zip")]
shoal.init(address="local", num_cpus=1)

@shoal.remote
def look():
    import app, colorsys, zipped
    return hasattr(colorsys, "mine"), os.path.dirname(app.__file__) in sys.path, zipped.VALUE

assert not hasattr(colorsys, "mine")
assert shoal.get(look.remote()) == (False, False, 5), shoal.get(look.remote())
"""
    )
    done = subprocess.run([sys.executable, "-m", "app.main"], cwd=tmp_path, capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("options", [{"max_restarts": 1}, {"lifetime": "detached", "name": "large"}])
def test_an_actor_with_a_class_of_any_size_can_restart(options):
    text = "x" * (1 << 20)

    @shoal.remote(**options)
    class Large:
        def size(self):
            return len(text)

        def end(self):
            os._exit(1)

    actor = Large.remote()
    assert shoal.get(actor.size.remote(), timeout=GUARD_S) == 1 << 20
    if "max_restarts" in options:
        actor.end.remote()
        wait_until(lambda: _answers(actor.size), GUARD_S, "its next life")
    shoal.kill(actor)


def _answers(method):
    try:
        return shoal.get(method.remote(), timeout=GUARD_S) == 1 << 20
    except shoal.exceptions.ActorUnavailableError:
        return False


# ---- Ray's documented behaviour


def test_variables_may_refer_to_existing_ones():
    env = {"env_vars": {"PATH": "/mine:${PATH}", "NEW": "<${NO_SUCH_VARIABLE}>", "HOME_TOO": "$HOME"}}
    looker = Looker.options(runtime_env=env).remote()
    path, new, home = shoal.get([looker.variable.remote(name) for name in env["env_vars"]])
    assert path == "/mine:" + shoal.get(variable.remote("PATH"))
    assert (new, home) == ("<>", os.environ.get("HOME", "$HOME"))
    assert shoal.get(looker.childs.remote("PATH")) == path  # the prefix is there only once


def test_gitignore_excludes_files(tmp_path, monkeypatch):
    for name in ("kept.txt", "left.log", "kept.log", "cache/x.txt", "inner/own.txt", "inner/deep/own.txt", "inner/kept.log", "left.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("# of git\n*.log\n!/kept.log\ncache/\n")
    (tmp_path / "inner" / ".gitignore").write_text("/own.txt\n")
    (tmp_path / ".rayignore").write_text("left.txt\n")

    @shoal.remote
    def there():
        return sorted(os.path.join(at, name)[2:] for at, _, names in os.walk(".") for name in names if not name.startswith("."))

    env = {"working_dir": str(tmp_path)}
    assert shoal.get(there.options(runtime_env=env).remote()) == ["inner/deep/own.txt", "kept.log", "kept.txt"]
    monkeypatch.setenv("SHOAL_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    all_but = shoal.get(there.options(runtime_env={**env, "excludes": ["/inner", "!x"]}).remote())
    assert all_but == ["cache/x.txt", "kept.log", "kept.txt", "left.log"]


def test_py_modules_may_be_modules(tmp_path, monkeypatch):
    (tmp_path / "given_package").mkdir()
    (tmp_path / "given_package" / "__init__.py").write_text("VALUE = 'package'\n")
    (tmp_path / "given_file.py").write_text("VALUE = 'file'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import given_file
    import given_package

    monkeypatch.undo()  # now workers cannot import the modules from this process's path
    env = {"py_modules": [given_package, given_file]}
    of = imported.options(runtime_env=env)
    assert shoal.get([of.remote("given_package"), of.remote("given_file")]) == ["package", "file"]
    with pytest.raises(TypeError, match="py_modules"):
        Log.options(runtime_env={"py_modules": [5]})


def wheel_of(folder, name: str, value: str, needs: str = ""):
    path = folder / f"{name}-1-py3-none-any.whl"
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"VALUE = {value!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_py_modules_may_be_wheels_and_children_inherit_them(tmp_path):
    env = {"py_modules": [str(wheel_of(tmp_path, "given_wheel", "wheel"))]}
    assert shoal.get(imported.options(runtime_env=env).remote("given_wheel")) == "wheel"

    @shoal.remote(runtime_env=env)
    def childs():
        return shoal.get(imported.remote("given_wheel"))

    assert shoal.get(childs.remote()) == "wheel"


def test_a_requirements_file_may_have_options_and_includes(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel_of(wheels, "first_of_two", "first")
    wheel_of(wheels, "second_of_two", "second")
    (tmp_path / "inner").mkdir()
    (tmp_path / "requirements.txt").write_text(
        f"# all\n--no-index\n--find-links {wheels}\n-r inner/more.txt\nfirst_of_two == 1  # exactly\n"
    )
    (tmp_path / "inner" / "more.txt").write_text("-c bounds.txt\nsecond_of_two\n")
    (tmp_path / "inner" / "bounds.txt").write_text("second_of_two==1\n")
    of = imported.options(runtime_env={"pip": str(tmp_path / "requirements.txt")})
    assert shoal.get([of.remote("first_of_two"), of.remote("second_of_two")]) == ["first", "second"]


def test_pips_options_apply(tmp_path):
    wheel_of(tmp_path, "with_options", "options")
    pip = {"packages": ["with_options"], "pip_install_options": ["--no-index", "--find-links", str(tmp_path)]}
    assert shoal.get(imported.options(runtime_env={"pip": pip}).remote("with_options")) == "options"
    with pytest.raises(RuntimeEnvSetupError, match=r"pip==0\.0\.1"):
        variable.options(runtime_env={"pip": {"packages": ["--no-index", "x"], "pip_version": "==0.0.1"}}).remote("A")
    for wrong, error in (
        ({"packages": ["x"], "options": []}, ValueError),
        ({"pip_check": True}, ValueError),
        ({"packages": ["x"], "pip_check": "yes"}, TypeError),
        ({"packages": ["x"], "pip_version": 23}, TypeError),
        ({"packages": ["x"], "pip_install_options": "--no-index"}, TypeError),
        ({"packages": ["x"], "pip_install_options": [1]}, TypeError),
    ):
        with pytest.raises(error):
            RuntimeEnv(pip=wrong)


def test_a_conflict_is_an_error_when_pip_is_to_check(tmp_path):
    path = wheel_of(tmp_path, "wants_another", "x", "Requires-Dist: nobody-has-it\n")
    pip = {"packages": ["--no-index", "--no-deps", str(path)], "pip_check": True}
    with pytest.raises(RuntimeEnvSetupError, match="nobody-has-it"):
        variable.options(runtime_env={"pip": pip}).remote("A")


FAKE_UV = """#!{python}
import json, pathlib, sys
if "--version" in sys.argv:
    sys.exit(print("uv 0.7.1 (of nobody)"))
target, file = (sys.argv[sys.argv.index(w) + 1] for w in ("--target", "-r"))
asked = [open(file).read().split(), sys.argv[1:3], "--offline" in sys.argv]
pathlib.Path(target, "by_uv.py").write_text("VALUE = " + repr(asked))
"""


def test_uv_installs_packages_and_its_absence_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeEnvSetupError, match="this host does not have"):
        variable.options(runtime_env={"uv": ["x"]}).remote("A")
    (tmp_path / "uv").write_text(FAKE_UV.format(python=sys.executable))
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    uv = {"packages": ["one", "two"], "uv_pip_install_options": ["--offline"], "uv_version": "==0.7.1"}
    of = imported.options(runtime_env={"uv": uv})
    assert shoal.get(of.remote("by_uv")) == [["one", "two"], ["pip", "install"], True]
    with pytest.raises(RuntimeEnvSetupError, match=r"asks for version ==0\.8"):
        variable.options(runtime_env={"uv": {**uv, "uv_version": "==0.8"}}).remote("A")
    with pytest.raises(ValueError, match="not both"):
        RuntimeEnv(uv=["x"], pip=["x"])


def test_an_installation_beyond_its_time_limit_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "uv").write_text("#!/bin/sh\nexec sleep 20\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RuntimeEnvSetupError, match="did not finish in time to install x"):
        variable.options(runtime_env={"uv": ["x"], "config": {"setup_timeout_seconds": 1}}).remote("A")


def test_a_config_without_a_limit_has_no_effect(tmp_path):
    pip = ["--no-index", str(wheel_of(tmp_path, "unlimited", "there"))]
    config = RuntimeEnvConfig(setup_timeout_seconds=-1, eager_install=False, log_files=["a.log"])
    assert shoal.get(imported.options(runtime_env=RuntimeEnv(pip=pip, config=config)).remote("unlimited")) == "there"
    assert shoal.get(variable.options(runtime_env={"env_vars": {"A": "b"}, "config": {"eager_install": True}}).remote("A")) == "b"
    with pytest.raises(ValueError, match="setup_timeout_seconds"):
        RuntimeEnvConfig(setup_timeout_seconds=0)


def test_a_folder_absent_on_this_host_is_replaced_by_the_sessions(monkeypatch):
    @shoal.remote(num_cpus=0.5)  # no other function asks for 0.5 CPUs, so that a new worker starts in the folder
    def where():
        return os.getcwd()

    with monkeypatch.context() as patch:
        patch.setattr(os, "getcwd", lambda: "/no/such/folder")  # a driver's folder that this host lacks, as if it were on another host
        ref = where.remote()
    assert shoal.get(ref) == shoal.get_runtime_context().get_temp_dir()
