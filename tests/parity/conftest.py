import os

import pytest

# Ranks import the module of a test, and with it pytest: the interpreter that they are forked from has done that.
WARM = """import sys
if "shoal._zygote" in sys.orig_argv:
    import pytest
"""


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(WARM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield
