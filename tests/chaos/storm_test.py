"""A slice of ``./dev chaos``: trainings whose workers are killed at random moments lose no step, and make none twice."""

import itertools
import os

import faults
import pytest
import storm
from launching.hosts import Hosts

WHOLE = "SHOAL_SEEDS" in os.environ  # ./dev test --all; otherwise a slice


def check(counts):
    print(counts)
    assert not counts.failures
    assert (counts.lost, counts.twice, counts.orphans) == (0, 0, 0)
    assert counts.kills == counts.survived + counts.limits
    assert counts.kills > 0


def test_a_training_on_one_host_survives_a_storm():
    check(storm.storm(storm.one_host, kills=4, seed=1, say=print))


@pytest.mark.parametrize("seed", [11, 12] if WHOLE else [11])  # the host copies the steps of an even seed's training
def test_a_training_on_devices_survives_a_storm(seed):
    check(storm.storm(storm.one_host, kills=3, seed=seed, say=print, devices=True))


@pytest.mark.skipif(bool(Hosts.why_not()), reason="needs network namespaces")
def test_a_training_on_two_hosts_survives_a_storm():
    check(storm.storm(lambda: storm.two_hosts(seats=1), kills=4, seed=3, say=print))


def test_a_seed_decides_the_faults():
    def first(seed):
        return list(itertools.islice(faults.faults(seed, faults.WEIGHTS), 200))

    assert first(1) == first(1) != first(2)
    assert {f.kind for f in first(1)} == set(faults.WEIGHTS)
    assert {f.victim(3) for f in first(1)} == {0, 1, 2}
