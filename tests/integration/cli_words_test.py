"""Commands that need no cluster: explain, which prints docs/errors.md."""

import json

import pytest


def printed(done):
    assert done.returncode == 0, done
    return done.stdout


# ---- explain


@pytest.mark.parametrize("text", ["actordied", "Unavailable/ActorDied", "error[Unavailable/ActorDied]: it is gone"])
def test_explain_prints_the_meaning_of_a_reason(shoal_command, text):
    lines = printed(shoal_command("explain", text)).splitlines()
    assert lines[0] == "Unavailable/ActorDied, NotFound/ActorDied"
    assert [line.split(":")[0] for line in lines[2:]] == ["  usual causes", "  remedy"]


def test_explain_prints_a_code_with_its_reasons(shoal_command):
    text = printed(shoal_command("explain", "dataloss"))
    assert text.startswith("DataLoss\n")
    assert "CheckpointDamaged" in text
    assert "ActorDied" not in text


def test_explain_knows_exit_codes_and_lists_all(shoal_command):
    assert printed(shoal_command("explain", "93")).startswith("exit code 93\n")
    text = printed(shoal_command("explain"))
    assert all(f"\n{name} " in text for name in ("Unavailable", "ActorDied", "exit code 5"))


def test_explain_prints_json(shoal_command):
    said = shoal_command.json("explain", "unavailable/actordied")
    assert said["schema"] == "shoal.explanations/1"
    (entry,) = said["entries"]
    assert (entry["kind"], entry["name"], entry["codes"]) == ("reason", "ActorDied", ["Unavailable", "NotFound"])
    assert all(entry[key] for key in ("meaning", "causes", "remedy"))


def test_an_unknown_error_is_refused_with_the_one_that_may_be_meant(shoal_command):
    done = shoal_command("explain", "ActorDeid")
    assert done.returncode == 3
    assert "did you mean `shoal explain ActorDied`?" in done.stderr
    assert json.loads(shoal_command("explain", "ActorDeid", "--json").stdout)["code"] == "NotFound"
