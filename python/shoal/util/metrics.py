"""``Counter``, ``Gauge`` and ``Histogram``: a program's metrics, for Prometheus. Names are Ray's.

Any process of a job may record: drivers, actors, functions. Records stay in the process until they are requested by ``shoal metrics``, or
by Prometheus at the head's HTTP interface (``GET /metrics``). ``shoal metrics --scrape-config`` prints the configuration for Prometheus.

A metric is exported as ``shoal_user_NAME``, a counter with the suffix ``_total``, with the labels ``node``, ``host``, ``job_id`` and
``role`` ("driver", "actor CLASS"). Counters and histograms are summed over all processes with equal labels, including ended ones. A gauge
belongs to one process, has its ``pid`` and ``worker``, and disappears with it. A tag with the name of a label is exported as
``exported_..``.

A process that ends in order (an unreferenced actor, an idle worker of functions, a leaving driver) sends its last counts to its node. If a
process is killed, also by ``kill`` or the end of its job, its counts since the last request are lost. Every process has room for %d series:
one for each combination of tag values, and for each bucket of a histogram. Further series are not recorded, with one warning. Combinations
of tags longer than 1024 bytes are not exported.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from shoal import _native
from shoal._core.numbers import number

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]

__doc__ = __doc__ % _native.MAX_METRIC_SERIES if __doc__ else __doc__

_warned = threading.Event()


def _full(name: str) -> None:
    if not _warned.is_set():
        _warned.set()
        warnings.warn(
            f"metric {name}: this process has {_native.MAX_METRIC_SERIES} series, and records no more: use tags with fewer values",
            RuntimeWarning,
            stacklevel=4,
        )


class Metric:
    """The base of the three kinds of metrics, which are the classes to use."""

    _kind = ""

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None, *, _bounds: Sequence[float] = ()):
        """``name`` and ``tag_keys``: letters, digits and ``_``, no digit first. Two objects with one name are the same metric.

        TypeError for other types. ValueError for other names, and for a name that this process has with another kind or other boundaries.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be str, got {type(name)}.")
        if name == "":
            raise ValueError("Empty name is not allowed. Please provide a metric name.")
        if not isinstance(description, str):
            raise TypeError(f"description must be str, got {type(description)}.")
        tag_keys = tag_keys or ()
        if not isinstance(tag_keys, tuple):
            raise TypeError(f"tag_keys should be a tuple type, got: {type(tag_keys)}")
        for key in tag_keys:
            if not isinstance(key, str):
                raise TypeError(f"Tag keys must be str, got {type(key)}.")
            if not _native.is_metric_label(key):
                raise ValueError(f"'{key}' is no tag key: letters, digits and _, no digit or __ first, and not 'le'.")
        if len(set(tag_keys)) < len(tag_keys):
            raise ValueError(f"Tag keys are given twice: {tag_keys}.")
        self._name, self._description, self._tag_keys = name, description, tag_keys
        self._default_tags: dict[str, str] = {}
        self._metric = _native.Metric(self._kind, name, description, list(_bounds))
        self._series: dict[Any, Any] = {}  # by tag items of a call

    def set_default_tags(self, default_tags: dict[str, str]) -> Metric:
        """Sets tag values for calls that give none. ValueError for keys outside of ``tag_keys``, TypeError for values that are not str."""
        self._checked(default_tags)
        self._default_tags = dict(default_tags)
        self._series = {}
        return self

    @property
    def info(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def _checked(self, tags: dict[str, str]) -> None:
        for key, value in tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"Unrecognized tag key {key}.")
            if not isinstance(value, str):
                raise TypeError(f"Tag values must be str, got {type(value)}.")

    def _at(self, tags: dict[str, str] | None):
        """Returns the series, or None when there are too many."""
        key = tuple(tags.items()) if tags else None
        try:
            return self._series[key]
        except KeyError:
            pass
        except TypeError:  # an unhashable value, which is no str
            self._checked(tags)
        if tags:
            self._checked(tags)
        all_tags = {**self._default_tags, **(tags or {})}
        missing = [k for k in self._tag_keys if k not in all_tags]
        if missing:
            raise ValueError(f"Missing value for tag key(s): {','.join(missing)}.")
        series = self._metric.series([(k, all_tags[k]) for k in self._tag_keys])
        if series is None:
            _full(self._name)
        else:
            self._series[key] = series
        return series

    def _arguments(self) -> tuple:
        return self._name, self._description, self._tag_keys

    def __reduce__(self):
        return _again, (type(self), self._arguments(), self._default_tags)


def _again(cls: type[Metric], arguments: tuple, default_tags: dict[str, str]) -> Metric:
    return cls(*arguments).set_default_tags(default_tags)


def _number(value) -> int | float:
    if isinstance(value, bool):
        return int(value)
    try:
        return number("value", value)
    except TypeError:
        raise TypeError(f"value must be int or float, got {type(value)}.") from None


class Counter(Metric):
    """A value that only grows: a number of events, or an amount."""

    _kind = "counter"

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Adds ``value``. ValueError unless it is above 0 and finite, and for a missing or unknown tag; TypeError for other types."""
        value = _number(value)
        if not 0 < value < math.inf:
            raise ValueError(f"value must be >0, got {value}")
        series = self._at(tags)
        if series is not None:
            series.add(value)


class Gauge(Metric):
    """A value that goes up and down; the last one is reported."""

    _kind = "gauge"

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        """Sets the value; None has no effect. ValueError for a missing or unknown tag; TypeError for other types."""
        if value is None:
            return
        value = _number(value)
        series = self._at(tags)
        if series is not None:
            series.set(value)


class Histogram(Metric):
    """Counts of values between ``boundaries``: positive, finite and ascending, each the upper limit of its bucket."""

    _kind = "histogram"

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: Sequence[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ):
        if boundaries is None or len(boundaries) == 0:
            raise ValueError(
                "boundaries argument should be provided when using the Histogram class. e.g., Histogram('name', boundaries=[1.0, 2.0])"
            )
        for i, boundary in enumerate(boundaries):
            _number(boundary)
            if not boundary > 0:
                raise ValueError(f"Invalid `boundaries` argument at index {i}, {boundaries}. Use positive values for the arguments.")
        self.boundaries = boundaries
        super().__init__(name, description, tag_keys, _bounds=[float(b) for b in boundaries])

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        """Counts ``value``. ValueError for NaN, and for a missing or unknown tag; TypeError for other types."""
        value = _number(value)
        if math.isnan(value):
            raise ValueError(f"value must be a number, got {value}")
        series = self._at(tags)
        if series is not None:
            series.observe(value)

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, "boundaries": self.boundaries}

    def _arguments(self) -> tuple:
        return self._name, self._description, self.boundaries, self._tag_keys
