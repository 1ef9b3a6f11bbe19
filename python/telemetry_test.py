"""The recording of a run never fails or changes the program that is recorded (docs/runs.md)."""

import decimal
import fractions
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal._core import telemetry as t
from shoal._core.masks import masked, masked_arguments
from shoal._core.run_folders import drop_run_folder, new_run_folder

DAY_S = 86400


class Refusing(torch.Tensor):
    """As a DTensor, whose value may need all ranks."""

    reads = 0

    def item(self):
        Refusing.reads += 1
        return super().item()


class Broken:
    def __getattribute__(self, name):
        raise AssertionError(name)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A telemetry of this process as a rank, in ``tmp_path``."""
    monkeypatch.setattr(t, "state", t.State())
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    yield t.telemetry(opens=True)
    t.close()


def events(folder, kind):
    lines = [line for f in Path(folder).glob("**/events*") for line in f.read_text().splitlines()]
    return [e for e in map(json.loads, lines) if e["kind"] == kind]


def test_numbers_of_a_report_count_and_all_else_is_skipped():
    plain = {
        "int": (3, 3.0),
        "float": (0.5, 0.5),
        "fraction": (fractions.Fraction(1, 4), 0.25),
        "float32": (np.float32(0.5), 0.5),
        "int64": (np.int64(7), 7.0),
        "array": (np.array(2.5), 2.5),
        "tensor": (torch.tensor(1.5), 1.5),
        "one": (torch.tensor([[2]]), 2.0),
        "parameter": (torch.nn.Parameter(torch.tensor(4.0)), 4.0),
    }
    freed = torch.ones(1)
    freed.untyped_storage().resize_(0)
    others = [
        True, "1", None, 10**400, torch.Size([1]), np.ones(2), np.bool_(True), np.complex64(1j), np.array("1"), decimal.Decimal(1),
        torch.ones(2), torch.ones(1, device="meta"), torch.tensor(1j), torch.ones(1).to_sparse(),
        torch.nested.nested_tensor([torch.ones(1)]), torch.nn.parameter.UninitializedParameter(), torch.ones(1).as_subclass(Refusing),
        freed, Broken(), SimpleNamespace(numel=lambda: 1),
    ]  # fmt: skip
    metrics = {name: value for name, (value, _) in plain.items()} | {f"other {i}": value for i, value in enumerate(others)}
    assert dict(t._numbers(metrics)) == {name: expected for name, (_, expected) in plain.items()}
    assert Refusing.reads == 0


def test_no_entry_point_raises(monkeypatch):
    def fail(*args):
        raise OSError

    broken = Hashable(event=fail, metrics=fail, close=fail, step=1)
    monkeypatch.setattr(t, "state", t.State(telemetry=broken, pid=os.getpid(), owners={broken: os.getpid()}))
    t.event("x", cause=Broken())
    t.save_event("save", Broken(), time.perf_counter())
    t.record_metrics({"loss": 1.0})
    t.record_metrics(Broken())
    t.close(Unprintable())


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__


class Unprintable(Exception):
    def __str__(self):
        raise ValueError


def test_a_value_of_a_variable_that_is_no_switch_ends_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(t, "state", t.State())
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    monkeypatch.setenv("SHOAL_RECORD", "perhaps")
    assert t.telemetry(opens=True) is None
    assert "records nothing: SHOAL_RECORD" in capsys.readouterr().err


def test_only_a_process_that_trains_opens_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(t, "state", t.State())
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    t.event("x")
    t.save_event("load", "path", time.perf_counter())
    t.record_metrics({"loss": 1.0})
    with t.at(t.Activity.SAVE), t.waiting():
        pass
    assert not [*tmp_path.iterdir()]
    with t.recording_driver(str(tmp_path), "a fit"):
        assert t.telemetry(opens=True) is None
        if (pid := os.fork()) == 0:
            os._exit(t.telemetry(opens=True) is not None)
        assert os.waitpid(pid, 0)[1] == 0
        t.save_event("load", "path", time.perf_counter())
    (load,), (begin,) = events(tmp_path, "load"), events(tmp_path, "begin")
    assert (load["path"], begin["fit"]) == ("path", "a fit")
    assert [json.loads(f.read_text())["role"] for f in tmp_path.glob("processes/*/process.json")] == ["driver"]


def test_a_forked_child_has_no_record(opened, tmp_path):
    with t.at(t.Activity.SAVE), t.waiting(), t.recording_driver(str(tmp_path), "a fit") as driver:
        if (pid := os.fork()) == 0:
            t.event("x")
            t.event("x", driver)
            t.close()
            t.close(opened=driver)
            os._exit(0 if t.telemetry(opens=True) is None and opened in t.state.owners else 1)
    assert os.waitpid(pid, 0)[1] == 0
    t.close()
    assert len([*tmp_path.glob("processes/*")]) == 2
    assert not events(tmp_path, "x")
    assert len(events(tmp_path, "end")) == 2


@pytest.mark.parametrize(("interactive", "cause"), [(True, ""), (False, "ValueError: --token ***")])
def test_an_error_of_an_interactive_session_did_not_end_it(tmp_path, interactive, cause):
    code = f"""
import sys
from shoal._core import telemetry
telemetry.telemetry(opens=True)
sys.last_value = ValueError("--token abc")
if {interactive}: sys.ps1 = ">>> "
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"SHOAL_RUN_FOLDER": str(tmp_path)})
    (end,) = events(tmp_path, "end")
    assert end["cause"] == cause


def test_secrets_of_arguments_are_masked():
    given = ["t.py", "--hub-token", "abc", "--lr=0.1", "--api_key=abc", "--PASSWORD", "-abc", "--use-key", "--x", "y", "secret=abc"]
    shown = ["t.py", "--hub-token", "***", "--lr=0.1", "--api_key=***", "--PASSWORD", "***", "--use-key", "--x", "y", "secret=***"]
    assert masked_arguments(given) == shown
    assert masked_arguments(["s3://me:abc@host/a@b"]) == ["s3://***@host/a@b"]
    given = [
        "--api-keys",
        "k1",
        "k2",
        "--x",
        "y",
        "--pat",
        "abc",
        "z",
        "--auth=abc",
        "--header",
        "Authorization: Bearer abc",
        "--path",
        "p",
    ]
    shown = ["--api-keys", "***", "***", "--x", "y", "--pat", "***", "z", "--auth=***", "--header", "Authorization: ***", "--path", "p"]
    assert masked_arguments(given) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no https://me:abc@host/x?token=abc&a=1 there", "no https://***@host/x?token=***&a=1 there"),
        ("KeyError: 'key' of --lr 3", "KeyError: 'key' of --lr 3"),
        ("Command 'x --db-password abc --token=\"a b\"' failed", "Command 'x --db-password *** --token=***' failed"),
        ("a lone \udc80", "a lone \\udc80"),
        ("HF_TOKEN=hf_abc PATH=/a WANDB_API_KEY='a b'", "HF_TOKEN=*** PATH=/a WANDB_API_KEY=***"),
        ("{'Authorization': 'Basic abc'} Authorization: Bearer abc", "{'Authorization': ***} Authorization: Bearer ***"),
        ("{'api_key': 'sk-1', 'lr': 3}", "{'api_key': ***, 'lr': 3}"),
        ("password: x\nauthor: me\npattern: y", "password: ***\nauthor: me\npattern: y"),
        ("postgres://u:p/w@h or http://h:80/a@b", "postgres://***@h or http://h:80/a@b"),
        ("https://h/x?X-Amz-Signature=abc&a=1", "https://h/x?X-Amz-Signature=***&a=1"),
        ("sent Bearer hf_abc1", "sent Bearer ***"),
        ("max_tokens=3 key: 4 monkey=2 tokenizer: gpt", "max_tokens=3 key: 4 monkey=2 tokenizer: gpt"),
    ],
)
def test_secrets_of_texts_are_masked(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    "part", ["-", "a", "://", "--token", "?key", "token=", "-a", "a:", "x://a:b/", "bearer ", "_", "auth.", "api_key: "]
)
def test_a_long_text_takes_linear_time(part):
    text = part * 100_000
    assert len(masked(text)) <= len(text) + 3
    assert masked_arguments([text])


def test_a_step_without_a_sound_number_keeps_that_of_the_record(opened):
    for number in (3, 0, None, 10**30):
        t.number_step(number)
    assert opened.step == 2


def test_an_event_masks_its_texts(opened, tmp_path):
    t.event("save", path="s3://me:abc@host/run")
    t.close(ValueError("s3://me:abc@host"))
    assert events(tmp_path, "save")[0]["path"] == "s3://***@host/run"
    assert events(tmp_path, "end")[0]["cause"] == "ValueError: s3://***@host"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "runs"


def test_each_new_folder_has_a_name_of_its_own(runs, monkeypatch):
    for argv, name in ((["-c"], "run"), ([], "run"), (["a/train me.py"], "train_me")):
        monkeypatch.setattr(sys, "argv", argv)
        folders = [Path(new_run_folder()) for _ in range(3)]
        assert len({*folders}) == 3
        assert all(re.fullmatch(name + r"-20\d{6}-\d{6}(-\d+)?", f.name) and f.parent == runs for f in folders)
    assert runs.stat().st_mode & 0o777 == 0o700
    drop_run_folder(str(folders[0]))
    assert not folders[0].exists()


def old(folder, mark=True, live_s=2 * DAY_S, process="elsewhere-1-1"):
    """Makes a folder of a run that began long ago, and wrote last ``live_s`` ago."""
    place = folder / "processes" / process
    place.mkdir(parents=True)
    (place / "live").touch()
    if mark:
        (folder / "made-by-shoal").touch()
    now = time.time()
    os.utime(place / "live", (now - live_s,) * 2)
    for path in (folder, place, place.parent, *folder.glob("made-by-shoal")):
        os.utime(path, (now - 9 * DAY_S,) * 2)
    return folder


def test_only_own_folders_that_ended_long_ago_are_removed(runs):
    new_run_folder()
    host = re.sub(r"[^A-Za-z0-9._]", "_", os.uname().nodename)
    kept = [
        old(runs / "of the user", mark=False),
        old(runs / "writes", live_s=60),
        old(runs / "lives", live_s=5 * DAY_S, process=f"{host}-{os.getpid()}-1"),
    ]
    oldest = [old(runs / f"oldest-{i}", live_s=4 * DAY_S) for i in range(3)]
    others = [old(runs / f"old-{i}", live_s=3 * DAY_S) for i in range(45)]
    (runs / "dangling").symlink_to(runs / "nothing")
    (runs / "linked").symlink_to(old(runs.parent / "linked", live_s=8 * DAY_S))
    new_run_folder()
    assert all(f.exists() for f in (*kept, *others, runs.parent / "linked"))
    assert not all(f.exists() for f in oldest)


@pytest.mark.parametrize("fault", ["link", "writable", "file"])
def test_a_folder_of_runs_that_others_may_write_gets_none(runs, tmp_path, capsys, fault):
    runs.parent.mkdir()
    if fault == "link":
        (tmp_path / "other").mkdir()
        runs.symlink_to(tmp_path / "other")
    elif fault == "writable":
        runs.mkdir()
        runs.chmod(0o777)
    else:
        runs.touch()
    assert new_run_folder() == ""
    assert "this training records nothing" in capsys.readouterr().err


def test_a_save_and_a_load_whose_record_fails_succeed(tmp_path, monkeypatch):
    from shoal import checkpoint

    kinds = []

    def fail(kind, fields):
        kinds.append(kind)
        raise OSError

    broken = Hashable(event=fail, begin=lambda *_: None, end=lambda *_: None, step=1)
    monkeypatch.setattr(t, "state", t.State(telemetry=broken, pid=os.getpid(), owners={broken: os.getpid()}))
    checkpoint.save(tmp_path / "c", torch.nn.Linear(2, 2))
    checkpoint.load(tmp_path / "c", torch.nn.Linear(2, 2))
    assert kinds == ["save", "load"]
