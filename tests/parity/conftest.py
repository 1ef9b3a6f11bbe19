import os

import pytest
from warm import warm_site

import shoal


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory):
    """The cluster of all tests of one program. Ranks import the test's module, and so pytest. The interpreter from which they are forked
    imports it, and torch, once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", warm_site(tmp_path_factory.mktemp("warm") / "site", "pytest"), prepend=os.pathsep)
        shoal.init(num_cpus=16)
        yield
        shoal.shutdown()
