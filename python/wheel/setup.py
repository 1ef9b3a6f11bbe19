"""Parts of the build that pyproject.toml cannot express: the tag of a wheel with a Bazel extension, the command's script, the .pth file."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Tagged(bdist_wheel):
    def finalize_options(self):
        if list(Path("shoal").glob("_native.abi3.so")):  # the stable ABI; otherwise the wheel is for the building interpreter only
            self.py_limited_api = "cp310"
        super().finalize_options()


class WithPth(build_py):
    """Adds the .pth file for ``SHOAL_FSDP=1`` and ``SHOAL_SPMD=1``: Python runs .pth files beside the packages when it starts."""

    def run(self):
        super().run()
        self.copy_file("shoal-fsdp.pth", str(Path(self.build_lib) / "shoal-fsdp.pth"))

    def get_outputs(self, *args, **kwargs):
        return [*super().get_outputs(*args, **kwargs), str(Path(self.build_lib) / "shoal-fsdp.pth")]


setup(distclass=Binary, cmdclass={"bdist_wheel": Tagged, "build_py": WithPth}, scripts=["shoal-command/shoal"])
