"""The output of commands with --json follows docs/schemas. The test is stricter than they are: it refuses keys that they do not list.

A schema lists command lines that print its form (``x-commands``). Each runs here, so a new verb with a schema needs no test of its form.
"""

import json
import re

import jsonschema
import pytest
from launching.actors import Log
from launching.commands import Command
from schemas import SCHEMAS, check
from synthetic_run import SyntheticRun

import shoal

COMMANDS = [(name, line) for name, schema in SCHEMAS.items() for line in schema.get("x-commands", [])]
# They change something, start programs or print scripts, and promise no form of their output.
WITHOUT_SCHEMA = {
    *("start", "stop", "cordon", "uncordon", "drain", "drain-node", "submit", "scale", "chaos", "microbenchmark", "completion"),
    *("launch slurm", "launch ssh", "launch jobset", "launch kueue", "job submit", "job delete", "checkpoint export"),
    *("cpp new", "cpp prefix", "migrate", "check"),
}


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_schema_is_one_of_draft_2020_12_and_names_itself(name):
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema["$schema"].endswith("2020-12/schema"), schema["$id"].endswith(f"/{name}.json")) == (True, True)
    named = set(re.findall(r'"const": "shoal\.([\w.-]+)/\d+"', json.dumps(schema)))
    assert {n.replace(".", "-") for n in named} <= {name}


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
def busy(module_command, tmp_path_factory):
    """A cluster with rows of each kind, living and ended, runs and checkpoints. Yields what names of ``x-commands`` stand for."""
    import torch

    from shoal import checkpoint

    cluster = module_command.start(cpus=4)
    shoal.init(cluster.address)
    actor, ended, waiting = Log.options(name="lives").remote(), Log.remote(), Log.options(num_cpus=100).remote()
    shoal.get([actor.say.remote("text"), ended.pid.remote()])
    shoal.kill(ended)
    group = shoal.util.placement_group([{"CPU": 1}])
    assert group.wait()
    with_env = Log.options(runtime_env={"env_vars": {"A": "b"}}).remote()
    shoal.get(with_env.pid.remote())
    value = shoal.put(bytes(1 << 20))
    assert module_command("submit", "--name", "fails", "--", "sh", "-c", "exit 3").returncode == 3
    assert module_command("job", "submit", "--submission-id", "ends", "--", "echo", "text").returncode == 0
    for name in ("one", "two"):
        run = SyntheticRun(module_command.home / "runs" / name)
        run.advance(100)
        run.end(0)
    folder, model = tmp_path_factory.mktemp("checkpoints"), torch.nn.Linear(2, 2)
    kept = checkpoint.Checkpoints(str(folder))
    kept.save(1, model, state={"step": 1}, metrics={"loss": 2}).wait()
    with torch.no_grad():
        model.weight.add_(1)
    kept.save(2, model).wait()
    (task,) = (row for row in module_command.rows("tasks") if row["name"].endswith("say"))
    yield {
        "actor": actor._actor_id,
        "worker": task["worker"],
        "task": task["id"],
        "job": "ends",
        "run": "one",
        "other_run": "two",
        "checkpoints": str(folder),
        "checkpoint": kept.path(1),
        "other_checkpoint": kept.path(2),
        "file": str(folder / "file"),
    }
    del actor, waiting, value, group, with_env
    shoal.shutdown()
    assert module_command("stop").returncode == 0


@pytest.fixture
def run_words(module_command, capsys):
    """Runs words of ``shoal``: returns the exit code, stdout and stderr."""
    from shoal.checkpoint.__main__ import main

    def run(*words):
        if words[0] == "checkpoint":  # in this process, since the command imports torch anew
            return main(list(words[1:])), *capsys.readouterr()
        done = module_command(*words)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(("name", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_a_command_prints_what_its_schema_says_and_a_text_without_json(run_words, busy, name, line):
    words = line.format(**busy).split()[1:]
    code, said, _ = run_words(*words)
    assert (code, said.count("\n")) == (int(name == "checkpoint-diff"), 1), said  # the two differ, so the code is 1 as that of diff
    check(name, json.loads(said))
    code_of_text, text, plan = run_words(*(word for word in words if word != "--json"))
    assert code_of_text == code
    assert text.strip() or plan.strip()  # stdout of `shoal run` is the script's
    assert not text.startswith("{")


def verbs(command, *group):
    """The verbs that ``--help`` lists, each with its groups."""
    listed = command(*group, "--help").stdout.partition("Subcommands:")[2]
    names = re.findall(r"^  (\S+)", listed, re.MULTILINE)
    return {verb for name in names for verb in verbs(command, *group, name)} if names else {" ".join(group)}


def test_each_verb_that_reads_has_a_schema(module_command):
    lines = {f"{line} " for _, line in COMMANDS}
    without = {verb for verb in verbs(module_command) if not any(line.startswith(f"shoal {verb} ") for line in lines)}
    assert without == WITHOUT_SCHEMA, "docs/schemas needs a file with x-commands for each other verb"


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


def test_the_states_of_jobs(module_command, busy):
    jobs = module_command.json("list", "jobs")["rows"]
    assert {job["state"] for job in jobs} == {"RUNNING", "FAILED", "SUCCEEDED"}
    for job in jobs:
        check("job", json.loads(module_command("job", "status", job["submission_id"] or job["id"], "--json").stdout))


ERRORS = ["list nothing", "get jobs nothing", "status --address 127.0.0.1:1", "status --nothing", "checkpoint ls nothing"]


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_is_what_its_schema_says(run_words, words):
    code, said, _ = run_words(*words.split(), "--json")
    assert code != 0
    check("error", json.loads(said))


def test_checkpoints_that_differ(run_words, busy):
    said = run_words("checkpoint", "diff", busy["checkpoint"], busy["other_checkpoint"], "--json")[1]
    assert json.loads(said)["differences"]
