"""Every partition spec of tensors of rank 0 to 4 on every mesh of 8 devices with 1 to 3 axes, compared with index arithmetic.

The reference is PyTorch/XLA's rule: a dimension of n elements in p parts has chunks of ceil(n / p). The device at mesh coordinate c holds
the part that c names along the dimension's axes, the first axis most significant. Devices that hold the same part are its replicas, in the
order of ids.
"""

from __future__ import annotations

import os

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import itertools
import math
import pickle
import random

import numpy as np
import pytest
import torch
from internals.spmd import ShardingType

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.exceptions import InvalidArgument

xr.use_spmd()
DEVICE = xm.xla_device()
MESHES = [m for rank in (1, 2, 3) for m in itertools.product((1, 2, 4, 8), repeat=rank) if math.prod(m) == 8]
SIZES = [8, 4, 16, 10, 7, 5, 3, 2, 1, 9, 0]  # sizes that split evenly, unevenly, or into fewer elements than parts
AXES = ("x", "y", "z")


def specs(num_axes: int, rank: int) -> list[tuple[tuple[int, ...], ...]]:
    """All specs: for each dimension a list of axes that split it, in every order, where no axis is used twice."""
    found = [((),) * rank]
    for axis in range(num_axes):
        found += [
            (*spec[:dim], (*spec[dim][:at], axis, *spec[dim][at:]), *spec[dim + 1 :])
            for spec in found
            for dim in range(rank)
            for at in range(len(spec[dim]) + 1)
        ]
    return found


def written(spec: tuple[tuple[int, ...], ...], draw: random.Random) -> tuple:
    """A spec in a random notation: axes by name or index, a single one alone or in a tuple, and None or () for no axis."""

    def entry(axes):
        axes = tuple(draw.choice((a, AXES[a])) for a in axes)
        if not axes:
            return draw.choice((None, None, ()))
        return axes[0] if len(axes) == 1 and draw.random() < 0.7 else axes

    return tuple(map(entry, spec))


class Reference:
    """The ranges of indices that each device holds. ``parts``: number of parts per dimension. ``held``: by device and dimension, the
    number of its part."""

    def __init__(self, mesh: tuple[int, ...], ids: np.ndarray, spec: tuple[tuple[int, ...], ...]):
        coordinates = np.empty((8, len(mesh)), dtype=int)
        coordinates[ids] = np.indices(mesh).reshape(len(mesh), 8).T
        self.parts = np.array([math.prod(mesh[a] for a in axes) for axes in spec], dtype=int)
        self.held = np.zeros((8, len(spec)), dtype=int)
        for dim, axes in enumerate(spec):
            for a in axes:
                self.held[:, dim] = self.held[:, dim] * mesh[a] + coordinates[:, a]
        flat = np.zeros(8, dtype=int)
        for dim, p in enumerate(self.parts):
            flat = flat * p + self.held[:, dim]
        self.copies = 8 // int(np.prod(self.parts))
        self.replicas = np.arange(8) if self.copies == 8 else (np.tril(flat[:, None] == flat[None, :], -1)).sum(1)
        order = np.argsort(flat, kind="stable")
        if self.copies == 8:
            self.type, self.text = ShardingType.REPLICATED, "{replicated}"
        else:
            whole = self.copies == 1
            tiles = list(self.parts) if whole else [*self.parts, self.copies]
            last = "" if whole else " last_tile_dim_replicate"
            self.type = ShardingType.TILED if whole else ShardingType.PARTIAL
            self.text = f"{{devices=[{','.join(map(str, tiles))}]{','.join(map(str, order))}{last}}}"

    def tile(self, shape: np.ndarray) -> np.ndarray:
        return -(-shape // self.parts)

    def bounds(self, shape: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first index, and the one past the last, by device and dimension."""
        tile = self.tile(shape)
        return np.minimum(self.held * tile, shape), np.minimum((self.held + 1) * tile, shape)

    def padded(self, whole: np.ndarray) -> list[np.ndarray]:
        """The part that each device holds, padded with zeros to the size of a full part."""
        shape = np.array(whole.shape, dtype=int)
        tile = self.tile(shape)
        full = np.zeros(self.parts * tile, whole.dtype)
        full[tuple(map(slice, shape))] = whole
        starts = self.held * tile
        return [full[tuple(slice(s, s + t) for s, t in zip(starts[d], tile, strict=True))] for d in range(8)]


@pytest.fixture(scope="module")
def checked():
    counts = {"specs": 0, "shapes": 0, "tensors": 0}
    yield counts
    print("\nmesh and spec pairs: {specs}, with shapes: {shapes}, tensors: {tensors}".format(**counts))


def test_the_numbers_of_meshes_and_specs_are_complete():
    assert len(MESHES) == 1 + 4 + 10
    for num_axes, rank in itertools.product((1, 2, 3), range(5)):
        # Number of ways to put k axes into r ordered lists, one per dimension: r (r + 1) .. (r + k - 1).
        ways = sum(math.comb(num_axes, k) * math.prod(range(rank, rank + k)) for k in range(num_axes + 1))
        assert len(set(specs(num_axes, rank))) == len(specs(num_axes, rank)) == ways


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "permuted"])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_shards_equal_index_arithmetic(sizes, shuffled, checked):
    draw = random.Random(f"{sizes} {shuffled}")
    ids = np.arange(8)
    while shuffled and (ids == np.arange(8)).all():
        ids = np.array(draw.sample(range(8), 8))
    mesh = xs.Mesh(ids, sizes, AXES[: len(sizes)])
    for rank in range(5):
        for spec in specs(len(sizes), rank):
            expected = Reference(sizes, ids, spec)
            spoken = written(spec, draw)
            sharding = mesh.get_op_sharding(spoken)
            where = f"mesh {sizes} of devices {ids.tolist()}, spec {spoken}"
            assert (str(sharding), sharding.type) == (expected.text, expected.type), where
            if expected.copies < 8:
                assert [sharding.replica(d) for d in range(8)] == expected.replicas.tolist(), where
            for _ in range(2):
                shape = np.array([draw.choice(SIZES) for _ in range(rank)], dtype=int)
                first, last = expected.bounds(shape)
                for d in range(8):
                    assert [(s.start, s.stop) for s in sharding.ranges(d, shape.tolist())] == list(
                        zip(first[d].tolist(), last[d].tolist(), strict=True)
                    ), f"{where}, shape {shape.tolist()}, device {d}"
                checked["shapes"] += 1
            checked["specs"] += 1
            if rank == 4 and math.prod(shape.tolist()) > 2000:
                shape = np.minimum(shape, 5)
            check_tensor(mesh, spoken, expected, shape, where)
            checked["tensors"] += 1


def check_tensor(mesh, spec, expected: Reference, shape: np.ndarray, where: str) -> None:
    whole = np.arange(1, shape.prod() + 1, dtype=np.float32).reshape(shape)
    t = torch.from_numpy(whole).to(DEVICE)
    marked = xs.mark_sharding(t, mesh, spec)
    where = f"{where}, shape {shape.tolist()}"
    assert (marked.sharding_spec, marked.sharding_type) == (expected.text, expected.type), where
    first, last = expected.bounds(shape)
    for d, (shard, data) in enumerate(zip(marked.local_shards, expected.padded(whole), strict=True)):
        assert shard.replica_id == expected.replicas[d], f"{where}, device {d}"
        if expected.copies == 8:
            assert shard.indices is ..., f"{where}, device {d}"
        else:
            assert shard.indices == [slice(a, b, 1) for a, b in zip(first[d], last[d], strict=True)], f"{where}, device {d}"
        assert np.array_equal(shard.data.numpy(), data), f"{where}, device {d}"
    assert np.array_equal(t.cpu().numpy(), whole), where


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: xs.Mesh(range(8), (4, 2), ("x", "y")).get_op_sharding(("z", None)), "use one of them, or give the mesh this name"),
        (lambda: xs.Mesh(range(8), (4, 2)).get_op_sharding(("z", None)), "use an index, or give the mesh this name"),
        (lambda: xs.Mesh(range(8), (4, 2)).get_op_sharding((2, None)), "use an index up to 1"),
        (lambda: xs.HybridMesh((4, 4)), "choose sizes whose product is 8"),
        (lambda: xs.HybridMesh((8,), (1, 1)), "give both one size per axis, 1 for none"),
        (lambda: xs.HybridMesh((8,), (0,)), "choose sizes whose product is 1"),
        (lambda: xs.Mesh(range(8), (4, 2), ("x",)), "give one per axis"),
        (lambda: xs.Mesh(range(8), (4, 2), ("x", "x")), "give each axis a name of its own"),
        (lambda: xs.Mesh([0] * 8, (4, 2)), r"np.arange\(8\)"),
    ],
)
def test_errors_about_axes_and_sizes_have_hints(make, hint):
    with pytest.raises(InvalidArgument, match=f"hint: {hint}"):
        make()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("_auto", "ShardingPlan"), ("_costs", "Machine"), ("_explain", "Explanation"), ("_hybrid_mesh", "HybridMesh"),
        ("_marking", "ShardingSpec"), ("_mesh", "Mesh"), ("_sharding", "ShardingType"),
    ],
)  # fmt: skip
def test_pickles_find_public_classes_by_their_earlier_modules(module, name):
    assert pickle.loads(f"cshoal.spmd.{module}\n{name}\n.".encode()) is getattr(xs, name)
