"""The metrics of a report as plain numbers and texts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MOST_LEVELS = 8  # levels of dicts in dicts, which may contain themselves

Number = int | float


class Later:
    """A copy of a number on a device. Its value is read in the tracker's thread, so that no step waits for the device
    (*unverified on hardware*)."""

    def __init__(self, tensor: Any):
        torch = sys.modules["torch"]
        self._tensor = tensor.detach().clone()
        self._copied = torch.accelerator.current_stream(tensor.device).record_event()
        self._guard = torch.accelerator.device_index(tensor.device.index)  # the tracker's thread has another current device

    def value(self) -> Number:
        with self._guard:
            self._copied.synchronize()
            return number(self._tensor.to("cpu"))


def number(value: Any) -> Any:
    """Returns the value as an int, a float or a Later. TypeError, ValueError and others for values that are no single number."""
    if isinstance(value, (bool, int)):
        return int(value) if abs(value) < 2**63 else float(value)
    if isinstance(value, float):
        return float(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # NumPy's
        return number(value.item())
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__float__"):
        raise TypeError(f"a {type(value).__name__}")
    return float(value)


def _of_tensor(tensor: Any) -> Any:
    if tensor.numel() != 1:
        raise TypeError(f"a tensor of shape {tuple(tensor.shape)}")
    if hasattr(tensor, "full_tensor"):  # all ranks would have to read it together
        raise TypeError("a DTensor: report its full_tensor()")
    return number(tensor.item()) if tensor.device.type == "cpu" else Later(tensor)


def take_apart(metrics: dict[Any, Any], refuse: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the numbers and the texts. Dicts in dicts get names with "/". ``refuse``: called with the reason of each value left out."""
    numbers: dict[str, Any] = {}
    texts: dict[str, str] = {}

    def add(items: dict[Any, Any], prefix: str, level: int) -> None:
        for key, value in list(items.items()):
            name = f"{prefix}{key}"
            if isinstance(value, dict) and level < _MOST_LEVELS:
                add(value, name + "/", level + 1)
            elif isinstance(value, str):
                texts[name] = value
            elif value is not None:
                try:
                    numbers[name] = number(value)
                except Exception as error:
                    refuse(f"metric {name} is no number: {error}")

    add(metrics, "", 1)
    return numbers, texts


def plain_config(config: dict[Any, Any]) -> dict[str, int | float | str | bool]:
    """Returns hyperparameters by name, of the types that all trackers take; other values as text."""
    found: dict[str, int | float | str | bool] = {}

    def add(items: dict[Any, Any], prefix: str, level: int) -> None:
        for key, value in items.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict) and level < _MOST_LEVELS:
                add(value, name + "/", level + 1)
            else:
                found[name] = value if isinstance(value, (bool, int, float, str)) else str(value)

    add(config, "", 1)
    return found
