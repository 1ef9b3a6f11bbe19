"""The output of commands with --json follows docs/schemas. The test is stricter than they are: it refuses keys that they do not list."""

import json

import jsonschema
import pytest
from launching.actors import Log
from launching.commands import Command
from schemas import SCHEMAS, check

import shoal


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_schema_is_one_of_draft_2020_12_and_names_itself(name):
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema["$schema"].endswith("2020-12/schema"), schema["$id"].endswith(f"/{name}.json")) == (True, True)


def test_an_unknown_key_a_missing_key_and_a_wrong_type_are_found():
    check("health", {"schema": "shoal.health/1", "address": "a:1", "nodes": 1})
    for wrong in ({"address": "a:1", "nodes": 1, "more": 1}, {"address": "a:1"}, {"address": "a:1", "nodes": "1"}):
        with pytest.raises(AssertionError):
            check("health", {"schema": "shoal.health/1", **wrong})


@pytest.fixture(scope="module")
def module_command(module_home):
    command = Command(module_home)
    yield command
    command.end()


@pytest.fixture(scope="module")
def busy(module_command):
    """A cluster with rows of each kind, living and ended."""
    cluster = module_command.start(cpus=4)
    shoal.init(cluster.address)
    actor, ended, waiting = Log.options(name="lives").remote(), Log.remote(), Log.options(num_cpus=100).remote()
    shoal.get([actor.pid.remote(), ended.pid.remote()])
    shoal.kill(ended)
    group = shoal.util.placement_group([{"CPU": 1}])
    assert group.wait()
    with_env = Log.options(runtime_env={"env_vars": {"A": "b"}}).remote()
    shoal.get(with_env.pid.remote())
    value = shoal.put(bytes(1 << 20))
    assert module_command("submit", "--name", "fails", "--", "sh", "-c", "exit 3").returncode == 3
    yield actor, waiting, value, group, with_env
    shoal.shutdown()
    assert module_command("stop").returncode == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("status", "status"),
        ("status", "status -v"),
        *(("list", f"list {what}") for what in ("actors", "nodes", "workers", "jobs", "groups", "tasks", "objects", "runtime-envs")),
        ("list", "job list"),
        *(("summary", f"summary {what}") for what in ("actors", "nodes", "jobs", "tasks", "objects")),
        ("memory", "memory"),
        ("memory", "memory --group-by PROCESS"),
        ("metrics", "metrics"),
        ("health", "health-check"),
        ("doctor", "doctor"),
        ("stack", "stack"),
        ("logs", "logs cluster"),
        ("run-variables", "run --variables"),
        ("run-plan", "run --json --dry-run --hosts a,b --node-rank 0 train.py"),
        ("explanations", "explain"),
        ("config", "config show --origin"),
    ],
)
def test_what_a_command_prints_is_what_its_schema_says(module_command, busy, name, words):
    check(name, module_command.json(*words.split()))


@pytest.mark.parametrize("what", ["actors", "nodes", "workers", "jobs", "groups", "tasks", "objects"])
def test_get_and_describe_print_the_rows_of_the_lists(module_command, busy, what):
    rows = module_command.json("list", what)["rows"]
    assert rows
    for row in rows:
        if row["id"] is None:
            continue
        check("get", module_command.json("get", what, row["id"]))
        if what not in ("tasks", "objects"):
            check("describe", module_command.json("describe", what, row["id"]))


def test_jobs_and_logs(module_command, busy):
    jobs = module_command.json("list", "jobs")["rows"]
    assert {job["state"] for job in jobs} == {"RUNNING", "FAILED"}
    for job in jobs:
        check("job", json.loads(module_command("job", "status", job["submission_id"] or job["id"], "--json").stdout))
    check("logs", module_command.json("logs", "actor", "--id", busy[0]._actor_id))


def test_timeline(module_command, busy, tmp_path):
    check("timeline", module_command.json("timeline", "-o", str(tmp_path / "trace.json")))


ERRORS = ["list nothing", "get jobs nothing", "status --address 127.0.0.1:1", "status --nothing"]


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_is_what_its_schema_says(module_command, words):
    done = module_command(*words.split(), "--json")
    assert done.returncode != 0
    check("error", json.loads(done.stdout))


def test_checkpoints(tmp_path, capsys):
    """In this process, since each command imports torch anew."""
    import torch

    from shoal import checkpoint
    from shoal.checkpoint.__main__ import main

    def said(*words):
        main([*words, "--json"])
        return json.loads(capsys.readouterr().out)

    model = torch.nn.Linear(2, 2)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    checkpoint.save(one, model, state={"step": 1})
    with torch.no_grad():
        model.weight.add_(1)
    checkpoint.save(two, model)
    check("checkpoint-ls", said("ls", one))
    check("checkpoint-verify", said("verify", one))
    assert check("checkpoint-diff", said("diff", one, two))["differences"]
    assert check("error", said("ls", str(tmp_path / "nothing")))["reason"] == "CheckpointMissing"
    kept = checkpoint.Checkpoints(str(tmp_path / "run"))
    kept.save(1, model).wait()
    assert check("checkpoint-ls", said("ls", str(tmp_path / "run")))["steps"]
