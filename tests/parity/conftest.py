import os

import pytest
from warm import warm_site


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Ranks import the test's module, and so pytest. The interpreter from which they are forked imports it once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", warm_site(tmp_path_factory.mktemp("warm") / "site", "pytest"), prepend=os.pathsep)
        yield
