"""A strict parser of Prometheus' text format, version 0.0.4. It raises AssertionError wherever a scraper may refuse the text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?\}})? (\S+)")
_PARTS = ("_bucket", "_sum", "_count")


@dataclass
class Family:
    type: str
    help: str = ""
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)  # name of the series, labels, value

    def values(self, series: str = "", /, **labels: str) -> list[float]:
        """Values of the samples with these labels. ``series``: the end of the series' name, such as "_bucket" of a histogram."""
        return [v for name, has, v in self.samples if name.endswith(series) and labels.items() <= has.items()]


def _unescaped(text: str) -> str:
    return re.sub(r'\\(["\\n])', lambda m: "\n" if m[1] == "n" else m[1], text)


def parse(text: str) -> dict[str, Family]:
    """Parses a scrape's text into families by name."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    seen = set()
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, help_text = line.split(" ", 3)
            assert re.fullmatch(_NAME, name), line
            assert name not in families, line
            assert name not in helps, line
            helps[name] = help_text
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram"), line
            assert name not in families, line
            assert (kind == "counter") == name.endswith("_total"), line
            current, families[name] = name, Family(kind, helps.pop(name, ""))
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            series, labels, value = match.groups()
            family = families[current]
            assert series in ([current + p for p in _PARTS] if family.type == "histogram" else [current]), line
            pairs = re.findall(r'([^=,]+)="((?:[^"\\]|\\.)*)"', labels or "")
            named = {k: _unescaped(v) for k, v in pairs}
            assert len(named) == len(pairs), line
            key = (series, *sorted(named.items()))
            assert key not in seen, line
            seen.add(key)
            family.samples.append((series, named, float(value)))
    assert not helps, helps
    for name, family in families.items():
        assert family.samples, name
        if family.type == "histogram":
            _check_buckets(name, family)
    return families


def _check_buckets(name: str, family: Family) -> None:
    buckets: dict[tuple, list[tuple[float, float]]] = {}
    for series, labels, value in family.samples:
        if series == name + "_bucket":
            rest = {k: v for k, v in labels.items() if k != "le"}
            buckets.setdefault(tuple(sorted(rest.items())), []).append((float(labels["le"]), value))
    for labels, counts in buckets.items():
        assert counts == sorted(counts), (name, counts)
        assert [c for _, c in counts] == sorted(c for _, c in counts), (name, counts)
        (count,) = family.values("_count", **dict(labels))
        assert counts[-1] == (math.inf, count), (name, counts, count)
