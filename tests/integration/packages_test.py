"""Folders of a runtime_env on a host that lacks them: for drivers, their workers and submitted jobs; which copies are kept, and which
are deleted."""

import textwrap
from pathlib import Path

import pytest
from launching.two_nodes import two_nodes

DRIVER = """
import json, os, signal, sys, time
import shoal
from shoal.exceptions import ActorDiedError, RuntimeEnvSetupError

GUARD_S = 120

@shoal.remote(num_cpus=0)
class Looker:
    def look(self):
        import given, helper
        return {
            "cwd": os.getcwd(), "session": os.environ["SHOAL_SESSION"], "data": open("data.txt").read(), "given": given.__file__,
            "values": [helper.VALUE, given.VALUE], "run": os.access("run.sh", os.X_OK), "files": sorted(os.listdir()),
            "colour": os.environ["COLOUR"], "pid": os.getpid(),
        }

    def ask_on(self, host):
        return shoal.get(Looker.options(label_selector={"host": host}).remote().look.remote())

    def use(self):
        return os.getcwd(), os.getpid()

def looker(host, **options):
    return Looker.options(label_selector={"host": host}, **options).remote()
"""


@pytest.fixture(scope="module")
def nodes():
    yield from two_nodes("two hosts", "--resource", "only_b=10")


@pytest.fixture
def work(tmp_path):
    """A folder as a user would have it."""
    folder = tmp_path / "work"
    (folder / "inner").mkdir(parents=True)
    (folder / "data.txt").write_text("of the driver\n")
    (folder / "helper.py").write_text("VALUE = 1\n")
    (folder / "inner" / "deep.txt").write_text("deep")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "secret.bin").write_text("x" * 1000)
    (folder / ".gitignore").write_text("*.bin\n")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "__init__.py").write_text("VALUE = 2\n")
    return folder


def drive(host, address, body, **env):
    driver = host.driver(DRIVER + textwrap.dedent(body), HEAD=address, **env)
    assert driver.code(300) == 0, driver.err
    return driver.out


def env_of(work):
    return f"""{{"working_dir": {str(work)!r}, "py_modules": [{str(work.parent / "given")!r}], "env_vars": {{"COLOUR": "blue"}}}}"""


def test_folders_are_shipped_once_to_another_host_and_inherited(nodes, work):
    out = drive(
        nodes.a,
        nodes.address,
        f"""
        shoal.init(address=os.environ["HEAD"], runtime_env={env_of(work)})
        here, *there = looker("a"), looker("b"), looker("b"), looker("b")
        mine, *seen = shoal.get([l.look.remote() for l in (here, *there)], timeout=GUARD_S)
        for s in seen:
            assert s["session"] != mine["session"]
            assert s["cwd"].startswith(s["session"] + "/files/") and s["given"].startswith(s["session"] + "/files/"), s
        for s in (mine, *seen):
            assert (s["data"], s["values"], s["run"], s["colour"]) == ("of the driver\\n", [1, 2], True, "blue"), s
            assert [f for f in s["files"] if f != "__pycache__"] == [".gitignore", "data.txt", "helper.py", "inner", "run.sh"], s
        assert len({{s["cwd"] for s in seen}}) == 1
        assert not [n for n in os.listdir(seen[0]["session"] + "/files") if n.endswith((".making", ".gone"))]
        # What an actor of b starts, there and back here.
        assert shoal.get(there[0].ask_on.remote("b"), timeout=GUARD_S)["cwd"] == seen[0]["cwd"]
        back = shoal.get(there[0].ask_on.remote("a"), timeout=GUARD_S)
        assert back["session"] == mine["session"] and back["data"] == mine["data"]
        deep = shoal.remote(lambda: open("inner/deep.txt").read())
        print(shoal.get(deep.options(label_selector={{"host": "b"}}).remote(), timeout=GUARD_S))
        """,
    )
    assert out == "deep\n"


def test_changed_folders_are_shipped_again_in_both_directions(nodes, work):
    body = f"""
    shoal.init(address=os.environ["HEAD"], runtime_env={env_of(work)})
    seen = shoal.get(looker("a").look.remote(), timeout=GUARD_S)
    print(seen["cwd"], seen["data"], end="")
    """
    first = drive(nodes.b, nodes.address, body).split()
    (work / "data.txt").write_text("another\n")
    second = drive(nodes.b, nodes.address, body).split()
    assert first[1:] == ["of", "the", "driver"]
    assert second[1:] == ["another"]
    assert first[0] != second[0]
    assert (Path(first[0]) / "data.txt").read_text() == "of the driver\n"


def test_a_restarted_actor_finds_its_folders(nodes, work):
    drive(
        nodes.a,
        nodes.address,
        f"""
        shoal.init(address=os.environ["HEAD"])
        one = looker("b", runtime_env={env_of(work)}, max_restarts=1, max_task_retries=-1)
        first = shoal.get(one.look.remote(), timeout=GUARD_S)
        os.kill(first["pid"], signal.SIGKILL)
        second = shoal.get(one.look.remote(), timeout=GUARD_S)
        assert second["pid"] != first["pid"] and second["cwd"] == first["cwd"]
        """,
    )


def test_an_absent_folder_outside_of_the_environment_is_no_error(nodes):
    """The other host lacks the folder in which the driver runs: the worker starts in its session's folder and logs that."""
    out = drive(
        nodes.a,
        nodes.address,
        """
        os.getcwd = lambda: "/no/folder/of/b"
        shoal.init(address=os.environ["HEAD"])
        print(shoal.get(looker("b").use.remote(), timeout=GUARD_S)[0])
        """,
    )
    assert out.startswith(str(nodes.b.home)), out


def test_a_too_large_folder_is_refused_at_the_call(nodes, work):
    with open(work / "large.dat", "wb") as file:
        file.truncate(501 << 20)
    drive(
        nodes.a,
        nodes.address,
        f"""
        shoal.init(address=os.environ["HEAD"])
        try:
            looker("b", runtime_env={env_of(work)})
            raise AssertionError("it was taken")
        except RuntimeEnvSetupError as error:
            assert "has 501 MiB; 500 are allowed" in str(error), error
        """,
    )


def test_unused_packages_beyond_the_bound_are_deleted(nodes, work):
    drive(
        nodes.a,
        nodes.address,
        f"""
        shoal.init(address=os.environ["HEAD"], runtime_env={{"env_vars": {{"SHOAL_RUNTIME_ENV_CACHE_BYTES": "1"}}}})
        work = {str(work)!r}

        def another(text):
            open(work + "/data.txt", "w").write(text)
            one = looker("b", runtime_env={{"working_dir": work}})
            return one, *shoal.get(one.use.remote(), timeout=GUARD_S)

        first, first_cwd, first_pid = another("first")
        second, second_cwd, _ = another("second")
        assert os.path.isdir(first_cwd) and os.path.isdir(second_cwd)  # both are in use
        shoal.kill(first)
        end = time.monotonic() + GUARD_S
        while os.path.exists(f"/proc/{{first_pid}}") and time.monotonic() < end:
            time.sleep(0.01)
        third, third_cwd, _ = another("third")
        assert not os.path.exists(first_cwd)
        assert os.path.isdir(second_cwd) and os.path.isdir(third_cwd)
        again, again_cwd, _ = another("first")  # and comes again
        assert again_cwd == first_cwd and open(again_cwd + "/data.txt").read() == "first"
        """,
    )


MAIN = """
import os, sys
print(os.getcwd(), open("data.txt").read(), end="", flush=True)
import helper, shoal
shoal.init(log_to_driver=False)

@shoal.remote(num_cpus=1)
def look():
    return open("data.txt").read(), helper.VALUE

for host in "ab":
    assert shoal.get(look.options(label_selector={"host": host}).remote(), timeout=120) == (open("data.txt").read(), 1)
print("all is well")
"""


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_jobs_folder_is_shipped_to_its_host(nodes, work, host):
    (work / "main.py").write_text(MAIN)
    done = getattr(nodes, host)(
        "job", "submit", "--working-dir", work, "--entrypoint-resources", '{"only_b": 1}', "--", "python main.py && ./run.sh && ls *.bin"
    )
    lines = done.stdout.splitlines()
    cwd = lines[0].split()[0]
    assert lines[0].split()[1:] == ["of", "the", "driver"], done
    assert lines[1:3] == ["all is well", "ran"], done
    if host == "a":
        assert done.returncode == 1, done  # `ls *.bin` fails: .gitignore names these files, so they were not shipped
        assert cwd.startswith(str(nodes.b.home)), done
    else:
        assert done.returncode == 0, done
        assert cwd == str(work), done  # the job runs on its submitter's host, in the original folder
