"""A3 of COVERAGE.md, errors: messages when a node ends a worker because memory runs out. Workers have a limit of their own here
(SHOAL_MEMORY_LIMIT), so that other processes of the machine have no influence."""

import json

import pytest

LIMIT = 300 << 20
RULE = {"SHOAL_MEMORY_LIMIT": str(LIMIT), "SHOAL_MEMORY_USAGE_THRESHOLD": "0.9"}

DRIVER = """
import os, sys, threading
import pytest
import shoal
from shoal.exceptions import ActorDiedError, OutOfMemoryError, ResourceExhausted, WorkerCrashedError

GUARD_S = 120
attempts = sys.argv[0] + ".attempts"

def hog():
    with open(attempts, "a") as file:
        file.write("one\\n")
    kept = b"x" * (400 << 20)
    threading.Event().wait()

def begun():
    return len(open(attempts).readlines())

def check(error):
    assert isinstance(error, ResourceExhausted) and error.reason == "OutOfMemory", repr(error)
    text = str(error)
    beyond = "of 300.0 MiB, beyond the threshold of 90 %"
    for part in ("was killed because memory ran short", beyond, "workers that use most: ", "num_cpus="):
        assert part in text, text
    assert not isinstance(error, (ActorDiedError, WorkerCrashedError))

@shoal.remote(num_cpus=0)
class Actor:
    def hog(self):
        hog()

    def hog_once(self):
        if not os.path.exists(attempts):
            hog()
        return "done"

    def pid(self):
        return os.getpid()
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Replaces the module's cluster by none: each test starts a cluster of its own."""


def drive(shoal_command, body, start="shoal.init(num_cpus=2)\n", **env):
    driver = shoal_command.driver(DRIVER + start + body, **env)
    assert driver.code(300) == 0, driver.err
    return driver


def test_a_function_out_of_memory_is_retried_and_then_fails(shoal_command):
    drive(
        shoal_command,
        """
with pytest.raises(OutOfMemoryError, match="the worker that ran hog died: its process") as info:
    shoal.get(shoal.remote(hog).options(max_retries=1).remote(), timeout=GUARD_S)
check(info.value)
assert begun() == 2
assert shoal.get(shoal.remote(lambda: 5).remote(), timeout=GUARD_S) == 5
from shoal.util.state import list_tasks
assert {t.error_type for t in list_tasks(filters=[("state", "=", "FAILED")])} == {"OUT_OF_MEMORY"}
""",
        **RULE,
    )


def test_an_actor_out_of_memory_dies_alone(shoal_command):
    drive(
        shoal_command,
        """
mine = b"x" * (400 << 20)
others = [Actor.remote() for _ in range(2)]
pids = shoal.get([a.pid.remote() for a in others])
actor = Actor.remote()
shoal.get(actor.pid.remote())
for _ in range(2):  # while it dies, and when it is dead
    with pytest.raises(OutOfMemoryError, match="actor Actor died: actor Actor") as info:
        shoal.get(actor.hog.remote(), timeout=GUARD_S)
    check(info.value)
assert begun() == 1
assert shoal.get([a.pid.remote() for a in others], timeout=GUARD_S) == pids
""",
        **RULE,
    )


def test_an_actor_out_of_memory_restarts_within_max_restarts(shoal_command):
    drive(
        shoal_command,
        """
actor = Actor.options(max_restarts=1, max_task_retries=1).remote()
first = shoal.get(actor.pid.remote())
assert shoal.get(actor.hog_once.remote(), timeout=GUARD_S) == "done"
assert shoal.get(actor.pid.remote(), timeout=GUARD_S) != first
assert begun() == 1
""",
        **RULE,
    )


def test_start_sets_the_memory_threshold_and_lists_show_the_cause(shoal_command):
    env = shoal_command.env(SHOAL_MEMORY_LIMIT=str(LIMIT))
    shoal_command.json("start", "--head", "--num-cpus", "2", "--port", "0", "--memory-usage-threshold", "0.9", env=env)
    driver = drive(
        shoal_command,
        """
actor = Actor.options(name="hungry", lifetime="detached").remote()
with pytest.raises(OutOfMemoryError):
    shoal.get(actor.hog.remote(), timeout=GUARD_S)
print(actor._actor_id)
""",
        start='shoal.init(address="auto")\n',
    )
    row = json.loads(shoal_command("get", "actors", driver.out.strip(), "--format", "json").stdout)
    assert "was killed because memory ran short" in json.dumps(row)
    shoal_command.json("stop")


@pytest.mark.parametrize(
    ("env", "text"),
    [({"SHOAL_MEMORY_USAGE_THRESHOLD": "95"}, "0 to 1"), ({"SHOAL_MEMORY_LIMIT": "a lot"}, "a number of bytes")],
)
def test_an_invalid_threshold_is_refused(shoal_command, env, text):
    done = shoal_command("start", "--head", "--port", "0", env=shoal_command.env(**env))
    assert done.returncode != 0
    assert text in done.stderr
    assert shoal_command("start", "--head", "--port", "0", "--memory-usage-threshold", "1.5").returncode == 2
