"""The choice of buddies: a rank of another host, and as many replicas for each rank as for the others."""

import itertools

import pytest
from internals.distributed import buddies


def test_one_host_has_no_buddies():
    assert buddies("a") == (-1,)
    assert buddies("aaa") == (-1, -1, -1)


def test_two_hosts_hold_each_others_replicas():
    assert buddies("ab") == (1, 0)
    assert buddies("aabb") == (2, 3, 0, 1)
    assert buddies("abab") == (1, 2, 3, 0)


def test_three_hosts_hold_replicas_in_a_ring():
    assert buddies("abc") == (1, 2, 0)
    assert buddies("aabbcc") == (2, 3, 4, 5, 0, 1)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_buddy_is_on_another_host_and_equal_hosts_share_alike(size):
    for hosts in itertools.product("abc", repeat=size):
        found = buddies(hosts)
        if len(set(hosts)) == 1:
            continue
        assert all(hosts[buddy] != host for buddy, host in zip(found, hosts, strict=True)), hosts
        if len({hosts.count(h) for h in hosts}) == 1:
            assert sorted(found) == list(range(size)), hosts
