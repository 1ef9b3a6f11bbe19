"""The UCX that ranks load: the system's, and that of an installed package."""

import json
from pathlib import Path

import pytest

from shoal import _native
from shoal._core import ucx


def test_the_packages_library_is_found_without_an_import(tmp_path, monkeypatch):
    assert ucx.packaged_library() == "" or "libucx" in ucx.packaged_library()
    package = tmp_path / "libucx"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert ucx.packaged_library() == ""
    (package / "lib" / "libucp.so.0").touch()
    assert ucx.packaged_library() == str(package / "lib" / "libucp.so.0")


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="UCX finds networks in /sys, which is not mounted")
def test_the_systems_library_is_loaded_first():
    path, version, transports, _ = _native.load_ucx("/nonexistent/libucp.so.0")
    assert "libucp.so.0" in path
    assert not path.startswith("/nonexistent")
    assert version.count(".") == 2
    assert ("tcp", "lo") in transports
    report = json.loads(ucx.report())
    assert (report["path"], report["version"]) == (path, version)
    assert "tcp" in report["transports"]
    assert report["devices"] or not report["rdma"]
