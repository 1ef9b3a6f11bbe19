"""A sharding as an SVG: every part to scale, with the ids of its devices. It has no scripts and no external fonts."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from shoal._printable import printable_lines
from shoal.spmd._layout.sharding import Sharding, parts_of

LONG, SHORT = 400, 64  # px: the longer side of a panel, and the minimum of the shorter one
LEFT, TOP, GAP, ROW = 56, 66, 28, 1000  # px: margins, space between panels, width of a row of panels
FILLS = ("#cfe8ff", "#d8f3dc", "#ffe5b4", "#f6d6ff", "#d7f5f2", "#ffd9d4", "#e4e4f7", "#f3f0c2")
STYLE = "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#222}.head{font-weight:bold}.dim{fill:#777}.part{stroke:#555}"


def picture(sharding: Sharding, shape: Sequence[int], title: str) -> str:
    """Returns the SVG. A panel shows the last two dimensions of ``shape`` (one row for one dimension), with a panel per part of the other
    dimensions. Each ``<rect class="part">`` is a nonempty part; its ``data-devices`` are the ids of all its devices. Lengths are
    proportional to ranges."""
    cuts = parts_of(shape, sharding)
    copies = sharding.copies
    holders = [sharding.devices[i * copies : (i + 1) * copies] for i in range(len(cuts))]
    outer = max(0, len(shape) - 2)
    panels: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for i, cut in enumerate(cuts):
        if all(c.stop > c.start for c in cut):
            panels.setdefault(tuple((c.start, c.stop) for c in cut[:outer]), []).append(i)
    width, height = _size(shape[outer:])
    step_x, step_y = width + LEFT + GAP, height + TOP
    per_row = max(1, ROW // step_x)
    body = []
    for n, (ranges, members) in enumerate(panels.items()):
        x, y = LEFT + n % per_row * step_x, TOP + 20 + n // per_row * step_y
        body += _panel(shape, outer, ranges, [(i, cuts[i], holders[i]) for i in members], x, y, width, height)
    empty = sorted(d for cut, who in zip(cuts, holders, strict=True) if any(c.stop == c.start for c in cut) for d in who)
    rows = -(-len(panels) // per_row)
    bottom = 44 + rows * step_y + 20
    about = f"shape {_tuple(shape)}, {len(cuts)} part{'s' * (len(cuts) > 1)} on {len(sharding.devices)} devices"
    if copies > 1:
        about += f", {copies} copies of each part"
    if empty:
        about += f"; nothing on {_ids(empty)}"
    total = max(LEFT + min(len(panels), per_row) * step_x, int(max(len(title), len(about)) * 6.8) + 24)
    document = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{bottom}" viewBox="0 0 {total} {bottom}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{total}" height="{bottom}" fill="#fff"/>',
            f'<text class="head" x="12" y="20">{escape(title)}</text>',
            f'<text class="dim" x="12" y="38">{escape(about)}</text>',
            *body,
            "</svg>\n",
        ]
    )
    return printable_lines(document)  # an XML document has no control characters


def _size(shape: Sequence[int]) -> tuple[int, int]:
    """Returns width and height of a panel: proportional to the dimensions, unless one side would be too thin to read."""
    if not shape:
        return SHORT * 2, SHORT
    if len(shape) == 1:
        return LONG, SHORT
    rows, columns = (max(n, 1) for n in shape)
    longest = max(rows, columns)
    return max(SHORT, round(LONG * columns / longest)), max(SHORT, round(LONG * rows / longest))


def _panel(shape, outer, ranges, members, x0, y0, width, height) -> list[str]:
    inner = list(shape[outer:])
    rows, columns = (1, 1) if not inner else (1, inner[0]) if len(inner) == 1 else inner
    out = []
    if outer:  # draws the panel's ranges in the other dimensions as bars to scale
        label = ", ".join([*(f"{a}:{b}" for a, b in ranges), ":", ":"])
        out.append(f'<text x="{x0}" y="{y0 - 30}">[{label}]</text>')
        for k, (a, b) in enumerate(ranges):
            y = y0 - 26 + 3 * k
            out.append(f'<rect x="{x0}" y="{y}" width="{width}" height="2" fill="#ddd"/>')
            out.append(
                f'<rect x="{_px(x0 + width * a / shape[k])}" y="{y}" width="{_px(width * (b - a) / shape[k])}" height="2" fill="#555"/>'
            )
    marks: tuple[set[int], set[int]] = (set(), set())
    for i, cut, devices in members:
        last = cut[outer:]
        down, across = [slice(0, rows), slice(0, columns)][: 2 - len(last)] + list(last)
        x, w = x0 + width * across.start / columns, width * (across.stop - across.start) / columns
        y, h = y0 + height * down.start / rows, height * (down.stop - down.start) / rows
        marks[0].update((down.start, down.stop))
        marks[1].update((across.start, across.stop))
        held = " ".join(map(str, devices))
        size = tuple(c.stop - c.start for c in cut)
        tip = f"{_ids(devices)}: {', '.join(f'{c.start}:{c.stop}' for c in cut) or 'all'}, shape {_tuple(size)}"
        out.append(
            f'<rect class="part" x="{_px(x)}" y="{_px(y)}" width="{_px(w)}" height="{_px(h)}" fill="{FILLS[i % len(FILLS)]}" '
            f"data-devices={quoteattr(held)}><title>{escape(tip)}</title></rect>"
        )
        out += _label(devices, x, y, w, h)
    if len(inner) == 2:
        out += [
            f'<text class="dim" x="{x0 - 5}" y="{y}" text-anchor="end">{at}</text>' for at, y in _spread(marks[0], rows, y0 + 4, height, 11)
        ]
    if inner:
        out += [
            f'<text class="dim" x="{x}" y="{y0 - 6}" text-anchor="middle">{at}</text>'
            for at, x in _spread(marks[1], columns, x0, width, 7 * (len(str(columns)) + 1))
        ]
    return out


def _spread(marks: set[int], size: int, start: float, length: int, least: int) -> list[tuple[int, str]]:
    """Returns the borders of parts with their coordinates, without borders whose labels would be too close to the previous or the last
    one."""
    kept: list[int] = []
    for at in sorted(marks):
        if not kept or (at - kept[-1]) * length / size >= least:
            kept.append(at)
        elif at == size:
            kept[-1:] = [at] if len(kept) > 1 else [*kept, at]
    return [(at, _px(start + length * at / size)) for at in kept]


def _label(devices: Sequence[int], x: float, y: float, w: float, h: float) -> list[str]:
    """Returns SVG text with the device ids in the middle of a part, in as many lines as needed, smaller where there is little room."""
    texts = [str(d) for d in devices]
    for size in (13, 11, 9, 7, 5):
        per_line = max(1, int((w - 4) / (0.62 * size) // (max(map(len, texts)) + 1)))
        lines = [" ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]
        if len(lines) * size * 1.2 <= h and max(map(len, lines)) * 0.62 * size <= w:
            break
    top = y + h / 2 - (len(lines) - 1) * size * 0.6 + size * 0.36
    return [
        f'<text x="{_px(x + w / 2)}" y="{_px(top + k * size * 1.2)}" text-anchor="middle" style="font-size:{size}px">{line}</text>'
        for k, line in enumerate(lines)
    ]


def _px(value: float) -> str:
    return f"{value:.6g}"


def _tuple(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _ids(devices: Sequence[int]) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {', '.join(map(str, devices))}"
