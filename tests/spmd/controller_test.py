"""One controller that drives several ranks: facts of torch_xla, errors and deaths of ranks, a timeline. (processes_test.py compares the
bits of results.)"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from launching.ranks import fresh


def run(program: list[str], *, workers: int, devices: int, folder: Path | None = None) -> subprocess.CompletedProcess:
    env = {"SHOAL_SPMD_WORKERS": str(workers), "SHOAL_SPMD_DEVICES": str(devices), "OMP_NUM_THREADS": "1"}
    return fresh(["-W", "ignore", *program], cwd=folder, **env)


# The sections of facts that are checked here. The others take longer; README.md has the command for all of them.
SECTIONS = {"autograd", "loader", "marking", "ops", "returned-value", "shards", "dynamo", "distributed-tensor"}
FACTS = f"""
import json, walk
print(json.dumps(walk.failures({SECTIONS!r})))
"""


def test_facts_of_torch_xla_hold_under_a_controller(home):
    done = run(["-c", FACTS], workers=1, devices=8)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    print(facts["held"])
    assert facts["held"].keys() == SECTIONS
    assert facts["failed"] == [], "\n".join(facts["failed"])


ERRORS = """
import collections, json, os, signal
import torch
import shoal.spmd as xs, shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm
from shoal.exceptions import ActorDiedError
from internals.spmd import processes, recording

def caught(action):
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")

xr.use_spmd()
device = xm.xla_device()
table = torch.nn.Embedding(4, 3).to(device)
good, bad = torch.tensor([0, 3], device=device), torch.tensor([0, 9], device=device)
for t in (good, bad):
    xs.mark_sharding(t, xs.get_1d_mesh("x"), ("x",))  # rank 1 has what is bad

# The first time an operator is asked for: raised where it stands, and the program goes on.
error = caught(lambda: table.weight @ table.weight)
assert isinstance(error, RuntimeError) and "cannot be multiplied" in str(error), error
assert "aten.mm.default, line" in str(error) and __file__ in str(error), error
smaller = torch.nn.Embedding(3, 3).to(device)
error = caught(lambda: smaller(bad))
assert isinstance(error, IndexError) and "rank 1 of 2" in str(error), error  # rank 0 has run it
assert table(good).sum().shape == ()

# Operators that have run are recorded. A wrong one among them is raised at the next read, and is the end.
"""


AFTERWARDS = """
table(bad).sum()  # THE LINE
error = caught(lambda: print((good + 1).sum().item()))
assert isinstance(error, IndexError) and "aten.embedding.default, line" in str(error) and "rank 1 of 2" in str(error), error
line = 1 + next(i for i, text in enumerate(open(__file__)) if "# THE LINE" in text)
assert f"line {line} of {__file__}" in str(error), error
for action in (lambda: good.tolist(), lambda: xm.wait_device_ops(), lambda: print(table.weight)):
    again = caught(action)
    assert "an operator failed before" in str(again) and "embedding" in str(again), again
print("done")
"""


DEATH = """
# More operators than are kept, and a timeline of them.
recording._PLANS = 4
values = torch.arange(40.0).view(8, 5)
t = values.to(device)
xs.mark_sharding(t, xs.get_1d_mesh("x"), ("x", None))
with xs.timeline("timeline.json"):
    found = [[t[i, j:].sum().item() for j in range(5)] for i in range(8)]  # line of the sums
    gram = t.t() @ t  # line of the product
assert found == [[values[i, j:].sum().item() for j in range(5)] for i in range(8)], found
events = json.load(open("timeline.json"))["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
assert names == {0: "controller", 1: "rank 0", 2: "rank 1"}, names
spans = {name: [e for e in events if e["ph"] == "X" and e["pid"] == row] for row, name in names.items()}
assert spans["controller"] and all(e["ts"] >= 0 and e["dur"] >= 0 for row in spans.values() for e in row)
ran = [[e["name"] for e in spans[f"rank {r}"] if "args" in e] for r in range(2)]
assert ran[0] == ran[1] and ran[0].count("aten.sum.default") == 40 and ran[0][-1] == "aten.mm.default", ran[0]
line = 1 + next(i for i, text in enumerate(open(__file__)) if "# line of the sums" in text)
at = {e["args"]["line"] for row in spans.values() for e in row if e["name"] == "aten.sum.default"}
assert at == {f"line {line} of {__file__}"}, at
product = spans["rank 1"][-1]
inside = [e for e in spans["rank 1"] if "communicate" in e["name"] and product["ts"] <= e["ts"] <= product["ts"] + product["dur"]]
assert inside and inside[0]["dur"] <= product["dur"], spans["rank 1"][-3:]

# Among indices, masks alone decide shapes, so that the ranks are asked.
recording._PLANS = 1000
rows = torch.tensor([6, 1], device=device)
def indexed(k):
    return [t[rows - k], t[torch.tensor([k, 3])]]
indexed(0), t[t[:, 0] > 20]
asked, query = [], processes.controller.query
processes.controller.query = lambda item: asked.append(item[0]) or query(item)
found = indexed(1)
assert asked == [], asked
found.append(t[t[:, 0] > 5])
processes.controller.query = query
assert asked, found
assert [f.tolist() for f in found] == [values[i].tolist() for i in ([5, 0], [1, 3], slice(2, 8))], found

# Other threads and the garbage collector add to a batch at any time: a question is its last item.
class Meddling(collections.deque):
    def append(self, entry):
        super().append(entry)
        super().append((("forget_replicated",), None))
processes.controller.queue = Meddling(processes.controller.queue)
assert (t + 1).sum().item() == values.sum().item() + 40
processes.controller.queue = collections.deque(processes.controller.queue)

found = xs.explain(gram)
line = 1 + next(i for i, text in enumerate(open(__file__)) if "# line of the product" in text)
assert (found.operator, found.source) == ("aten::mm", (__file__, line)) and found.num_bytes > 0, found
turned = gram.t()
view = xs.explain(turned.unsqueeze(0))
assert (view.operator, view.source, view.communicated, view.is_view) == (found.operator, found.source, found.communicated, True), view

# A rank that dies is named.
os.kill(processes.controller.pids()[1], signal.SIGKILL)
error = caught(lambda: (good.sum() + 1).tolist())  # the sum needs both
assert isinstance(error, ActorDiedError) and "rank 1" in str(error) and "from its last checkpoint" in str(error), error
assert "an operator failed before" in str(caught(lambda: (good + 1).tolist()))
print("done")
"""


# Properties of a call, besides shapes, dtypes and constants, on which its cached result depends.
FACTS_OF_CALLS = """
import torch
import shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm
from internals.spmd import processes, recording

xr.use_spmd()
device = xm.xla_device()
controller = processes.controller

# Modes of torch: those of the program.
whole = torch.arange(3).to(device)
for dtype in (torch.float64, torch.bfloat16, torch.float32):
    torch.set_default_dtype(dtype)
    for t, alone in (
        (torch.full((2,), 0.1, device=device), torch.full((2,), 0.1)),
        (whole * 0.1, torch.arange(3) * 0.1),
        (torch.nn.Linear(4, 4, device=device)(torch.ones(1, 4, device=device)), torch.ones(1, 4)),
    ):
        assert t.dtype == alone.dtype == dtype, (t.dtype, dtype)
        assert t.shape == (1, 4) or t.tolist() == alone.tolist(), (t.tolist(), alone.tolist())
torch.use_deterministic_algorithms(True)
torch.set_float32_matmul_precision("medium")
a = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
assert torch.equal((a.to(device) @ a.to(device)).cpu(), a @ a)
assert torch.isnan(torch.empty(3, device=device)).all()
torch.use_deterministic_algorithms(False)
torch.set_float32_matmul_precision("highest")

# Which arguments are the same tensor. A result is the tensor that was written.
a, b, c = (torch.full((3,), float(k)).to(device) for k in range(3))
same = a.detach()
for to in (c, a, b, a):
    assert torch.add(a, b, out=to) is to
assert torch.add(same, b, out=a) is a and torch.add(a, b, out=same) is same
x = torch.ones(3).to(device)
assert [x.mul_(b) is x, x.mul_(x) is x, x.mul_(a) is x] == [True] * 3
found, want = [t.tolist() for t in (a, b, c, x)], [torch.full((3,), float(k)) for k in range(3)]
a, b, c = want
for to in (c, a, b, a, a, a):
    torch.add(a, b, out=to)
x = torch.ones(3).mul_(b)
x.mul_(x).mul_(a)
assert found == [t.tolist() for t in (a, b, c, x)], found

# How many random numbers an operator takes: what values say is asked each time, what shapes and constants say is not.
zeros = torch.zeros(8)
takes_none = {
    "poisson": lambda t: torch.poisson(t + k),
    "binomial": lambda t: torch.binomial(t + k, t + 0.5),
    "rrelu": lambda t: torch.nn.functional.rrelu(t + 1 - k, training=True),
}
for name, draw in takes_none.items():
    k = 0
    draw(zeros.to(device))
    k = 3
    torch.manual_seed(0)
    found = draw(zeros.to(device)).tolist(), torch.rand(2).tolist()
    torch.manual_seed(0)
    assert found == (draw(zeros).tolist(), torch.rand(2).tolist()), name
q = torch.randn(1, 2, 4, 8).to(device)
def constant(q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, q) + torch.nn.functional.dropout(q, 0.0)
constant(q)
asked, query = [], controller.query
controller.query = lambda item: asked.append(item[0]) or query(item)
constant(q)
controller.query = query
assert asked == [], asked

# The controller forgets plans and templates beyond a bound.
recording._PLANS = 8
for k in range(60):
    (zeros.to(device)[: k % 7] + torch.zeros(1, k + 1).to(device)[:, : k % 7]).sum()
xm.wait_device_ops()
assert len(controller._operators) <= 8 and len(controller._plans) <= 8, (len(controller._operators), len(controller._plans))
assert len(recording.Meta._known) < 50, len(recording.Meta._known)

# A later call of use_spmd wants what is there.
for workers in (None, 2, 3):
    try:
        xr.use_spmd(workers=workers)
    except ValueError as error:
        assert workers == 3 and "gave the program 2 workers" in str(error), error
    else:
        assert workers != 3
print("done")
"""


def test_ranks_compute_the_same_as_the_program(home):
    done = run(["-c", FACTS_OF_CALLS], workers=2, devices=2)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


LATE = """
import torch
import shoal.spmd as xs, shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm
from internals.spmd import processes

assert torch.ones(3, device="xla").sum() == 3
for _ in range(2):
    try:
        xr.use_spmd(workers=2)
    except ValueError as error:
        print(error.message)
    xr.use_spmd()
"""


def test_workers_must_be_configured_before_other_calls(home):
    done = run(["-c", LATE], workers=0, devices=3)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "3, which 2 workers cannot share" in first, first
    assert "gave the program no workers" in second, second
    program = LATE.replace("for _", "assert xr.global_runtime_device_count() != 1\nfor _").replace("workers=2", "workers=1")
    done = fresh(["-c", program])
    assert "used its devices already" in done.stdout.splitlines()[0], done


@pytest.mark.parametrize("last", ["", "import shoal; shoal.shutdown()\n"], ids=["at exit", "by shutdown"])
def test_a_program_whose_last_operators_fail_ends_with_a_status(home, tmp_path, last):
    script = tmp_path / "script.py"
    script.write_text(ERRORS + "table(bad).sum()\nprint('last line')\n" + last)
    done = run([str(script)], workers=2, devices=2)
    assert (done.returncode, done.stdout) == (1, "last line\n"), done
    assert "the last operators failed: index out of range" in done.stderr, done.stderr


@pytest.mark.parametrize("then", [AFTERWARDS, DEATH], ids=["an operator fails", "a timeline, then a rank dies"])
def test_errors_of_ranks_reach_the_program(home, tmp_path, then):
    script = tmp_path / "script.py"
    script.write_text(ERRORS + then)
    done = run([str(script)], workers=2, devices=2, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_unread_errors_are_reported_at_the_end_of_a_job(shoal_command):
    cluster = shoal_command.start(cpus=3)
    script = shoal_command.script(ERRORS + "table(bad).sum()\n")
    done = shoal_command("submit", script, env=shoal_command.env(SHOAL_SPMD_WORKERS="2"))
    assert "the last operators failed: index out of range" in done.stderr, done
    assert done.returncode == 1
    assert shoal_command("stop", "--address", cluster.address).returncode in (0, 3)
