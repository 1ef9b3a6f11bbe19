"""``runtime_env``: environment variables, folders, modules and packages of jobs, actors and functions."""

import json
import os
import zipfile

import pytest
from crew import Log

import shoal
from shoal.exceptions import RuntimeEnvSetupError
from shoal.runtime_env import RuntimeEnv


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


def test_a_jobs_variables_are_there_in_actors_and_functions():
    assert shoal.get(variable.remote("COLOUR")) == "blue"
    assert shoal.get(Looker.remote().variable.remote("COLOUR")) == "blue"
    assert "COLOUR" not in os.environ


def test_an_actors_own_variables_win_each_by_itself():
    looker = Looker.options(runtime_env={"env_vars": {"COLOUR": "red"}}).remote()
    assert shoal.get([looker.variable.remote("COLOUR"), looker.variable.remote("SIZE")]) == ["red", "small"]


def test_children_inherit():
    looker = Looker.options(runtime_env={"env_vars": {"COLOUR": "red"}}).remote()
    assert shoal.get([looker.childs.remote("COLOUR"), looker.childs.remote("SIZE")]) == ["red", "small"]


def test_functions_of_different_environments_do_not_share_processes():
    red, blue = variable.options(runtime_env={"env_vars": {"COLOUR": "red"}}), variable
    assert shoal.get([f.remote("COLOUR") for f in (red, blue, red, blue)]) == ["red", "blue", "red", "blue"]


def test_a_working_dir_is_a_copy_that_later_changes_do_not_reach(tmp_path):
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


def test_what_is_excluded_is_not_there(tmp_path):
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


def test_packages_that_cannot_be_installed_say_why():
    with pytest.raises(RuntimeEnvSetupError, match="no-such-package-of-anybody"):
        variable.options(runtime_env={"pip": ["--no-index", "no-such-package-of-anybody"]}).remote("A")


def test_a_folder_that_is_too_large_is_refused(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(501 << 20)
    with pytest.raises(RuntimeEnvSetupError, match="excludes"):
        Looker.options(runtime_env={"working_dir": tmp_path}).remote()


def test_an_environment_may_be_an_object_and_is_told_to_what_runs_in_it():
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
    ],
    ids=lambda v: json.dumps(v) if not isinstance(v, type) else v.__name__,
)
def test_what_makes_no_sense_is_refused_at_once(env, error):
    with pytest.raises(error):
        Log.options(runtime_env=env)


def test_a_folder_that_is_not_there_is_a_value_error():
    with pytest.raises(ValueError, match="there is none at"):
        Looker.options(runtime_env={"working_dir": "/no/such/folder"}).remote()


def test_what_is_no_file_is_left_out_of_a_working_dir(tmp_path):
    (tmp_path / "text").write_text("here")
    (tmp_path / ".#text").symlink_to("user@host.1:2")
    os.mkfifo(tmp_path / "pipe")
    there = read.options(runtime_env={"working_dir": str(tmp_path)})
    assert shoal.get(there.remote("text")) == "here"
