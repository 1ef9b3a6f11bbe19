"""``SHOAL_FSDP=1``: a program that imports torch's FSDP gets Shoal's, without a line of its own.

``shoal-fsdp.pth`` imports this module when an interpreter starts with the variable, so it needs only the standard library.
"""

import importlib.util
import sys


def switch_on():
    """``shoal.fsdp`` is imported behind torch's FSDP, and reads the variable."""
    after_import("torch.distributed.fsdp", _import_shoal)


def _import_shoal(module):
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
