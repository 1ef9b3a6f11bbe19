"""A training step that a driver writes by hand: the unchanged example, its mathematics, its messages, and its end when a rank dies."""

import functools
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import graph_driver
import pytest
import torch
from internals.core import binary
from launching.leftovers import wait_until
from recorded import ACTIVITIES, recorded
from torch import nn

import shoal
from shoal.exceptions import ActorDiedError, InvalidArgument, ResourceExhausted, Unavailable, Unimplemented
from shoal.fsdp import graph

MSE = nn.functional.mse_loss
LOSS = graph_driver.loss


placed = []


def place(*args, **options):
    placed.append(graph.place(*args, **options))
    return placed[-1]


@pytest.fixture(scope="module")
def shared(module_home):
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


@pytest.fixture
def cluster(shared):
    """The module's cluster. After a test it closes the ranks that the test placed, and waits for the end of all actors."""
    yield
    while placed:
        placed.pop().close()
    gc.collect()
    wait_until(
        lambda: not any(a["state"] == "ALIVE" for a in shoal._core.process.state.session.list("actors")),
        5,
        "the end of all actors",
    )


def plain_losses(steps, **adamw):
    """Losses of the same model and data in one process, without Shoal."""
    torch.set_num_threads(1)
    units = nn.Sequential(*graph_driver.model().values())
    optimizer, losses = torch.optim.AdamW(units.parameters(), **{"lr": 3e-3, **adamw}), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(LOSS(units(x), y) for x, y in (graph_driver.batch(rank, step) for rank in range(2))) / 2
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same(losses, **adamw):
    for ours, theirs in zip(losses, plain_losses(len(losses), **adamw), strict=True):
        assert abs(ours - theirs) <= 1e-5 * theirs
    assert losses[-1] < losses[0] - 0.1


def example_ranks(step=None, **options):
    options = {"optimizer": graph.AdamW(lr=3e-3), **options}
    ranks = place(graph_driver.model, graph_driver.batch, LOSS, num_workers=2, **options)
    ranks.send(step or graph_driver.write_step())
    return ranks


def test_the_example_prints_falling_losses_and_draws_its_step(module_home, tmp_path):
    env = os.environ | {"SHOAL_RUN_FOLDER": str(tmp_path / "run")}
    done = subprocess.run([sys.executable, graph_driver.__file__], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ranks = recorded(tmp_path / "run")  # without close(), the driver's end ends them
    assert [(len(p.rows("steps")), p.events("end")[0]["code"]) for p in ranks] == [(graph_driver.STEPS, 0)] * 2
    assert_same([float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)])
    events = json.loads(Path(tmp_path, "out/graph_driver.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0 measured", "rank 0 planned", "rank 1 measured", "rank 1 planned"]
    for pid, name in names.items():
        if not name.endswith("measured"):
            continue
        spans = {}
        for e in events:
            if e["ph"] == "X" and e["pid"] == pid:
                spans.setdefault(e["name"], []).append((e["ts"], e["ts"] + e["dur"]))
        for u, following in itertools.pairwise(graph_driver.UNITS):
            (begin, end), (fetched, _) = spans[f"forward({u})"][0], spans[f"unshard({following})"][0]
            assert fetched < end, f"{name}: unshard({following}) began at {fetched}, after forward({u}) ended at {end}"
            assert spans[f"unshard({u})"][0][1] <= begin  # a unit's forward begins after its unshard has ended


def shown(folder):
    done = subprocess.run([binary(), "show", str(folder), "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_has_a_row_per_step_and_a_span_per_node(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    ranks = example_ranks()
    losses = [shoal.get(ranks.step()) for _ in range(10)]
    ranks.close()
    both = recorded(tmp_path)
    assert [p.facts["rank"] for p in both] == [0, 1]
    for p in both:
        assert p.facts["units"] == graph_driver.UNITS
        rows = p.rows("steps")
        assert [s["step"] for s in rows] == list(range(1, 11))
        assert all(0 <= s["us"] - sum(s[activity] for activity in ACTIVITIES) < 20 for s in rows)  # each is cut to whole microseconds
        assert all(s[activity] > 0 for s in rows for activity in ("load", "fwd", "bwd", "opt"))
        seen = {(kind, unit) for kind, unit, _, _ in p.rows("spans")[1]["spans"]}
        units = range(len(graph_driver.UNITS))
        assert seen >= {(kind, unit) for kind in ("fwd", "bwd") for unit in units} | {("fwd", -1), ("opt", -1), ("load", -1)}
        (end,) = p.events("end")
        assert (end["code"], end["cause"]) == (0, "")
    assert [m["values"]["loss"] for m in both[0].rows("metrics")] == [loss for loss, _ in losses]
    (driver,) = recorded(tmp_path, "driver")
    assert driver.events("begin")[0]["fit"] == both[0].events("begin")[0]["fit"]
    assert driver.events("end")[0]["code"] == 0
    said = shown(tmp_path)
    assert (said["step"], said["verdicts"][0]["code"]) == (10, "ended")


def test_a_step_is_one_message_per_rank(cluster):
    ranks = example_ranks()
    shoal.get(ranks.step())  # the first step opens all connections
    steps, before, (sent, received) = 6, ranks.frames(), shoal._core.process.state.session.traffic()
    losses = [shoal.get(ranks.step()) for _ in range(steps)]
    now_sent, now_received = shoal._core.process.state.session.traffic()
    assert len(losses) == steps
    assert (now_sent - sent, now_received - received) == (2 * steps, 2 * steps)
    # The frames of a rank's process, each way: one per step, and one for the call of frames() itself.
    for (s0, r0), (s1, r1) in zip(before, ranks.frames(), strict=True):
        assert (s1 - s0, r1 - r0) == (steps + 1, steps + 1)


def test_wrong_use_is_refused_in_the_driver(cluster):
    ranks = place(graph_driver.model, graph_driver.batch, LOSS, num_workers=2)
    with pytest.raises(InvalidArgument, match="no step to run"):
        ranks.step()
    with pytest.raises(InvalidArgument, match=r"the step has the units embed, the model embed, blocks\.0, blocks\.1, head"):
        ranks.send(graph.Step(["embed"]))
    step = graph.Step(graph_driver.UNITS)
    step.forward("embed", after=step.unshard("head"))
    with pytest.raises(InvalidArgument, match=r"forward\(embed\) \(node 1\) has no unshard before it"):
        ranks.send(step)
    sent = shoal._core.process.state.session.traffic()[0]
    ranks.send(graph_driver.write_step())
    assert shoal._core.process.state.session.traffic()[0] == sent + 2
    with pytest.raises(InvalidArgument, match="have a graph already"):
        ranks.send(graph_driver.write_step())
    with pytest.raises(InvalidArgument, match="num_workers"):
        place(graph_driver.model, graph_driver.batch, MSE, num_workers=0)


def test_losses_equal_one_process_and_parameters_are_read_under_leases(cluster):
    # AdamW normalises its update by the gradient, except where eps is as large. This eps exposes a sum of gradients in the place of their
    # mean.
    adamw = {"lr": 2e-2, "betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.1}
    ranks = example_ranks(optimizer=graph.AdamW(**adamw), lease_guard=True)
    assert_same([sum(shoal.get(ranks.step())) / 2 for _ in range(8)], **adamw)


def test_the_head_lists_the_gang_of_shard_actors(cluster):
    ranks = example_ranks()
    shoal.get(ranks.step())
    rows = sorted(
        (r for r in shoal._core.process.state.session.list("actors") if r["class"] == "ShardActor" and r["state"] != "DEAD"),
        key=lambda r: r["rank"],
    )
    assert [(r["rank"], r["world_size"], r["state"]) for r in rows] == [(0, 2, "ALIVE"), (1, 2, "ALIVE")]
    numel = sum(p.numel() for unit in graph_driver.model().values() for p in unit.parameters())
    assert sum(int(r["attributes"]["bytes"]) for r in rows) == 4 * numel
    assert [json.loads(shoal.get(h.describe.remote()))["rank"] for h in ranks.shard_actors] == [0, 1]


def hooked(config):
    """The losses of this rank when the example's model trains under fully_shard in place of the graph."""
    import torch.distributed as dist

    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW

    units = graph_driver.model()
    for module in units.values():
        fully_shard(module)
    model = fully_shard(nn.Sequential(*units.values()))
    optimizer, losses = AdamW(model.parameters(), lr=3e-3), []
    for step in range(config["steps"]):
        x, y = graph_driver.batch(dist.get_rank(), step)
        total = 0.0
        for i, (xi, yi) in enumerate(zip(x.chunk(config["micro"]), y.chunk(config["micro"]), strict=True)):
            model.set_requires_gradient_sync(i + 1 == config["micro"])
            loss = graph_driver.loss(model(xi), yi) / config["micro"]
            loss.backward()
            total += loss.item()
        if config["max_norm"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config["max_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def hooked_losses(steps, micro=1, max_norm=None):
    from shoal.train import ScalingConfig, Trainer

    config = {"steps": steps, "micro": micro, "max_norm": max_norm}
    return Trainer(hooked, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit().returns


PASSES = {
    "as written": {},
    "prefetched further, nothing resharded": {"prefetch": 3, "reshard_after_forward": False},
    "recomputed, updated in backward": {"recompute": ["blocks.0", "blocks.1"], "optimizer_in_backward": True},
    "in buckets, offloaded": {"bucket_bytes": 1 << 20, "offload": ["blocks.0", "head"]},
}


@pytest.mark.parametrize("name", PASSES)
def test_losses_equal_fully_shard_bit_for_bit(cluster, name, tmp_path):
    ranks = place(graph_driver.model, graph_driver.batch, LOSS, num_workers=2, optimizer=graph.AdamW(lr=3e-3), offload_folder=tmp_path)
    passes = dict(PASSES[name])
    if "bucket_bytes" in passes:
        passes["unit_bytes"] = ranks.unit_bytes
    ranks.send(graph_driver.write_step().passes(**passes) if passes else graph_driver.write_step())
    by_step = [shoal.get(ranks.step()) for _ in range(6)]
    ranks.close()
    assert [list(losses) for losses in zip(*by_step, strict=True)] == hooked_losses(6)


def test_micro_batches_and_clipping_equal_fully_shard(cluster):
    step = graph_driver.write_step().passes(micro_batches=2, max_norm=0.5)
    ranks = example_ranks(step)
    by_step = [shoal.get(ranks.step()) for _ in range(6)]
    norms = ranks.norms()
    assert norms[0] == norms[1] > 0.5
    ranks.close()
    for ours, theirs in zip(zip(*by_step, strict=True), hooked_losses(6, micro=2, max_norm=0.5), strict=True):
        assert list(ours) == pytest.approx(theirs, rel=1e-6)


def dropping():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8))
    return {"a": nn.Linear(8, 8), "b": block, "c": nn.Linear(8, 8)}


def seeded_batch(rank, step):
    torch.manual_seed(10 * step + rank)
    return torch.randn(4, 8), torch.randn(4, 8)


def started(model, step):
    ranks = place(model, seeded_batch, MSE, num_workers=2, optimizer=graph.AdamW(lr=1e-2))
    ranks.send(step)
    return ranks


def test_a_recomputed_unit_repeats_its_dropout(cluster):
    def losses(recompute):
        ranks = started(dropping, plain_step(["a", "b", "c"]).passes(recompute=recompute))
        out = [shoal.get(ranks.step()) for _ in range(4)]
        ranks.close()
        return out

    assert losses(["a", "b", "c"]) == losses([])


class Words(nn.Embedding):
    def forward(self, x):
        return nn.functional.embedding(x.argmax(1), self.weight, max_norm=1.0)


@pytest.mark.parametrize("max_norm", [1.0, None])  # without it only the forward's operator shows the write
def test_a_unit_that_writes_to_its_parameters_is_refused_by_name(cluster, max_norm):
    with pytest.raises(InvalidArgument, match=r"the forward of unit words writes to its parameter weight.* all ranks read and write"):
        shoal.get(started(lambda: {"words": Words(8, 8, max_norm=max_norm)}, plain_step(["words"])).step())


def test_incompatible_passes_are_an_error():
    step = graph_driver.write_step()
    with pytest.raises(InvalidArgument, match="global norm"):
        step.passes(max_norm=1.0, optimizer_in_backward=True)
    with pytest.raises(InvalidArgument, match="no unit 'tail'"):
        step.passes(recompute=["tail"])
    with pytest.raises(InvalidArgument, match="unit_bytes"):
        step.passes(bucket_bytes=100)
    with pytest.raises(InvalidArgument, match="max_norm = 0 is not positive"):
        step.passes(max_norm=0)


def arenas_of_the_node():
    """Bytes of the shared memories that the cluster's node holds for the graph's ranks, as the kernel counts them."""
    held = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv, environment = (process / "cmdline").read_bytes().split(b"\0"), (process / "environ").read_bytes()
            if b"role" not in argv or os.environ["SHOAL_HOME"].encode() not in environment:
                continue
            for fd in (process / "fd").iterdir():
                if os.readlink(fd).startswith("/memfd:shoal:graph-"):
                    held[os.stat(fd).st_ino] = os.stat(fd).st_size
        except OSError:
            continue
    return sum(held.values())


@pytest.mark.parametrize("passes", [{}, {"optimizer_in_backward": True}, {"offload": ["blocks.0", "blocks.1", "head"]}])
def test_the_memory_of_a_step_is_known_before_it_runs(cluster, passes, tmp_path):
    step = graph_driver.write_step().passes(**passes)
    with pytest.raises(InvalidArgument, match="of no model yet"):
        step.graph().peak_bytes()
    ranks = example_ranks(step, offload_folder=tmp_path)
    before = ranks.step_graphs()[0].memory
    numel = sum(p.numel() for unit in graph_driver.model().values() for p in unit.parameters())
    assert 4 * numel <= before.arenas <= 4 * numel * 1.02
    assert before.gradients + before.optimizer == sum(ranks.allocated_bytes())
    if not passes:
        assert (before.gradients, before.optimizer) == (4 * numel, 8 * numel)
    else:
        assert before.gradients + before.optimizer < 11.5 * numel
    shoal.get([loss for _ in range(3) for loss in ranks.step()])
    after = ranks.step_graphs()[0]
    assert after.memory == before
    assert after.peak_bytes() == before.total == before.node_bytes + sum(ranks.allocated_bytes())
    held = arenas_of_the_node()
    assert held * 0.99 <= before.node_bytes <= held * 1.01
    assert "activations are missing" in str(before)


def test_a_step_is_drawn_and_printed_in_execution_order(cluster, tmp_path):
    step = graph_driver.write_step().passes(micro_batches=2, max_norm=1.0)
    step.graph().draw(tmp_path / "written.svg")
    ranks = example_ranks(step)
    for _ in range(3):
        shoal.get(ranks.step())
    drawn = ranks.step_graphs()[1]
    drawn.draw(tmp_path / "run.svg")
    for name, times in (("written", 1), ("run", 2)):
        svg = xml.parse(tmp_path / f"{name}.svg").getroot()
        nodes = [g for g in svg.iter("{http://www.w3.org/2000/svg}g") if g.get("class") == "node"]
        assert sorted(int(g.get("data-node")) for g in nodes) == sorted(times * list(range(len(drawn))))
        assert {g.get("data-label") for g in nodes} == {n.label for n in drawn.nodes}
        texts = {t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert {"compute", "communication"} | ({"measured", "planned"} if times == 2 else set()) <= texts
        for rect in svg.iter("{http://www.w3.org/2000/svg}rect"):
            assert 0 <= float(rect.get("x", 0)) <= float(svg.get("width"))
            assert float(rect.get("y", 0)) + float(rect.get("height")) <= float(svg.get("height"))
        assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))
    head, columns, *lines = str(drawn).splitlines()
    assert re.fullmatch(rf"{len(drawn)} nodes, [0-9.]+ ms measured", head)
    assert columns.split() == ["at", "us", "took", "compute", "communication"]
    starts = [float(line.split()[0]) for line in lines]
    assert starts == sorted(starts)
    assert len(starts) == len(drawn)
    order = [" ".join(line.split()[2:]) for line in lines]
    for u in graph_driver.UNITS:
        assert order.index(f"AG {u}") < order.index(f"forward {u}") < order.index(f"backward {u}") < order.index(f"RS {u} [1]")
    assert order.index("clip") < order.index("update embed")


def test_fit_finds_a_plan_or_names_the_smallest_budget():
    step, each = graph_driver.write_step(), dict.fromkeys(graph_driver.UNITS, 1 << 20)
    labels = [n.label for n in step.fit("4MiB", each).graph().nodes]
    assert labels.count("unshard(embed)") == 1
    labels = [n.label for n in step.fit("2MiB", each).graph().nodes]
    assert labels.count("unshard(embed)") == 2
    with pytest.raises(ResourceExhausted, match="at least 2097152 bytes") as refused:
        # one byte less than the least: 1 MiB for one unit at a time, plus the fixed 1 MiB
        step.fit((2 << 20) - 1, each, fixed_bytes=1 << 20)
    assert "memory_budget=2097152" in str(refused.value)
    with pytest.raises(InvalidArgument, match="no number of bytes"):
        step.fit("much", each)


class Trap(nn.Module):
    """A module that calls `do` when its batch has a NaN."""

    def __init__(self, do):
        super().__init__()
        self.linear, self.do = nn.Linear(4, 4), do

    def forward(self, x):
        if x.isnan().any():
            self.do()
        return self.linear(x)


def die_when(told):
    while not told.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def stumble():
    raise ZeroDivisionError("a unit's own mistake")


def batch_with_a_trap(rank, step):
    return torch.full((2, 4), float("nan") if (rank, step) == (1, 2) else 1.0), torch.zeros(2, 4)


def trapped(do):
    def model():
        torch.manual_seed(0)
        return {"a": nn.Linear(4, 4), "trap": nn.Sequential(Trap(do)), "b": nn.Linear(4, 4)}

    ranks = place(model, batch_with_a_trap, MSE, num_workers=2)
    ranks.send(plain_step(["a", "trap", "b"]))
    return ranks


def plain_step(units):
    """Writes a step in which each unit's input is the output of the unit before. No unit is resharded
    before its backward."""
    step = graph.Step(units)
    x, g = None, None
    for u in step.units:
        x = step.forward(u, x, after=step.unshard(u))
    g, reduced = step.loss(x), []
    for u in reversed(step.units):
        g = step.backward(u, g)
        reduced.append(step.reduce_scatter(u, g))
        step.reshard(u, after=g)
    committed = step.commit(after=reduced)
    for u in step.units:
        step.update(u, after=committed)
    return step


def test_a_rank_killed_in_a_step_fails_the_step_on_all(cluster, tmp_path):
    told = tmp_path / "told"
    ranks = trapped(functools.partial(die_when, told))
    losses = [ranks.step() for _ in range(4)]
    assert all(len(shoal.get(step)) == 2 for step in losses[:2])
    told.touch()  # the rank dies only now, because a killed process may lose answers that it has not sent
    with pytest.raises(ActorDiedError, match="SIGKILL"):
        shoal.get(losses[2][1], timeout=60)
    with pytest.raises(ActorDiedError, match="SIGKILL") as died:
        shoal.get(losses[2][0], timeout=60)
    assert "ShardActor rank 1" in str(died.value)
    with pytest.raises(ActorDiedError):
        shoal.get(losses[3], timeout=60)


def test_a_ranks_exception_in_a_step_reaches_all(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    ranks = trapped(stumble)
    losses = [ranks.step() for _ in range(4)]
    with pytest.raises(ZeroDivisionError, match="own mistake"):
        shoal.get(losses[2][1], timeout=60)
    with pytest.raises(ActorDiedError, match="step 3 failed: ZeroDivisionError: a unit's own mistake"):
        shoal.get(losses[2][0], timeout=60)
    with pytest.raises(Exception, match="own mistake"):  # the next step fails too: the ranks do not continue after half a step
        shoal.get(losses[3][1], timeout=60)
    (end,) = recorded(tmp_path)[1].events("end")
    assert (end["code"], end["cause"]) == (1, "ZeroDivisionError: a unit's own mistake")


def batch_that_fails_once():
    failed = []

    def batch(rank, step):
        if step == 1 and not failed:
            failed.append(step)
            raise ZeroDivisionError("a batch's own mistake")
        return graph_driver.batch(rank, step)

    return batch


def test_an_error_of_a_batch_ends_no_record(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    ranks = place(graph_driver.model, batch_that_fails_once(), LOSS, num_workers=2)
    ranks.send(graph_driver.write_step())
    shoal.get(ranks.step())
    with pytest.raises(ZeroDivisionError, match="own mistake"):
        shoal.get(ranks.step())
    shoal.get(ranks.step())
    ranks.close()
    for p in recorded(tmp_path):
        assert [s["step"] for s in p.rows("steps")] == [1, 2]
        assert p.events("end")[0]["code"] == 0


def test_ctrl_c_while_records_close_leaves_no_ranks(cluster, tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    ranks = example_ranks()
    monkeypatch.setattr(graph, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ranks.close()
    with pytest.raises(ActorDiedError):
        ranks.frames()


def test_a_killed_shard_actor_fails_the_next_step(cluster):
    ranks = example_ranks()
    shoal.get(ranks.step())
    shoal.kill(ranks.shard_actors[1])

    def steps_for_ever():  # the death may be reported only during a later step
        while True:
            shoal.get(ranks.step(), timeout=60)

    with pytest.raises((ActorDiedError, Unavailable), match="ShardActor rank 1"):
        steps_for_ever()


def tied():
    shared = nn.Linear(4, 4)
    return {"a": nn.Sequential(shared), "b": nn.Sequential(shared)}


def doubles():
    return {u: m.double() for u, m in graph_driver.model().items()}


def test_a_model_that_cannot_be_placed_or_run_is_an_error(cluster):
    with pytest.raises(InvalidArgument, match="units a and b share a parameter"):
        place(tied, graph_driver.batch, LOSS, num_workers=2)
    ranks = place(doubles, graph_driver.batch, LOSS, num_workers=2)
    with pytest.raises(Unimplemented, match=r"optimizer_update\(embed\) .* is float64, and AdamW updates float32"):
        ranks.send(graph_driver.write_step())
    ranks.close()
    with pytest.raises(ActorDiedError):
        ranks.frames()


def test_a_step_is_written_with_its_own_units_and_handles():
    step, other = graph.Step(["a", "b"]), graph.Step(["a"])
    with pytest.raises(InvalidArgument, match="no unit 'c'"):
        step.unshard("c")
    with pytest.raises(InvalidArgument, match=r"unshard\(a\) \(node 0\) is a node of another step"):
        step.forward("a", after=other.unshard("a"))
    with pytest.raises(TypeError, match="not after str"):
        step.forward("a", after="a")
    with pytest.raises(InvalidArgument, match="names of their own"):
        graph.Step(["a", "a"])
    with pytest.raises(ValueError, match="lr"):
        graph.AdamW(lr=-1)
    w = step.unshard("a")
    x = step.forward("a", after=[w, None])
    step.reshard("a", after=x)
    step.loss(x)
    assert [(n.label, n.lane, n.after) for n in step.graph().nodes] == [
        ("unshard(a)", "communication", ()),
        ("forward(a)", "compute", (0,)),
        ("reshard(a)", "communication", (1,)),
        ("forward(loss)", "compute", (1,)),
    ]
    assert repr(x) == "forward(a) (node 1)"
    assert [line.split() for line in str(step).splitlines()[2:]] == [["AG", "a"], ["forward", "a"], ["free", "a"], ["forward", "loss"]]
    assert "forward(loss)" in step.graph().table()
