"""docs/configuration.md lists each variable that Shoal reads and a user may set, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the source tree; resolve() because Bazel runs this file by a link
FOLDERS = ["actors", "fsdp", "python", "runtime", "scheduler", "storage"]

# Variables that Shoal sets for its own processes, and switches of tests.
INTERNAL = {
    "SHOAL_BUILD_ID",
    "SHOAL_ENV_NAMES",
    "SHOAL_FAKE_NVML",
    "SHOAL_GROUP",
    "SHOAL_GROUP_CAPTURES",
    "SHOAL_JOB_ID",
    "SHOAL_LOCAL_DEVICE",
    "SHOAL_LOGGING",
    "SHOAL_NAMESPACE",
    "SHOAL_NODE",
    "SHOAL_PACKAGES",
    "SHOAL_RESTARTS",
    "SHOAL_RUNTIME_ENV",
    "SHOAL_RUN_CPUS",
    "SHOAL_RUN_FIT",
    "SHOAL_RUN_WORKERS",
    "SHOAL_SEED",
    "SHOAL_SEEDS",
    "SHOAL_SELF_MADE",
    "SHOAL_SESSION",
    "SHOAL_WORKER_ID",
}


def read() -> set[str]:
    """The names that stand in the sources as a text of their own. Parts of names, as `SHOAL_STORE_`, are none."""
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cc", ".py") and not re.search(r"_test\.(cc|py)$|/wheel/", str(path)):
                found |= set(re.findall(r"[\"'](SHOAL_[A-Z_]*[A-Z])[\"']", path.read_text()))
    return found


def listed() -> list[str]:
    return re.findall(r"^\| `(SHOAL_[A-Z_]+)` \|", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)


def test_each_variable_that_a_user_sets_is_on_the_page():
    assert sorted(read() - INTERNAL - set(listed())) == []


def test_each_variable_of_the_page_is_read():
    assert sorted(set(listed()) - read()) == []
    assert sorted(INTERNAL - read()) == []


def test_variables_are_sorted():
    assert listed() == sorted(set(listed()))
