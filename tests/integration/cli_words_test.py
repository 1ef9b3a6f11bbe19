"""Commands that need no cluster: explain, which prints docs/errors.md, completion in real shells, and settings of files."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from internals.core import binary


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
    assert printed(shoal_command("explain", "137")).startswith("exit code 137\n  SIGKILL ended the program")
    assert printed(shoal_command("explain", "slow_loader")).startswith("verdict slow_loader\n")
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


# ---- completion


def shell(name, script, folder, home):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: its completion is not tested (apt-get install {name})")
    env = {**os.environ, "SHOAL_HOME": str(home), "HOME": str(folder), "PATH": f"{Path(binary()).parent}:{os.environ['PATH']}"}
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    done = subprocess.run([name, *flags, "-c", script], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def in_bash(words, folder, home):
    quoted = " ".join(shlex.quote(word) for word in ["shoal", *words])
    call = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _shoal; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return shell("bash", f'eval "$(shoal completion bash)"; complete -p shoal > /dev/null; {call}', folder, home)


def in_zsh(words, folder, home):
    """The functions that draw the list print it."""
    quoted = " ".join(shlex.quote(word) for word in ["shoal", *words])
    drawn = "_describe() { print -l -- ${(@)${(P)4}%%:*} }; _files() { print -l -- ${words[-1]}*(N) }; compdef() { : }"
    call = f"words=({quoted}); CURRENT={len(words) + 1}; _shoal"
    return shell("zsh", f'{drawn}; eval "$(shoal completion zsh)"; {call}', folder, home)


def in_fish(words, folder, home):
    line = " ".join(["shoal", *words])
    lines = shell("fish", f"shoal completion fish | source; complete -C {shlex.quote(line)}", folder, home)
    return [line.partition("\t")[0] for line in lines]


SHELLS = pytest.mark.parametrize("completed", [in_bash, in_zsh, in_fish], ids=["bash", "zsh", "fish"])


@SHELLS
def test_a_shell_completes_commands_options_and_values(completed, home, tmp_path):
    def words(*line):
        return completed(line, tmp_path, home)

    assert words("expl") == ["explain"]
    assert {"status", "run", "submit"} <= set(words(""))
    assert words("job", "li") == ["list"]
    assert words("status", "--addr") == ["--address"]
    assert words("list", "--format", "t") == ["table"]
    assert words("list", "act") == ["actors"]
    assert words("explain", "ActorD") == ["ActorDied"]
    assert words("completion", "f") == ["fish"]


@SHELLS
def test_a_shell_completes_files_for_scripts(completed, home, tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "two words.py").touch()
    assert set(completed(("run", "--nproc", "2", ""), tmp_path, home)) >= {"train.py"}
    assert completed(("submit", "tra"), tmp_path, home) == ["train.py"]


def test_a_value_behind_an_equals_sign_is_completed(home, tmp_path):
    assert in_bash(("list", "--format", "=", "y"), tmp_path, home) == ["yaml"]
    assert in_bash(("list", "--format", "="), tmp_path, home) == ["json", "table", "yaml"]


def test_each_listed_command_is_completed(shoal_command, home, tmp_path):
    listed = printed(shoal_command("--help")).partition("Subcommands:")[2]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert len(names) > 25
    assert set(in_bash(("",), tmp_path, home)) == set(names)


# ---- config


@pytest.fixture
def configured(shoal_command, tmp_path):
    """Runs a command in a folder, with files of settings and variables."""
    project = tmp_path / "project" / "inner"
    project.mkdir(parents=True)
    (tmp_path / "config" / "shoal").mkdir(parents=True)

    def run(*words, toml="", of_user="", **variables):
        (project.parent / "shoal.toml").write_text(toml)
        (tmp_path / "config" / "shoal" / "config.toml").write_text(of_user)
        env = shoal_command.env(XDG_CONFIG_HOME=str(tmp_path / "config"), **variables)
        return subprocess.run([binary(), *words], env=env, cwd=project, capture_output=True, text=True, timeout=60, check=False)

    return run


def settings(done):
    return {s["name"]: (s["value"], s["origin"]) for s in json.loads(printed(done))["settings"]}


def test_option_variable_project_user_and_default_count_in_this_order(configured, tmp_path):
    files = {"toml": 'transport = "tcp"\n', "of_user": 'transport = "ucx"\ntimeout = 5\naddress = "u:1"\n'}
    show = ("config", "show", "--json")
    said = settings(configured(*show, **files))
    assert said["SHOAL_TRANSPORT"] == ("tcp", "file")
    assert said["SHOAL_TIMEOUT"] == ("5", "file")
    assert said["SHOAL_HEAD_ABSENCE_LIMIT"] == ("600", "default")
    assert said["SHOAL_ADDRESS"] == ("u:1", "file")
    assert settings(configured(*show, SHOAL_ADDRESS="v:1", **files))["SHOAL_ADDRESS"] == ("v:1", "variable")
    assert settings(configured(*show, "--address", "o:1", SHOAL_ADDRESS="v:1", **files))["SHOAL_ADDRESS"] == ("o:1", "option")
    assert settings(configured(*show, SHOAL_CONFIG="none", **files))["SHOAL_TRANSPORT"] == (None, "default")
    lines = printed(configured("config", "show", "--origin", **files)).splitlines()
    assert any(line.split() == ["SHOAL_TRANSPORT", "tcp", str(tmp_path / "project" / "shoal.toml")] for line in lines)


def test_no_secret_is_printed_or_read_from_a_file(configured):
    secret = "5ec2e7" * 10 + "abcd"
    for more in ((), ("--origin",), ("--json",)):
        done = configured("config", "show", *more, SHOAL_TOKEN=secret)
        assert secret not in printed(done) + done.stderr
    assert settings(configured("config", "show", "--json", SHOAL_TOKEN=secret))["SHOAL_TOKEN"] == ("(secret)", "variable")
    done = configured("config", "show", toml=f'token = "{secret}"\n')
    assert done.returncode == 2
    assert "is a secret" in done.stderr
    assert secret not in done.stderr


def test_secrets_of_sections_are_not_printed(configured):
    toml = '[launch.ssh]\nenv = ["WANDB_API_KEY=5ec2e7", "D=s3://me:5ec2e7@host/x", "A=b"]\n'
    for more in ((), ("--origin",), ("--json",)):
        done = configured("config", "show", *more, toml=toml, SHOAL_ADDRESS="x://me:5ec2e7@host:1")
        assert "5ec2e7" not in printed(done) + done.stderr
    shown = settings(configured("config", "show", "--json", toml=toml))
    assert shown["[launch.ssh] env"] == ("WANDB_API_KEY=(secret), D=s3://***@host/x, A=b", "file")


@pytest.mark.parametrize(
    ("toml", "hint"),
    [
        ('transprot = "tcp"', "did you mean `transport`?"),
        ("[run]\nnprc = 2", "did you mean `nproc`?"),
        ("[rnu]\nnproc = 2", "did you mean `run`?"),
        ("[start]\nhead-absence-limit = 2", "above all sections"),
        ("[status]\naddress = 'a:1'", "above all sections"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_may_be_meant(configured, toml, hint):
    done = configured("health-check", toml=toml + "\n")
    assert done.returncode == 2
    assert hint in done.stderr
    assert json.loads(configured("health-check", "--json", toml=toml + "\n").stdout)["reason"] == "Usage"
    assert configured("--version", SHOAL_CONFIG="none", toml=toml + "\n").returncode == 0


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "--nprocs", "2", "train.py"), "did you mean --nproc?"),
        (("run", "--nprco=2", "train.py"), "did you mean --nproc?"),
        (("logs", "--tial", "3"), "did you mean --tail?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_may_be_meant(configured, words, hint):
    done = configured(*words)
    assert done.returncode == (93 if words[0] == "run" else 2)
    assert f"has no option {words[1].partition('=')[0]}" in done.stderr
    assert hint in done.stderr


def test_logs_of_a_run_say_where_they_are(configured):
    assert configured("run", "--run-folder", "shoal-run/mine", "--", "true").returncode == 0
    done = configured("logs", "mine")
    assert done.returncode == 3
    assert "mine is a run" in done.stderr
    assert "`shoal show mine`" in done.stderr


def test_a_section_sets_options_that_the_command_line_lacks(configured):
    toml = "[run]\nnproc = 3\n[explain]\njson = true\n"
    dry = ("run", "--dry-run", "--json")
    assert json.loads(printed(configured(*dry, "x.py", toml=toml)))["ranks_per_host"] == 3
    assert json.loads(printed(configured(*dry, "--nproc", "2", "x.py", toml=toml)))["ranks_per_host"] == 2
    assert json.loads(printed(configured(*dry, "--nproc=2", "x.py", "--nproc", "9", toml=toml)))["ranks_per_host"] == 2
    assert json.loads(printed(configured("explain", "93", toml=toml)))["entries"]
    assert ("[run] nproc", ("3", "file")) in settings(configured("config", "show", "--json", toml=toml)).items()


def test_variables_of_files_reach_jobs_and_sections_do_not_reach_further_commands(configured):
    code = "import os; print(os.environ['SHOAL_TIMEOUT'], os.environ.get('SHOAL_CONFIG'))"
    done = configured("run", "--", sys.executable, "-c", code, toml="timeout = 77\n[submit]\nname = 'of the file'\n")
    assert done.returncode == 0, done
    assert "77 None" in done.stdout
