"""What shows where tensors lie: pictures of shardings."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import pytest
import torch

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.exceptions import InvalidArgument
from shoal.spmd import debugging

xr.use_spmd()
MESH = xs.Mesh([3, 1, 2, 0, 4, 6, 5, 7], (2, 4), ("x", "y"))


def parts_of(svg: str) -> list[tuple[list[int], dict[str, float], str]]:
    """Devices, rectangle and title of every part that is drawn."""
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
