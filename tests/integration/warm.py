"""Workers that start with their test module's imports already done."""

from pathlib import Path

# Workers import a test's module for its actors' classes, and with it these modules. The interpreter that they are forked from imports them
# first, with one thread.
_SITE = """import contextlib, os, sys
if "shoal._zygote" in sys.orig_argv:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with contextlib.suppress(ImportError):  # an environment of its own has what it has
        import {}
"""


def warm_site(folder: Path, *modules: str) -> str:
    """Makes a folder for PYTHONPATH by which the interpreters that workers are forked from import these modules. Returns its path."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE.format(", ".join(modules)))
    return str(folder)
