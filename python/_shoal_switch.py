"""``SHOAL_FSDP=1``: a program that imports torch's FSDP gets Shoal's, without a line of its own.

``shoal-fsdp.pth`` imports this module when an interpreter starts with the variable, so it needs only the standard library.
"""

import importlib.util
import os
import sys

_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")


def asked():
    """Whether ``$SHOAL_FSDP`` is on, in upper or lower case. Raises ValueError for a value that is neither on nor off."""
    value = os.environ.get("SHOAL_FSDP", "")
    if (word := value.strip().lower()) not in _ON + _OFF:
        raise ValueError(f"SHOAL_FSDP is 1, true, on or yes, or 0, false, off, no or empty, not {value!r}")
    return word in _ON


def switch_on():
    """Where the variable is on, ``shoal.fsdp`` is imported behind torch's FSDP, and reads the variable again.

    A value that is neither on nor off fails the import of torch's FSDP, not the start of the interpreter.
    """
    if os.environ.get("SHOAL_FSDP", "").strip().lower() not in _OFF:
        after_import("torch.distributed.fsdp", _import_shoal)


def _import_shoal(module):
    if not asked():  # the program has switched it off since
        return
    try:
        import shoal.fsdp  # noqa: F401
    except ModuleNotFoundError as error:  # some importers of torch's FSDP take a missing module for an answer
        raise ImportError(f"SHOAL_FSDP is set, but shoal.fsdp cannot be imported: {error}") from error


def after_import(name, action):
    """Calls ``action(module)`` when the module of this name has been imported: now, if it has been."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds one module, once, with a loader that acts behind it."""

    def __init__(self, name, action):
        self._name, self._action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader:
    def __init__(self, loader, action):
        self._loader, self._action = loader, action

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)
