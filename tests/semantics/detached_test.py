"""Detached actors: they outlive the job that created them, and the actors that they create end with them."""

import pytest

DRIVER = """
import sys
import shoal
from shoal.exceptions import ActorDiedError

@shoal.remote(num_cpus=0)
class Counter:
    def __init__(self, start=0):
        self.value = start

    def add(self):
        self.value += 1
        return self.value

    def child(self):
        self.kept = Counter.options(name="child").remote(100)
        return shoal.get(self.kept.add.remote())

    def values(self, n):
        return [shoal.put(list(range(n)))]

shoal.init(address="auto", namespace="shared")
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Replaces the module's cluster by none: each test starts a cluster of its own, which outlives its drivers."""


@pytest.fixture
def run(shoal_command):
    """Runs drivers one after the other against one cluster."""
    shoal_command.json("start", "--head", "--num-cpus", "2", "--port", "0")

    def one(body: str) -> str:
        driver = shoal_command.driver(DRIVER + body)
        assert driver.code() == 0, driver.err
        return driver.out

    yield one
    shoal_command.json("stop")


def test_a_detached_actor_outlives_its_driver_and_is_found_by_name(run):
    assert run('c = Counter.options(name="c", lifetime="detached").remote()\nprint(shoal.get(c.add.remote()))\n') == "1\n"
    assert run('print(shoal.get(shoal.get_actor("c").add.remote()))\n') == "2\n"


def test_a_detached_actor_is_created_although_its_driver_ends_at_once(run):
    run('Counter.options(name="c", lifetime="detached").remote(41)\n')
    assert run('print(shoal.get(shoal.get_actor("c").add.remote()))\n') == "42\n"


def test_a_task_creates_a_detached_actor_and_ends(run):
    run(
        """
@shoal.remote
def make():
    Counter.options(name="c", lifetime="detached").remote(41)

shoal.get(make.remote())
"""
    )
    assert run('print(shoal.get(shoal.get_actor("c").add.remote()))\n') == "42\n"


def test_a_pending_detached_actor_is_placed_after_its_driver_left(run):
    run('Counter.options(name="c", lifetime="detached", num_cpus=2, resources={"later": 1}).remote(41)\n')
    out = run('try:\n    shoal.get(shoal.get_actor("c").add.remote(), timeout=0.2)\nexcept TimeoutError:\n    print("waits")\n')
    assert out == "waits\n"


def test_an_actor_that_is_not_detached_ends_with_its_driver(run):
    run('c = Counter.options(name="c").remote()\nshoal.get(c.add.remote())\n')
    out = run('try:\n    shoal.get_actor("c")\nexcept ValueError as e:\n    print("gone")\n')
    assert out == "gone\n"


def test_actors_and_objects_of_a_detached_actor_live_as_long_as_it(run):
    run('c = Counter.options(name="c", lifetime="detached").remote()\nprint(shoal.get(c.child.remote()))\n')
    out = run(
        """
c, child = shoal.get_actor("c"), shoal.get_actor("child")
print(shoal.get(child.add.remote()))
(ref,) = shoal.get(c.values.remote(1000))
print(sum(shoal.get(ref)))
shoal.kill(c)
try:
    shoal.get(child.add.remote())
except ActorDiedError:
    print("the child is gone")
"""
    )
    assert out == "102\n499500\nthe child is gone\n"


def test_the_job_of_a_detached_actor_is_listed_and_can_be_stopped(run, shoal_command):
    run('c = Counter.options(name="c", lifetime="detached").remote()\nshoal.get(c.add.remote())\n')
    (job,) = (j for j in shoal_command.rows("jobs") if j["state"] == "RUNNING")
    assert job["name"] == "detached c"
    (actor,) = (a for a in shoal_command.rows("actors") if a["state"] == "ALIVE")
    assert (actor["name"], actor["namespace"], actor["detached"], actor["job"]) == ("c", "shared", True, job["id"])
    run('shoal.kill(shoal.get_actor("c"))\n')
    assert [j["state"] for j in shoal_command.rows("jobs") if j["name"] == "detached c"] == ["STOPPED"]


def test_a_detached_placement_group_outlives_its_driver_until_it_is_removed(run):
    groups = "from shoal.util import get_placement_group, placement_group, remove_placement_group\n"
    run(
        groups
        + """
made = [placement_group([{"CPU": 1}], name="kept", lifetime="detached"), placement_group([{"CPU": 1}], name="of its job")]
assert all(g.wait(60) for g in made)
"""
    )
    out = run(
        groups
        + """
from shoal.util.scheduling_strategies import PlacementGroupSchedulingStrategy
try:
    get_placement_group("of its job")
except ValueError:
    print("gone", shoal.available_resources()["CPU"])
kept = get_placement_group("kept")
c = Counter.options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(kept)).remote()
print(shoal.get(c.add.remote()))
remove_placement_group(kept)
print(placement_group([{"CPU": 2}]).wait(60))
"""
    )
    assert out == "gone 1.0\n1\nTrue\n"


def test_a_generator_ends_with_its_driver_and_the_detached_actor_lives_on(run):
    body = """
import itertools, time

@shoal.remote(num_cpus=0)
class Endless:
    ended = False

    def numbers(self):
        try:
            for i in itertools.count():
                yield i
                time.sleep(0.005)
        finally:
            self.ended = True

    def has_ended(self):
        return self.ended

"""
    assert run(body + 'e = Endless.options(name="e", lifetime="detached").remote()\nprint(shoal.get(next(e.numbers.remote())))\n') == "0\n"
    assert run('print(shoal.get(shoal.get_actor("e").has_ended.remote(), timeout=120))\n') == "True\n"
