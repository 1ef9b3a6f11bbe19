"""``SHOAL_FSDP=1``: a program that imports torch's FSDP gets Shoal's, without a line of its own. ``SHOAL_SPMD=1``: a program that imports
torch_xla gets ``shoal.spmd``.

``shoal-fsdp.pth`` imports this module when an interpreter starts with a variable, so it needs only the standard library.
"""

import importlib.machinery
import importlib.util
import os
import sys

ON, OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")


def is_on(variable="SHOAL_FSDP"):
    """Returns True if the variable is on, in upper or lower case. Raises ValueError for a value that is neither on nor off."""
    value = os.environ.get(variable, "")
    if (word := value.strip().lower()) not in ON + OFF:
        raise ValueError(f"{variable} is 1, true, on or yes, or 0, false, off, no or empty, not {value!r}")
    return word in ON


def _is_set(variable):
    return os.environ.get(variable, "").strip().lower() not in OFF


def switch_on():
    """Adds an import hook for each variable that is set. One imports ``shoal.fsdp`` after torch's FSDP, the other loads ``shoal.spmd`` in
    place of torch_xla. A hook reads its variable again when it acts, because the program may have changed it.

    A value that is neither on nor off fails the import of torch's FSDP, or of torch_xla, not the start of the interpreter.
    """
    if _is_set("SHOAL_FSDP"):
        after_import("torch.distributed.fsdp", _import_shoal)
    if _is_set("SHOAL_SPMD") and not any(isinstance(finder, _TorchXla) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchXla())


def _import_shoal(module):
    if not is_on():  # the program has switched it off since
        return
    try:
        import shoal.fsdp  # noqa: F401
    except ModuleNotFoundError as error:  # some importers of torch's FSDP go on without it if a module is missing, which would hide this
        raise ImportError(f"SHOAL_FSDP is set, but shoal.fsdp cannot be imported: {error}") from error


def after_import(name, action):
    """Calls ``action(module)`` when the module of this name has been imported: now, if it has been."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """The import hook for one module. It acts once, after that module has been imported."""

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


class _TorchXla:
    """Finds torch_xla, and loads ``shoal.spmd`` for it when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch_xla" or not is_on("SHOAL_SPMD"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        try:
            import shoal.spmd
        except ModuleNotFoundError as error:  # some importers of torch_xla go on without it if a module is missing, which would hide this
            raise ImportError(f"SHOAL_SPMD is set, but shoal.spmd cannot be imported: {error}") from error
        shoal.spmd.install()
        module = sys.modules["torch_xla"]
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec

    def find_distributions(self, context):
        """Gives importlib.metadata torch_xla's version before the first import; ``install`` adds a finder for later requests."""
        if context.name not in ("torch_xla", "torch-xla") or "torch_xla" in sys.modules or not is_on("SHOAL_SPMD"):
            return []
        from shoal.spmd._names.install import Metadata

        return [Metadata()]
