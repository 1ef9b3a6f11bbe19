"""``shoal ls``, ``show``, ``diff`` and ``top``: runs whose folders these tests write, as docs/runs.md describes them."""

import json
import os
import socket
import struct
import time
from pathlib import Path

import pytest
from schemas import check

ACTIVITIES = ("out", "load", "fwd", "bwd", "opt", "save", "gather", "reduce", "window")


def write_process(run: Path, rank: int, *, pid: int, forward_us=15_000, step_us=20_000, world=2, steps=100, ended=True, host="") -> Path:
    """A rank that trains ``steps`` steps until now; its waits fill up what its forward leaves of a step."""
    now = time.time_ns() // 1000
    start = now - 10**8 if ended else now
    host = host or socket.gethostname()
    folder = run / "processes" / f"{host}-{pid}-{now}"
    folder.mkdir(parents=True)
    facts = {"schema": "shoal.process/1", "role": "rank", "rank": rank, "world": world, "host": host, "pid": pid, "start": start}
    (folder / "process.json").write_text(json.dumps(facts | {"units": ["", "layers.0"], "device": "cpu", "argv": ["train.py"]}))
    with (folder / "steps.0-0.jsonl").open("w") as out:
        for step in range(1, steps + 1):
            own = forward_us + 1000 + step % 7 * 50
            row = dict.fromkeys(ACTIVITIES, 0) | {"fwd": forward_us + step % 7 * 50, "load": 1000, "gather": max(step_us - own, 0)}
            total = sum(row[p] for p in ACTIVITIES)
            row |= {"step": step, "n": 1, "rank": rank, "world": world, "gen": 1, "end": now - (steps - step) * total, "us": total}
            out.write(json.dumps(row | {"cpu": forward_us, "max": total}) + "\n")
    with (folder / "events.0-0.jsonl").open("w") as out:
        out.write(json.dumps({"t": now - 10**7, "kind": "begin"}) + "\n")
        if ended:
            out.write(json.dumps({"t": now, "kind": "end", "code": 0}) + "\n")
    (folder / "metrics.0-0.jsonl").write_text(json.dumps({"t": now, "step": steps, "values": {"loss": 2.5, "nan": "nan"}}) + "\n")
    page = struct.pack("<QqqqqQIIIIii", 0x31766C6C616F6873, pid, start, now, now, steps, rank, world, 1, 9 if ended else 2, 1, pid)
    (folder / "live").write_bytes(page.ljust(128, b"\0"))
    return folder


@pytest.fixture
def run(shoal_command):
    """A run of two ranks that has ended, in $SHOAL_HOME/runs."""
    folder = shoal_command.home / "runs" / "first"
    for rank in range(2):
        write_process(folder, rank, pid=100 + rank)
    return folder


def test_runs_are_listed_with_their_verdicts(shoal_command, run):
    (row,) = shoal_command.json("ls")["runs"]
    assert (row["name"], row["state"], row["num_ranks"], row["step"]) == ("first", "ended", 2, 100)
    assert row["verdicts"][0]["code"] == "ended"
    done = shoal_command("ls")
    assert done.returncode == 0, done
    assert "the run ended in order after 100 steps" in done.stdout


def test_a_home_without_runs_lists_none(shoal_command):
    done = shoal_command("ls")
    assert (done.returncode, done.stdout) == (0, ""), done
    assert "no runs in" in done.stderr
    assert shoal_command.json("ls") == {"schema": "shoal.runs/1", "runs": [], "more": 0}


def test_the_runs_of_a_folder_are_listed(shoal_command, run, tmp_path):
    write_process(tmp_path / "elsewhere" / "other", 0, pid=100)
    write_process(tmp_path / "elsewhere" / "shoal-run" / "third", 0, pid=101)
    assert {row["name"] for row in shoal_command.json("ls", tmp_path / "elsewhere")["runs"]} == {"other", "third"}
    assert [row["name"] for row in shoal_command.json("ls", run)["runs"]] == ["first"]
    none = shoal_command("ls", tmp_path / "nowhere")
    assert none.returncode == 3, none
    assert "there is no folder" in none.stderr
    assert "no runs in" in shoal_command("ls", tmp_path).stderr


def test_show_has_the_verdict_first_and_then_the_ranks(shoal_command, run):
    done = shoal_command("show", "first")
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert lines[0].startswith("first  ended  2 ranks, step 100")
    assert lines[1].startswith("ok ")
    assert [line.split()[0] for line in lines if line[:1].isdigit()][:2] == ["0", "1"]
    assert "loss        2.5" in done.stdout
    said = shoal_command.json("show", run)
    assert said["schema"] == "shoal.run/1"
    assert said["metrics"] == {"loss": 2.5, "nan": "nan"}
    assert [rank["activity"] for rank in said["ranks"]] == ["ended", "ended"]


def test_a_slow_rank_is_named(shoal_command):
    folder = shoal_command.home / "runs" / "slow"
    for rank in range(3):
        write_process(folder, rank, pid=100 + rank, world=3, step_us=32_000, forward_us=30_000 if rank == 1 else 15_000)
    verdict = shoal_command.json("show", "slow")["verdicts"][0]
    assert (verdict["code"], verdict["rank"], verdict["state"]) == ("straggler", 1, "slow")
    assert "computes 100 % slower" in verdict["sentence"] or "computes 99 % slower" in verdict["sentence"], verdict


def test_a_dead_rank_is_named_while_another_one_lives(shoal_command):
    folder = shoal_command.home / "runs" / "dead"
    write_process(folder, 0, pid=os.getpid(), ended=False)
    write_process(folder, 1, pid=2**22 + 1, ended=False)  # above the kernel's largest pid
    last_beat = time.time_ns() // 1000 - 2_000_000
    (live,) = folder.glob(f"processes/*-{2**22 + 1}-*/live")
    page = bytearray(live.read_bytes())
    page[24:32] = struct.pack("<q", last_beat)
    live.write_bytes(page)
    verdict = shoal_command.json("show", "dead")["verdicts"][0]
    assert (verdict["code"], verdict["rank"], verdict["state"]) == ("dead_rank", 1, "stopped"), verdict
    assert shoal_command.json("ls")["runs"][0]["state"] == "running"


def test_a_difference_names_the_activity(shoal_command, run):
    for rank in range(2):
        write_process(run.parent / "second", rank, pid=100 + rank, forward_us=25_000, step_us=30_000)
    said = shoal_command.json("diff", "first", "second")
    assert said["schema"] == "shoal.diff/1"
    grown = {c["activity"]: c["after_us"] - c["before_us"] for c in said["activities"] if c["differs"]}
    assert grown == {"own": 10_000, "fwd": 10_000}
    done = shoal_command("diff", run, "second")
    assert done.returncode == 0, done
    assert done.stdout.startswith("second after first: a step takes 30 ms, before 20 ms: 50 % longer, most in forward (+10 ms")


def test_a_difference_needs_steps(shoal_command, run):
    write_process(run.parent / "short", 0, pid=7, steps=3)
    done = shoal_command("diff", "first", "short")
    assert done.returncode == 1
    assert "too few steps" in done.stderr


def test_top_prints_once_where_the_output_is_no_terminal(shoal_command, run):
    for words in (["top", "first"], ["top", "first", "--once"]):
        done = shoal_command(*words)
        assert done.returncode == 0, done
        assert "\x1b" not in done.stdout
        assert done.stdout.startswith("first  ended")
    assert shoal_command.json("top", "first")["schema"] == "shoal.run/1"


def test_the_output_is_what_its_schema_says(shoal_command, run):
    write_process(run.parent / "second", 0, pid=100, forward_us=25_000, step_us=30_000, ended=False)
    record = {"schema": "shoal.exit/1", "exit_code": 1, "cause": "a reason", "rank": 1, "retryable": True, "unix_s": int(time.time())}
    (run / "exit.json").write_text(json.dumps(record))
    assert len(check("runs", shoal_command.json("ls"))["runs"]) == 2
    for name in ("first", "second"):
        check("run", shoal_command.json("show", name))
        check("run", shoal_command.json("top", name))
    assert check("diff", shoal_command.json("diff", "first", "second"))["activities"]
    check("dashboard", shoal_command.json("dashboard", "--run", run, "--export", run / "one.html"))


@pytest.mark.parametrize("verb", [["show"], ["top"], ["diff", "first"]])
def test_a_wrong_name_ends_with_3_and_a_suggestion(shoal_command, run, verb):
    done = shoal_command(*verb, "frist")
    assert (done.returncode, done.stdout) == (3, ""), done
    assert "there is no run frist" in done.stderr
    assert "did you mean first?" in done.stderr
    done = shoal_command(*verb, run / "processes")
    assert done.returncode == 3
    assert "is no run's folder" in done.stderr


def test_a_hostile_folder_is_shown_escaped(shoal_command):
    folder = shoal_command.home / "runs" / "evil\x1b[2J\nname"
    write_process(folder, 0, pid=1, host="\x1b]0;x\x07")
    write_process(folder, 1, pid=2, host="$(reboot)")
    (folder / "exit.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "processes" / "fifo")
    (folder / "checkpoint").write_text("\x1b[31m")
    for words in (["ls"], ["show", folder], ["top", folder]):
        done = shoal_command(*words)
        assert done.returncode == 0, done
        assert "\x1b" not in done.stdout
        assert "\\x1b" in done.stdout
