import os
import site
import subprocess
import sys
import sysconfig

import pytest

import shoal
from shoal._actors.launch import launch
from shoal._actors.resources import resources_of
from shoal._driver.remote import remote


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
    assert os.path.dirname(os.path.dirname(shoal.__file__)) in path


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

    assert resources_of(Counter.options(num_gpus=0.5)._shoal_options, 0) == {"CPU": 2, "GPU": 0.5, "slot": 1}
    assert resources_of(Counter._shoal_options, 0) == {"CPU": 2, "slot": 1}


def test_the_package_loads_without_large_modules():
    program = "import shoal, sys; print(*sys.modules.keys() & {'asyncio', 'http.client', 'numpy', 'shoal.dag', 'torch'})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
