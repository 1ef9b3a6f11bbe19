import os
import site
import sys
import sysconfig

import pytest

from shoal._actors import creation
from shoal._actors.creation import launch, remote


def test_workers_have_the_drivers_import_path(monkeypatch, tmp_path):
    """Includes a folder beside the interpreter's own: many containers have their program in /usr/src/app."""
    beside = os.path.join(sys.base_prefix, "src", "app")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), beside, *sys.path])
    path = launch()["python_path"]
    assert beside in path
    assert str(tmp_path) in path
    assert os.getcwd() in path
    for standard in (sysconfig.get_paths()["stdlib"], *site.getsitepackages()):
        assert standard not in path
    assert not any(p.endswith("lib-dynload") for p in path)


def test_workers_import_shoal_from_the_same_place():
    path = launch()["python_path"]
    assert os.path.dirname(os.path.dirname(creation.__file__)) in path


def test_a_direct_call_of_a_decorated_class_or_function_is_an_error():
    @remote
    class Counter:
        """Counts."""

    @remote(num_cpus=2)
    def double(x):
        """Doubles."""

    assert (Counter.__name__, Counter.__doc__) == ("Counter", "Counts.")
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    with pytest.raises(TypeError, match=r"Counter\.remote"):
        Counter()
    with pytest.raises(TypeError, match=r"double\.remote"):
        double(1)


def test_options_add_to_those_of_the_decorator():
    @remote(num_cpus=2, resources={"slot": 1})
    class Counter:
        pass

    assert creation._resources(Counter.options(num_gpus=0.5)._shoal_options, 0) == {"CPU": 2, "GPU": 0.5, "slot": 1}
    assert creation._resources(Counter._shoal_options, 0) == {"CPU": 2, "slot": 1}
