"""Tools that show layouts and communication: pictures of shardings, explanations, counted bytes."""

from __future__ import annotations

import copy
import inspect
import os
import xml.etree.ElementTree as ElementTree

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import pytest
import torch
from torch import nn

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.exceptions import InvalidArgument
from shoal.spmd import debugging

xr.use_spmd()
MESH = xs.Mesh([3, 1, 2, 0, 4, 6, 5, 7], (2, 4), ("x", "y"))


def test_a_program_that_records_nothing_has_no_hooks(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path))
    monkeypatch.setenv("SHOAL_RECORD", "0")
    before = len(torch.nn.modules.module._global_forward_hooks)
    xr.use_spmd()
    assert len(torch.nn.modules.module._global_forward_hooks) == before


def parts_of(svg: str) -> list[tuple[list[int], dict[str, float], str]]:
    """The devices, rectangle and title of every part that the picture shows."""
    found = []
    for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"):
        if e.get("class") == "part":
            box = {k: float(e.get(k)) for k in ("x", "y", "width", "height")}
            found.append(([int(d) for d in e.get("data-devices").split()], box, e[0].text))
    return found


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((10,), (("x", "y"),)),
        ((7,), ("y",)),
        ((7, 5), ("y", "x")),
        ((7, 5), (None, "y")),
        ((300, 2), (None, "x")),
        ((5, 6, 9), ("x", None, "y")),
        ((3, 9, 4), ("y", "x", None)),
        ((6, 4), (None, None)),
        ((2, 3, 4, 5), (None, "x", None, "y")),
        ((), ()),
    ],
    ids=str,
)
def test_pictures_have_each_part_to_scale_with_the_devices_that_hold_it(shape, spec, tmp_path):
    t = torch.zeros(shape).to(xm.xla_device())
    marked = xs.mark_sharding(t, MESH, spec)
    svg = debugging.visualize_tensor_sharding(t, svg=tmp_path / "t.svg")
    assert (tmp_path / "t.svg").read_text() == svg
    held: dict[str, list[int]] = {}
    sizes: dict[str, torch.Size] = {}
    for device, shard in enumerate(marked.local_shards):
        cuts = [slice(0, n) for n in shape] if shard.indices is ... else shard.indices
        if shard.unpadded_data.numel():
            text = ", ".join(f"{c.start}:{c.stop}" for c in cuts) or "all"
            held.setdefault(text, []).append(device)
            sizes[text] = shard.unpadded_data.shape
    drawn = parts_of(svg)
    assert len(drawn) == len(held)
    scales = set()
    for devices, box, title in drawn:
        ranges = title.partition(": ")[2].partition(", shape")[0]
        assert held.pop(ranges) == devices, title
        rows, columns = (1, 1, *sizes[ranges])[-2:]
        scales.add((round(box["width"] / columns, 2), round(box["height"] / rows, 2)))
    assert not held
    assert len(scales) == 1, "one scale per dimension"
    texts = [e.text for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert xs.XLAShardedTensor(t).sharding_spec == texts[0]
    nothing = [str(d) for d, s in enumerate(marked.local_shards) if not s.unpadded_data.numel()]
    assert (f"nothing on device{'s' if len(nothing) > 1 else ''} {', '.join(nothing)}" in texts[1]) == bool(nothing)


def test_pictures_of_texts_draw_equal_parts_and_do_not_overlap(tmp_path):
    svg = debugging.visualize_sharding("{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", svg=tmp_path / "a.SVG")
    drawn = parts_of(svg)
    assert [d for d, _, _ in drawn] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len({(b["width"], b["height"]) for _, b, _ in drawn}) == 1
    svg = debugging.visualize_sharding("{devices=[2,2,2]0,1,2,3,4,5,6,7}", svg=tmp_path / "a.svg", shape=(5, 5, 5))
    boxes = [b for _, b, _ in parts_of(svg)]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = (a["x"] >= b["x"] + b["width"] - 0.01, b["x"] >= a["x"] + a["width"] - 0.01)
            assert any(apart) or a["y"] >= b["y"] + b["height"] - 0.01 or b["y"] >= a["y"] + a["height"] - 0.01


def test_pictures_refuse_other_files_and_shapes(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no \.svg file"):
        debugging.visualize_sharding("{replicated}", svg=tmp_path / "a.png")
    with pytest.raises(InvalidArgument, match="splits 2 dimensions"):
        debugging.visualize_sharding("{devices=[8,1]0,1,2,3,4,5,6,7}", svg=tmp_path / "a.svg", shape=(8,))
    assert list(tmp_path.iterdir()) == []


LINE = xs.Mesh(range(8), (8,), ("d",))


def marked(spec, *shape, mesh=LINE):
    t = torch.arange(float(torch.Size(shape).numel())).view(shape).to(xm.xla_device())
    xs.mark_sharding(t, mesh, spec)
    return t


def source_of(explanation) -> str:
    """The text of the line in this file that the explanation names."""
    file, line = explanation.source
    assert file == __file__
    return inspect.getsource(inspect.getmodule(marked)).splitlines()[line - 1].strip()


def test_a_marked_tensor_is_explained_by_its_mark():
    t = marked((None, ("y",)), 6, 5, mesh=MESH)
    found = xs.explain(t)
    assert (found.operator, source_of(found)) == ("mark_sharding", "xs.mark_sharding(t, mesh, spec)")
    assert found.communicated == ()  # nothing, because each device had the whole tensor
    shards = xs.XLAShardedTensor(t).local_shards
    held = {d: [(r.start, r.stop) for r in ranges] for devices, ranges in found.parts for d in devices}
    assert held == {d: [(i.start, i.stop) for i in s.indices] for d, s in enumerate(shards) if s.unpadded_data.numel()}
    whole = torch.ones(4, device=xm.xla_device())
    assert "it was created whole" in str(xs.explain(whole))
    with pytest.raises(RuntimeError, match="not a Tensor of the host"):
        xs.explain(torch.ones(4))


def test_operators_are_explained_with_line_and_communicated_bytes():
    xs.communicated(reset=True)
    rows, columns = marked(("d", None), 16, 16), marked((None, "d"), 16, 16)
    assert xs.communicated() == {}
    product = rows.t() @ rows  # each device sums the products of two rows
    total = rows + columns
    summed, added = xs.explain(product), xs.explain(total)
    assert (summed.operator, source_of(summed)) == ("aten::mm", "product = rows.t() @ rows  # each device sums the products of two rows")
    assert summed.communicated == (("all_reduce", 8 * 2 * 7 * 16 * 16 * 4 // 8),)
    # A device needs two rows of 16 and has two columns: 4 of these 32 elements are there already, and it receives 28.
    assert (added.operator, added.communicated) == ("aten::add", (("all_to_all", 8 * 28 * 4),))
    same = (rows * 2).exp()
    assert xs.explain(same).communicated == ()
    assert "aten::exp" in str(xs.explain(same))
    assert xs.communicated() == {"all_reduce": summed.num_bytes, "all_to_all": added.num_bytes}
    assert xs.communicated("operator") == {"aten::add": added.num_bytes, "aten::mm": summed.num_bytes}
    rows.cpu()
    assert xs.communicated("operator", reset=True)["read"] == 8 * 14 * 16 * 4
    assert xs.communicated() == {}
    with pytest.raises(InvalidArgument, match="communicated"):
        xs.communicated("device")


def test_operators_of_several_steps_and_without_a_rule_are_explained_as_one():
    t = marked(("d", None), 16, 4)
    mean = xs.explain(t.mean(0))
    assert (mean.operator, mean.communicated) == ("aten::mean", (("all_reduce", 8 * 2 * 7 * 4 * 4 // 8),))
    with pytest.warns(UserWarning, match="no rule"):
        found = xs.explain(torch.trace(t))
    assert (found.operator, found.communicated) == ("aten.trace.default", (("all_gather", 8 * 14 * 4 * 4),))


def test_explanations_name_lines_of_the_program():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU())

        def forward(self, x):
            return self.inner(x)  # the forward pass

    model = Model().to(xm.xla_device())
    y = model(marked(("d", None), 16, 16))
    assert source_of(xs.explain(y)) == "return self.inner(x)  # the forward pass"
    y.sum().backward()  # the backward pass
    found = xs.explain(model.inner[0].weight.grad)
    assert source_of(found) == "y.sum().backward()  # the backward pass"


def test_layers_split_by_columns_and_rows_add_up_once():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    net = copy.deepcopy(plain).to(xm.xla_device())
    for p, spec in ((net[0].weight, ("d", None)), (net[0].bias, ("d",)), (net[2].weight, (None, "d"))):
        xs.mark_sharding(p, LINE, spec)
    x = torch.randn(4, 16)
    xs.communicated(reset=True)
    y = net(x.to(xm.xla_device()))
    only = {"all_reduce": 8 * 2 * 7 * 4 * 16 * 4 // 8}
    assert (xs.explain(y).operator, xs.communicated()) == ("aten::addmm", only)
    torch.testing.assert_close(y.cpu(), plain(x))
    xs.communicated(reset=True)
    y.sum().backward()
    assert xs.communicated() == {}
    plain(x).sum().backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)
    bias, a, b = (torch.randn(s) for s in ((6,), (5, 16), (16, 6)))
    there = [t.to(xm.xla_device()) for t in (bias, a, b)]
    xs.mark_sharding(there[1], LINE, (None, "d"))
    xs.mark_sharding(there[2], LINE, ("d", None))
    for beta, alpha in ((1, 1), (2, 0.5), (0, 3)):
        want = torch.addmm(bias, a, b, beta=beta, alpha=alpha)
        torch.testing.assert_close(torch.addmm(*there, beta=beta, alpha=alpha).cpu(), want)
    there[0] = torch.zeros(5, 6, device=xm.xla_device())
    there[0].addmm_(*there[1:])
    torch.testing.assert_close(there[0].cpu(), a @ b)


@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_a_step_communicates_the_planned_bytes():
    for batch, budget in ((8, None), (512, None), (512, 300_000)):
        model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 64))
        x = torch.randn(batch, 64).to(xm.xla_device())
        machine = xs.Machine(flops=1e9, latency=1e-6)
        plan = xs.auto_shard(model, x, memory_budget=budget, machine=machine, quiet=True)
        xs.communicated(reset=True)
        y = model(x)
        y.backward(torch.ones_like(y))
        planned: dict[str, float] = dict(plan.activations)
        for row in plan.rows:
            for name, n in row.collectives.items():
                planned[name] = planned.get(name, 0) + n
        assert planned, "something travels"
        assert xs.communicated() == {name: 8 * n for name, n in planned.items()}


def test_views_are_explained_by_their_base():
    layer = nn.Linear(16, 4, bias=False).to(xm.xla_device())
    x = marked(("d", None), 16, 16)
    layer(x).sum().backward()  # the gradient
    found = xs.explain(layer.weight.grad)  # a transposed product
    assert (found.operator, source_of(found)) == ("aten::mm", "layer(x).sum().backward()  # the gradient")
    assert found.communicated == (("all_reduce", 8 * 2 * 7 * 16 * 4 * 4 // 8),)
    assert "a view of what was laid out by aten::mm" in str(found)
    assert (xs.explain(x.t()).operator, xs.explain(x.t()[2:]).is_view, xs.explain(x).is_view) == ("mark_sharding", True, False)
    assert not xs.explain(x.reshape(4, 64)).is_view  # its rows come from several devices, so that it is a copy


def test_equal_collectives_are_explained_once():
    x = marked(("d", None), 16, 4)
    xs.communicated(reset=True)
    found = xs.explain(x.var(0))  # var reduces twice: a mean, and the mean of squares
    assert found.communicated == tuple(xs.communicated().items())
    assert str(found).count("all_reduce: ") == 1
