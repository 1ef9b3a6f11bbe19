"""What pyproject.toml cannot say: the tag of a wheel whose extension somebody else (Bazel) has built, and the command's script."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Tagged(bdist_wheel):
    def finalize_options(self):
        if list(Path("shoal").glob("_native.abi3.so")):  # the stable ABI: else the wheel is for the building interpreter alone
            self.py_limited_api = "cp310"
        super().finalize_options()


setup(distclass=Binary, cmdclass={"bdist_wheel": Tagged}, scripts=["shoal-command/shoal"])
