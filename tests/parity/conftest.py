import os

import pytest
from warm import warm_site


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Ranks import the test's module, which imports pytest, so the warm interpreter has imported it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", warm_site(tmp_path_factory.mktemp("warm") / "site", "pytest"), prepend=os.pathsep)
        yield
