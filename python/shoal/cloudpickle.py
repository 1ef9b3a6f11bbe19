"""``cloudpickle`` as Shoal uses it: functions keep their file name, which tracebacks need. The module's name is Ray's."""

import io
import types
from collections import ChainMap
from typing import ClassVar

import cloudpickle
from cloudpickle import *  # noqa: F403
from cloudpickle import __version__, load, loads

__all__ = ["CloudPickler", "Pickler", "__version__", "dump", "dumps", "load", "loads"]

_own, *_others = cloudpickle.Pickler.dispatch_table.maps
_reduce_code = _own[types.CodeType]


def _code_parts(code: types.CodeType) -> tuple:
    """Returns (function, arguments) that rebuild ``code``. cloudpickle 3.1.3 and later replace the file name; this puts it back."""
    make, arguments = _reduce_code(code)
    file = "".join(code.co_filename)  # a copy, so that the pickle does not depend on shared strings
    return make, tuple(file if type(a) is str and a == "<dynamic-code>" else a for a in arguments)


class Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar = ChainMap({**_own, types.CodeType: _code_parts}, *_others)


CloudPickler = Pickler


def dump(obj, file, protocol=None, buffer_callback=None) -> None:
    """Pickles ``obj`` into a file that is open for writing bytes."""
    Pickler(file, protocol=protocol, buffer_callback=buffer_callback).dump(obj)


def dumps(obj, protocol=None, buffer_callback=None) -> bytes:
    """The pickle of ``obj``."""
    with io.BytesIO() as file:
        dump(obj, file, protocol, buffer_callback)
        return file.getvalue()
