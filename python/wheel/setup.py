"""What pyproject.toml cannot say: the tag of a wheel whose extension Bazel has built, the command's script, and the .pth file."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Tagged(bdist_wheel):
    def finalize_options(self):
        if list(Path("shoal").glob("_native.abi3.so")):  # the stable ABI: else the wheel is for the building interpreter alone
            self.py_limited_api = "cp310"
        super().finalize_options()


class WithPth(build_py):
    """``SHOAL_FSDP=1`` and ``SHOAL_SPMD=1``: Python runs the .pth files that lie beside the packages when it starts."""

    def run(self):
        super().run()
        self.copy_file("shoal-fsdp.pth", str(Path(self.build_lib) / "shoal-fsdp.pth"))

    def get_outputs(self, *args, **kwargs):
        return [*super().get_outputs(*args, **kwargs), str(Path(self.build_lib) / "shoal-fsdp.pth")]


setup(distclass=Binary, cmdclass={"bdist_wheel": Tagged, "build_py": WithPth}, scripts=["shoal-command/shoal"])
