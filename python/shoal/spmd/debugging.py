"""Shardings as tables (``torch_xla.distributed.spmd.debugging``)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shoal.exceptions import InvalidArgument, NotFound
from shoal.spmd import runtime
from shoal.spmd._layout.picture import picture
from shoal.spmd._layout.sharding import Sharding
from shoal.spmd._marks.marking import text_of

if TYPE_CHECKING:
    from rich.table import Table

_TILED = re.compile(r"\{devices=\[([\d,]+)\]([\d,]+)( last_tile_dim_replicate)?\}")
_COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "red", "bright_blue", "bright_green")


def visualize_tensor_sharding(t: torch.Tensor, **options) -> Table | str:
    """Prints the devices of each part of a tensor of the device. Options: those of visualize_sharding."""
    return visualize_sharding(text_of(t), **({"shape": tuple(t.shape)} | options))


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    *,
    svg: str | os.PathLike | None = None,
    shape: Sequence[int] | None = None,
) -> Table | str:
    """Prints a sharding, a text like ``XLAShardedTensor.sharding_spec``, as a table of its first two dimensions, and returns the table.

    Needs rich. Raises InvalidArgument, a ValueError, for another text. ``scale`` and ``min_width`` are accepted, and change nothing, as in
    torch_xla 2.9.
    ``svg``: a file that ends in .svg. The picture is written there and its text returned; nothing is printed, and rich is not needed. It
    has all dimensions, parts to scale, and copies as several ids in a cell. ``shape``: the tensor's sizes for the picture; without it all
    parts have equal size."""
    if svg is not None:
        return _written(sharding, svg, shape)
    try:
        from rich import box
        from rich.console import Console
        from rich.padding import Padding
        from rich.style import Style
        from rich.table import Table
    except ImportError:
        raise NotFound("tables of shardings are drawn with rich, which is not installed", hint="pip install rich") from None
    table = Table(show_header=False, show_lines=True, padding=0, box=box.SQUARE, pad_edge=False)
    hardware = str(runtime.global_runtime_device_attributes()[0]["name"]).partition(":")[0]
    count = 0
    for row in _cells(sharding):
        cells = []
        for devices in row:
            text = f"{hardware} {devices[0] if len(devices) == 1 else devices}"
            style = Style(bgcolor=_COLOURS[count % len(_COLOURS)]) if use_color else Style()
            cells.append(Padding(text, (1, 1, 1, 1), style=style))
            count += 1
        table.add_row(*cells)
    console = Console(width=max_width)
    console.print(f"Visualizing {sharding} (showing up to the first two dimensions)", markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    return table


def _written(text: str, path: str | os.PathLike, shape: Sequence[int] | None) -> str:
    if Path(path).suffix.lower() != ".svg":
        raise InvalidArgument(f"{path} is no .svg file: pictures are SVG only", hint=f'svg="{Path(path).with_suffix(".svg")}"')
    if text in ("", "{replicated}"):
        sharding = Sharding.replicated(len(shape or ()), runtime.global_runtime_device_count())
    else:
        tiles, ids, copied = _parsed(text)
        sharding = Sharding(tuple(tiles[:-1] if copied else tiles), tuple(ids))
    shape = sharding.parts if shape is None else tuple(shape)
    if len(shape) != len(sharding.parts):
        raise InvalidArgument(f"{text!r} splits {len(sharding.parts)} dimensions, but shape {shape} has {len(shape)}")
    drawn = picture(sharding, shape, text or "not marked: {replicated}")
    Path(path).write_text(drawn)
    return drawn


def _parsed(sharding: str) -> tuple[list[int], list[int], bool]:
    """Returns (the tile sizes, the device ids, True if the last tile size is the number of copies) of a sharding in XLA's text form."""
    found = _TILED.fullmatch(sharding)
    if found is None:
        raise InvalidArgument(f"{sharding!r} is not a sharding", hint="pass {replicated} or {devices=[..]..}, as sharding_spec has it")
    tiles, ids = ([int(n) for n in text.split(",")] for text in found.groups()[:2])
    if math.prod(tiles) != len(ids):
        raise InvalidArgument(f"{sharding!r} has {math.prod(tiles)} places for {len(ids)} devices")
    return tiles, ids, bool(found[3])


def _cells(sharding: str) -> list[list[list[int]]]:
    """Returns the devices per row and column of the table. A cell has the devices of all parts along further dimensions."""
    if sharding in ("", "{replicated}"):
        return [[list(range(runtime.global_runtime_device_count()))]]
    tiles, ids, copied = _parsed(sharding)
    parts = tiles[:-1] if copied else tiles
    rows, columns = (1, parts[0]) if len(parts) == 1 else parts[:2]
    per_cell = len(ids) // (rows * columns)
    starts = range(0, len(ids), per_cell)
    cells = [ids[s : s + per_cell] for s in starts]
    return [cells[r * columns : (r + 1) * columns] for r in range(rows)]
