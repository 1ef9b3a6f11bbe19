"""The names of torch that the package uses, and the versions of torch that have them.

``python tests/torch_versions/names.py`` adds the installed version of torch to ``names.txt``; run it with each supported version after the
package has begun to use a new name.
"""

from __future__ import annotations

import ast
import importlib
import warnings
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parent / "names.txt"
PACKAGE = FILE.parents[2] / "python" / "shoal"
VERSION = ".".join(torch.__version__.split(".")[:2])
ELSEWHERE = ("torch.utils.tensorboard", "torch.distributed.ProcessGroupNCCL")  # they need a package besides torch, or a build for CUDA


def used() -> set[str]:
    """Returns the dotted names of modules and attributes of torch in the package's sources."""
    return {name for file in PACKAGE.rglob("*.py") for name in _used_in(ast.parse(file.read_text())) if not name.startswith(ELSEWHERE)}


def _used_in(tree: ast.AST) -> set[str]:
    local: dict[str, str] = {}  # dotted names of torch by the names that the file gives them
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    local[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    found.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                local[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.add(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in local:
            found.add(".".join([local[node.id], *reversed(parts)]))
    return found


def exists(name: str) -> bool:
    """Returns True if the installed torch has the name, as far as it consists of modules and classes."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
            if not (isinstance(found, type) or type(found).__name__ == "module"):
                return True
        return True
    return False


def recorded() -> tuple[list[str], dict[str, list[str]]]:
    """Returns the versions of the record, and by name the versions without it."""
    first, *lines = FILE.read_text().splitlines()
    return first.split()[1:], {name: absent for name, *absent in map(str.split, lines)}


def record() -> None:
    versions, names = recorded() if FILE.exists() else ([], {})
    versions = sorted({*versions, VERSION})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = [f"versions {' '.join(versions)}"]
        for name in sorted(used()):
            absent = {*names.get(name, [])} - {VERSION} | (set() if exists(name) else {VERSION})
            lines.append(" ".join([name, *sorted(absent)]))
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    record()
