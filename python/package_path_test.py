"""The import path that child processes get: every folder that has a part of the package, as the extension of a build tree."""

from pathlib import Path

import shoal
from shoal import _native
from shoal._core.local_cluster import package_path


def test_child_processes_find_the_sources_and_the_extension():
    folders = package_path().split(":")
    assert folders == list(dict.fromkeys(str(Path(part).parent) for part in shoal.__path__))
    assert str(Path(_native.__file__).parents[1]) in folders
