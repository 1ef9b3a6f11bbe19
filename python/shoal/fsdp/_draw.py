"""Draws a step graph as SVG: lanes from top to bottom, time from left to right, measured above planned. No scripts or web fonts."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape, quoteattr

from shoal._printable import printable_lines

WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 1400, 130, 24, 20, 3, 34
MAX_ROWS = 8  # the most rows of labelled bars in a lane
CHAR = 6.3  # approximate width of a character of an 11 px label
COLORS = {
    "unshard": "#8ecae6",
    "all_gather": "#8ecae6",
    "copy": "#b5838d",
    "forward": "#a7c957",
    "recompute": "#d4e09b",
    "backward": "#6a994e",
    "reshard": "#ced4da",
    "reduce_scatter": "#f4a261",
    "all_reduce": "#f4a261",
    "clip_norm": "#e9c46a",
    "commit": "#c1121f",
    "optimizer_update": "#9d8df1",
    "fetch": "#e5989b",
    "offload": "#b5838d",
}
DARK = {"backward", "commit"}


def draw(nodes, lanes) -> str:
    """Returns the SVG document. Each of ``nodes`` has an id, a label, a lane, an op, and planned and measured (start, end) in microseconds
    or None."""
    panels = [(k, {n.id: getattr(n, k) for n in nodes if getattr(n, k)}) for k in ("measured", "planned")]
    panels = [(name, spans) for name, spans in panels if spans] or [("in order", {n.id: (float(i), i + 1.0) for i, n in enumerate(nodes)})]
    end = max((e for _, spans in panels for _, e in spans.values()), default=1.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / end
    body, y = [], 16
    for name, spans in panels:
        height, drawn = _panel(name, nodes, spans, lanes, scale, y)
        body += drawn
        y += height
    timed = panels[0][0] != "in order"
    body += _axis(end, scale, y, timed) + _legend(nodes, y + 40)
    height = y + 64
    style = "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#222}.dark{fill:#fff}.head{font-weight:bold}.dim{fill:#777}"
    document = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>\n",
        ]
    )
    return printable_lines(document)  # an XML document has no control characters


def _panel(name: str, nodes, spans, lanes, scale: float, top: float) -> tuple[float, list[str]]:
    """Draws one set of times: a band per lane that has nodes. Bars and labels that would overlap go to separate rows of the band."""
    out = [f'<text class="head" x="8" y="{top + 12}">{escape(name)}</text>']
    y = top + HEAD - 12
    for lane in lanes:
        placed = [n for n in nodes if n.lane == lane and n.id in spans]
        if not placed:
            continue
        rows: list[float] = []  # by row: the end of its last bar or label
        crowded = False
        bars = []
        for n in sorted(placed, key=lambda n: (spans[n.id][0], n.id)):
            start, stop = spans[n.id]
            x, width, text = LEFT + start * scale, max((stop - start) * scale, 2.5), len(n.label) * CHAR
            inside = text + 6 <= width
            at_left = not inside and x + width + 4 + text > WIDTH - 4
            begin = x - 4 - text if at_left else x
            until = x + width + (0 if inside or at_left else 4 + text)
            row = next((i for i, free in enumerate(rows) if free <= begin), len(rows))
            named = row < MAX_ROWS
            if not named:  # no room for the label: the bar alone, below the others
                row, until, crowded = MAX_ROWS, x + width, True
            elif row == len(rows):
                rows.append(0.0)
            if named:
                rows[row] = max(rows[row], until + 2)
            label = None if not named else (x + 4, "start") if inside else (x - 3, "end") if at_left else (x + width + 3, "start")
            bars.append((n, row, x, width, label, inside, start, stop))
        height = (len(rows) + crowded) * (BAR + GAP) + GAP
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{height}" fill="#f5f6f8"/>')
        out.append(f'<text x="8" y="{y + BAR - 4}">{escape(lane)}</text>')
        for n, row, x, width, label, inside, start, stop in bars:
            at = y + GAP + row * (BAR + GAP)
            title = f"{n.label}, node {n.id}" + (f": {start:.0f} to {stop:.0f} us" if name != "in order" else "")
            out.append(f'<g class="node" data-node="{n.id}" data-label={quoteattr(n.label)}><title>{escape(title)}</title>')
            color = COLORS.get(n.op, "#bbb")
            out.append(f'<rect x="{x:.2f}" y="{at}" width="{width:.2f}" height="{BAR}" rx="2" fill="{color}"/>')
            if label:
                dark = ' class="dark"' if inside and n.op in DARK else ""
                out.append(f'<text{dark} x="{label[0]:.2f}" y="{at + BAR - 6}" text-anchor="{label[1]}">{escape(n.label)}</text>')
            out.append("</g>")
        y += height + 6
    return y - top + 6, out


def _axis(end: float, scale: float, y: float, timed: bool) -> list[str]:
    step = 10 ** math.floor(math.log10(end / 5)) if end > 0 else 1
    step = next(s for s in (step, 2 * step, 5 * step, 10 * step) if end / s <= 12)
    step = step if timed else max(1, round(step))
    unit, by = ("ms", 1000) if timed and end >= 2000 else ("us", 1) if timed else ("node", 1)
    out = [f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#888"/>']
    for i in range(int(end / step + 1e-9) + 1):
        x = LEFT + i * step * scale
        label = f"{i * step / by:g}" + (f" {unit}" if i == 0 else "")
        out.append(f'<line x1="{x:.2f}" y1="{y}" x2="{x:.2f}" y2="{y + 5}" stroke="#888"/>')
        out.append(f'<text class="dim" x="{x:.2f}" y="{y + 18}" text-anchor="middle">{label}</text>')
    return out


def _legend(nodes, y: float) -> list[str]:
    out, x = [], LEFT
    for op in dict.fromkeys(n.op for n in nodes):
        out.append(f'<rect x="{x:.0f}" y="{y}" width="12" height="12" rx="2" fill="{COLORS.get(op, "#bbb")}"/>')
        out.append(f'<text x="{x + 17:.0f}" y="{y + 10}">{escape(op)}</text>')
        x += 17 + len(op) * CHAR + 22
    return out
