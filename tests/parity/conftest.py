import os

import pytest
from launching.leftovers import wait_until
from launching.warm import warm_site

import shoal

CPUS = 16


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory):
    """The cluster of all tests of one program. Ranks import the test's module, and so pytest. The interpreter from which they are forked
    imports it, and torch, once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", warm_site(tmp_path_factory.mktemp("warm") / "site", "pytest"), prepend=os.pathsep)
        shoal.init(num_cpus=CPUS)
        yield CPUS
        shoal.shutdown()


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing(cluster):
    """The tests of each file end all that they start, so that those of the next file have the whole cluster."""
    yield
    if cluster is not None:
        wait_until(lambda: shoal.available_resources().get("CPU") == cluster, 60, "the end of all workers of this file")
