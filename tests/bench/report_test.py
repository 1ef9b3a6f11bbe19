"""A bench hides nothing: a missed goal, or a row without a figure, is a miss."""

import argparse
import contextlib
import json
import math
from types import SimpleNamespace

import first
import hosts_data
import parity
import pytest
from launch import Failed
from report import Report, Row

import actors

SLOWER = Row("a step", "s", "ours", "peer", goal=("<=", 0.65))
FASTER = Row("a start", "s", "ours", "peer", ratio="peer/ours", goal=(">=", 20))
SHOWN = Row("beside", "s", "ours", "peer")


def report(*rows, **samples):
    made = Report("test", list(rows))
    for series, values in samples.items():
        made.add(series, values)
    return made


@pytest.mark.parametrize(
    ("row", "ours", "peer", "holds"),
    [
        (SLOWER, [6.5], [10.0], True),
        (SLOWER, [6.6], [10.0], False),
        (FASTER, [1.0], [20.0], True),
        (FASTER, [1.0], [19.0], False),
        (SLOWER, [1.0, 1.0, 100.0], [10.0, 10.0, 0.1], True),  # the medians count, not the outliers
        (SLOWER, [], [10.0], False),
        (SLOWER, [1.0], [], False),
    ],
)
def test_a_goal_holds_or_is_missed(row, ours, peer, holds):
    made = report(row, ours=ours, peer=peer)
    assert made.holds(row) is holds
    assert made.good() is holds
    assert ("MISS" in made.table()) is not holds


def test_a_row_without_a_goal_is_only_shown():
    made = report(SHOWN, ours=[9.0], peer=[1.0])
    assert made.holds(SHOWN) is None
    assert made.good()


def test_a_series_with_one_failure_is_a_miss_with_the_reason():
    made = report(SLOWER, ours=[1.0], peer=[10.0])
    made.failures["ours"] = "exit code 3: no memory"
    assert made.holds(SLOWER) is False
    assert not made.good()
    assert "no memory" in made.table()


def test_a_failed_process_fails_the_bench_without_a_goal():
    made = report(SHOWN, ours=[1.0], peer=[1.0])
    made.failures["calls"] = "it died"
    assert not made.good()


def test_json_has_every_sample_and_the_machine():
    said = json.loads(report(SLOWER, ours=[1.0, 3.0], peer=[10.0]).to_json(seconds=1))
    assert said["samples"] == {"ours": [1.0, 3.0], "peer": [10.0]}
    assert said["rows"][0]["ours_median"] == 2.0
    assert said["rows"][0]["holds"] is True
    assert said["machine"]["cores"] >= 1
    assert said["commit"]


@pytest.mark.parametrize(("loss", "holds"), [(2.0, True), (2.00003, False), (math.nan, False)])
def test_parity_compares_every_step(loss, holds):
    row = Row("ours", "", "ours", "plain", goal=("<=", 1e-5))
    made = parity.ParityReport("parity", [row])
    made.add("plain", [3.0, 2.0, 1.0])
    made.add("ours", [3.0, loss, 1.0])
    assert made.holds(row) is holds


def test_rounds_alternate_and_a_failure_stops_nothing():
    order = []

    def job(name):
        def go(made):
            order.append(name)
            if name == "FSDP2":
                raise Failed("it died")
            made.add(name, [1.0])
            return {}

        return name, go

    made = report(*first.ROWS["steps"][:1])
    first._in_turn(made, "steps", [job("shoal"), job("FSDP2")], rounds=2)
    assert order == ["shoal", "FSDP2", "FSDP2", "shoal"]
    assert made.failures == {"FSDP2": "it died"}
    assert not made.good()


def test_every_series_of_a_row_is_measured_by_some_job():
    for part, jobs in (("steps", first._step_jobs()), ("memory", first._memory_jobs())):
        assert {s for row in first.ROWS[part] for s in (row.ours, row.peer)} <= {name for name, _ in jobs}


@pytest.mark.parametrize(
    ("unit", "figure", "samples", "peer"),
    [
        ("1/s", "calls_sync", {"monarch calls_sync": [1.0, 9.0, 9.0], "xoscar calls_sync": [5.0]}, "monarch calls_sync"),
        ("s", "death", {"monarch death": [8.0], "xoscar death": [0.01]}, "xoscar death"),
        ("GB/s", "argument", {"monarch argument": [0.5], "monarch argument_bytes": [0.9]}, "monarch argument_bytes"),
        ("s", "death", {}, "best death"),
    ],
)
def test_the_better_peer_of_a_figure_counts(unit, figure, samples, peer):
    row = actors._best("a figure", unit, figure, 2)
    made = report(row, **{"shoal " + figure: [1.0]}, **samples)
    chosen = actors.beside_the_best(made, row)
    assert chosen.peer == peer
    if not samples:
        assert made.holds(chosen) is False


def test_rows_match_the_selected_peers_and_figures():
    wanted = [r for r in actors.ROWS if actors._asked_for(r, {"calls_sync"}, {"xoscar"})]
    assert {r.peer for r in wanted} == {"best calls_sync", "ping-pong"}
    assert any(r.peer == "ray init_first" for r in actors.ROWS if actors._asked_for(r, set(), {"ray"}))


def test_options_of_each_bench_parse():
    parser = argparse.ArgumentParser()
    first.add_options(parser)
    assert parser.parse_args(["--only", "steps", "--rounds", "1"]).only == ["steps"]


class FakeWorld:
    """Hosts whose processes answer at once. A collective takes as long as raw TCP needs, a step 2 s, FSDP2's 6 s."""

    def __init__(self, count, pinned=True):
        self.hosts, self.pinned, self.gbit = [SimpleNamespace(name=n) for n in "abcd"[:count]], pinned, None

    def set_rate(self, gbit):
        self.gbit = gbit

    def raw(self, both_ways, seconds):
        return self.gbit * 1e9 / 8 * 0.95

    def submit(self, num_workers, resource, script, *args, **kwargs):
        if script == "train_step.py":
            step = 2.0 if self.pinned else 1.5
            return {"step_s": [step], "parameters": 100_000_000, "sent_bytes_per_step": 810e6, "exposed_s": 0.4}
        count, rate = len(self.hosts), self.gbit * 1e9 / 8 * 0.95
        sent = {n: (64 << 20) / count * (count - 1) * f for n, f in (("gather", 1), ("reduce_scatter", 1), ("all_reduce", 2))}
        seconds = {f"{w} {n} {m}": [s * m / 64 / rate] for w in ("Shoal", "gloo") for n, s in sent.items() for m in hosts_data.MIB}
        seconds |= {f"TCP exchange {m}": [sent["gather"] * m / 64 / rate] for m in hosts_data.MIB}
        return {"transport": "fake", "seconds": seconds}

    def torchrun(self, ranks_per_host, script, *args):
        return {"step_s": [6.0], "sent_bytes_per_step": 1600e6}


@pytest.fixture
def hosts_report(monkeypatch):
    """A report of `bench hosts`, by sections, on hosts that answer at once."""
    monkeypatch.setattr(hosts_data, "world", lambda count, pinned=True: contextlib.nullcontext(FakeWorld(count, pinned)))
    parser = argparse.ArgumentParser()
    hosts_data.add_options(parser)

    def measured(*words):
        return hosts_data.measure(parser.parse_args(["--rounds", "2", *words]))

    return measured


def test_rows_of_hosts_have_figures_and_goals_at_the_limit_hold(hosts_report):
    made = hosts_report("--only", "collectives", "--only", "step")
    assert not made.failures
    missing = [row.name for row in made.rows if made.value(row) is None]
    assert missing == []
    by_name = {row.name: made.value(row) for row in made.rows if row.goal}
    assert {name.split(" ")[0] for name in by_name} == {"gather", "reduce_scatter", "all_reduce", "step", ""}
    assert all(v == pytest.approx(1) for name, v in by_name.items() if " MiB, " in name)
    assert by_name["step M, 2 hosts x 2, 10 Gbit/s"] == pytest.approx(2 / 6)
    # 100 million parameters: 400 MB in and 400 MB out per host, and 810 MB by both hosts where 800 MB are necessary
    assert by_name["step M, 2 hosts x 1, 1 Gbit/s"] == pytest.approx(2 / 3.2)
    assert by_name["  bytes on the wire per step, 2 hosts x 1, 1 Gbit/s"] == pytest.approx(810 / 800)
    assert made.versions["transport, 3 hosts"] == "fake"


def test_rows_of_hosts_follow_the_rates(hosts_report):
    names = [row.name for row in hosts_report("--only", "step", "--rates", "1").rows]
    assert "step M, 2 hosts x 1, 1 Gbit/s" in names
    assert not any("10 Gbit/s" in name for name in names)
