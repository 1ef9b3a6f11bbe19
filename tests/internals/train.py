"""Private names of shoal.train, that tests use."""
# ruff: noqa: F401

from shoal.train import _elastic_gang
from shoal.train._device_groups import AbortOnDeath
from shoal.train._driver import run as driver_run
from shoal.train._driver.watches import Watches
from shoal.train._gang import Gang
