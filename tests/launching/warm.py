"""Makes workers start with the imports of their test's module already done."""

from pathlib import Path

# A worker imports the test's module for the classes of its actors, and so all that the module imports. The zygote, from which workers are
# forked, imports these modules first, with one thread.
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
