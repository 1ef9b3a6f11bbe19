import pytest

pytest.register_assert_rewrite("running")  # its failed assertions show the values, as those of a test's own file do

from launching.fixtures import home, log, module_cluster, module_home, other, shoal_command  # noqa: E402

__all__ = ["home", "log", "module_cluster", "module_home", "other", "shoal_command"]
