"""Runs many uses of an API in one run of ranks: each on every rank. A failure is reported under the name of its use."""

from __future__ import annotations

import functools
import os
import traceback
import warnings
from collections.abc import Callable

os.environ.setdefault("SHOAL_TIMEOUT", "100")  # seconds, after which a rank that waits alone raises an error

import pytest
import torch

from shoal.train import ScalingConfig, Trainer


class Uses(dict[str, Callable[[], None]]):
    """Functions by name; as a decorator, it adds one."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self[function.__name__] = function
        return function


def run(uses: dict[str, Callable[[], None]]) -> dict[str, str]:
    """Runs all functions on this rank. Returns the name and traceback of each that failed."""
    failed = {}
    for name, function in uses.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function()
        except BaseException:  # goes on with the other functions
            failed[name] = traceback.format_exc()
        torch.distributed.barrier()
    return failed


def worlds(on_a_rank: Callable[[], dict[str, str]]):
    """Makes a fixture for a test's module: a function that takes the world size, and returns the results of ``run`` by rank. ``on_a_rank``:
    a function of that module, which the ranks import."""

    @pytest.fixture(scope="module")
    def failed():
        return functools.cache(lambda workers: Trainer(on_a_rank, scaling_config=ScalingConfig(num_workers=workers)).fit().returns)

    return failed


def ranks(on_a_rank: Callable[[], dict[str, str]], workers: int):
    """As ``worlds``, for one world size: a fixture of the results by rank."""

    @pytest.fixture(scope="module")
    def failed():
        return Trainer(on_a_rank, scaling_config=ScalingConfig(num_workers=workers)).fit().returns

    return failed


def check(name: str, failed: list[dict[str, str]]) -> None:
    for of_rank, failures in enumerate(failed):
        assert name not in failures, f"on rank {of_rank}: {failures[name]}"
