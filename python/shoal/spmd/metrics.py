"""Counters of the program so far (``torch_xla.debug.metrics``): one per operator without a rule for sharded tensors."""

from __future__ import annotations

from shoal.spmd._engine import execution as _execution


def counter_names() -> list[str]:
    """Returns the names of operators without a rule, such as ``aten.tril.default``."""
    return list(_execution.replicated_ops())


def counter_value(name: str) -> int | None:
    """Returns the number of runs of an operator on whole tensors; None for one that has not run so."""
    return _execution.replicated_ops().get(name)


def executed_fallback_ops() -> list[str]:
    return counter_names()


def clear_counters() -> None:
    _execution.forget_replicated_ops()


def clear_all() -> None:
    clear_counters()


def metric_names() -> list[str]:
    """Returns an empty list: operators run at once, and nothing is compiled."""
    return []


def metric_data(name: str) -> None:
    return None


def metrics_report() -> str:
    """Returns lines of the form ``Counter: NAME`` and ``Value: TIMES``."""
    return "".join(f"Counter: {name}\n  Value: {times}\n" for name, times in _execution.replicated_ops().items())


def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    found = _execution.replicated_ops()
    return "".join(f"Counter: {n}\n  Value: {found[n]}\n" for n in (found if counter_names is None else counter_names) if n in found)
