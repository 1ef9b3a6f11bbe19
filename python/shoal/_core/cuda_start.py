"""The start of CUDA's driver (cuInit) in this process: whether it has happened, and by which import. No forked process can use it then."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from shoal._core.variables import variable

__all__ = ["ImportWatch", "driver_started"]

# CUDA_ERROR_NOT_INITIALIZED, and CUDA_ERROR_NO_DEVICE: then the start has failed, and a fork loses nothing.
_NOT_STARTED = (3, 100)


def driver_started() -> bool:
    """Returns True if this process has called cuInit. The function neither loads the driver nor starts it."""
    for name in (variable("SHOAL_CUDA_LIBRARY"), "libcuda.so.1"):
        try:
            driver = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD) if name else None
        except OSError:  # it is not loaded
            continue
        if driver is not None and driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) not in _NOT_STARTED:
            return True
    return False


class ImportWatch:
    """Finds the import that starts the driver, among those within its ``with`` block. ``found`` describes it; "" without one."""

    def __init__(self) -> None:
        self.found = ""

    def __enter__(self) -> ImportWatch:
        if driver_started():
            self.found = f"an import at the interpreter's start (sitecustomize, or a .pth file of site-packages; {_modules()})"
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Lets the other finders find a module. After its execution, the driver is checked."""
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._follow(name, spec)
                return spec
        return None

    def _follow(self, name: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None or isinstance(loader, type) or self.found:  # a class would be the loader of all its modules
            return

        def run_and_check(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)  # restores the loader's own method
            run(module)
            # Modules that this one imports have ended before, so the first module after which the driver runs started it.
            if not self.found and driver_started():
                self.found = f"the import of {name}"

        with contextlib.suppress(AttributeError):  # a loader that refuses the attribute is not followed
            loader.exec_module = run_and_check


def _modules() -> str:
    """The packages that are imported already, besides the standard library and Shoal."""
    names = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"shoal"}
    return ", ".join(sorted(n for n in names if not n.startswith("_"))) or "no other module"
