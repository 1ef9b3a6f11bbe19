"""A1 of COVERAGE.md, ``init(logging_config=)``: the log lines of a job's processes, and their format."""

import json
import os
import subprocess
import sys

import pytest
from semantics_actors import GUARD_S

import shoal as ray

PROGRAM = """
import logging
import shoal as ray

ray.init(num_cpus=2, logging_config=ray.LoggingConfig(encoding={encoding!r}, log_level="WARNING", additional_log_standard_attrs=["name"]))
log = logging.getLogger("mine")


@ray.remote
class Logs:
    def say(self):
        log.info("too quiet")
        log.warning("from an actor", extra={{"step": 3}})
        return ray.get(nested.remote())


@ray.remote(num_cpus=0)
def nested():
    try:
        raise ValueError("inside")
    except ValueError:
        log.exception("from a function")
    return ray.get_runtime_context().get_job_id()


log.warning("from the driver")
logs = Logs.remote()
print("job", ray.get(logs.say.remote()), "actor", logs._actor_id)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    """Replaces the module's cluster by none: each program starts a cluster of its own."""


def run(encoding):
    ran = subprocess.run([sys.executable, "-c", PROGRAM.format(encoding=encoding)], capture_output=True, text=True, timeout=GUARD_S)
    assert ran.returncode == 0, ran.stderr
    _, job, _, actor = ran.stdout.split()
    assert "too quiet" not in ran.stderr
    return ran.stderr.splitlines(), job, actor


def test_json():
    lines, job, actor = run("JSON")
    records = {r["message"]: r for r in (json.loads(line[line.index("{") :]) for line in lines)}
    assert set(records) == {"from the driver", "from an actor", "from a function"}
    assert {r["job_id"] for r in records.values()} == {job}
    assert {(r["levelname"], r["name"]) for m, r in records.items() if m != "from a function"} == {("WARNING", "mine")}
    assert "actor_id" not in records["from the driver"]
    by_actor = records["from an actor"]
    assert (by_actor["actor_id"], by_actor["task_name"], by_actor["step"]) == (actor, "Logs.say", 3)
    assert records["from a function"]["task_func_name"] == "nested"
    assert "ValueError: inside" in records["from a function"]["exc_text"]


def test_text():
    lines, job, actor = run("TEXT")
    (line,) = (x for x in lines if "from an actor" in x)
    for part in ("WARNING", f"job_id={job}", f"actor_id={actor}", "step=3"):
        assert part in line
    assert any("ValueError: inside" in x for x in lines)


@pytest.mark.parametrize("wrong", [{"encoding": "XML"}, {"log_level": "LOUD"}, {"additional_log_standard_attrs": ["colour"]}])
def test_an_invalid_config_is_refused(wrong):
    with pytest.raises(ValueError, match=r"XML|LOUD|colour"):
        ray.LoggingConfig(**wrong)


def test_a_value_of_another_type_is_refused():
    with pytest.raises(TypeError, match="LoggingConfig"):
        ray.init(logging_config={"encoding": "JSON"})


LONG = """
import json
import shoal as ray


@ray.remote
class Says:
    def say(self, n):
        print(json.dumps({"n": n, "text": "\\u0416\\u6f22x" * n}, ensure_ascii=False))


ray.init(num_cpus=1)
says = Says.remote()
ray.get([says.say.remote(n) for n in (1, 50_000, 150_000, 800_000)])
ray.shutdown()
"""


def test_a_long_line_is_one_line():
    """A line of up to 4 MiB stays one line; a longer one is cut between two characters."""
    ran = subprocess.run([sys.executable, "-c", LONG], capture_output=True, timeout=GUARD_S, env={**os.environ, "PYTHONUTF8": "1"})
    lines = [line.split(") ", 1)[1] for line in ran.stdout.decode().splitlines()]
    assert [json.loads(line)["n"] for line in lines[:3]] == [1, 50_000, 150_000], ran.stderr
    assert len(lines) == 5
    assert json.loads("".join(lines[3:]))["n"] == 800_000
