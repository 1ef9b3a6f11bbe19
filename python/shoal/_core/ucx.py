"""UCX, the library for networks with RDMA: that of the package ``libucx`` (``pip install 'shoal[ucx]'``), and what this host's offers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from shoal import _native
from shoal.exceptions import ShoalError


def packaged_library() -> str:
    """Returns the path of the installed package's library, or "" without the package. It loads nothing."""
    spec = importlib.util.find_spec("libucx")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (library := Path(folder, "lib", "libucp.so.0")).is_file():
            return str(library)
    return ""


def report() -> str:
    """Returns JSON for ``shoal doctor``. ``devices``: this host has RDMA devices. ``path``, ``version``, ``transports`` and ``rdma``
    describe the UCX that ranks load; without one, ``error`` has the reason."""
    devices = Path("/sys/class/infiniband")
    found = {"devices": devices.is_dir() and any(devices.iterdir())}
    try:
        path, version, transports, rdma = _native.load_ucx(packaged_library())
    except ShoalError as error:
        return json.dumps({**found, "error": str(error)})
    names = list(dict.fromkeys(name for name, _ in transports))
    return json.dumps({**found, "path": path, "version": version, "transports": names, "rdma": rdma})
