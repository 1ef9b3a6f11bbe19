"""Placement groups and scheduling strategies, on one node."""

import importlib

import pytest
from launching.actors import Log
from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal
from shoal.exceptions import ActorDiedError, GetTimeoutError, Unimplemented
from shoal.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from shoal.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=4)
    yield
    shoal.shutdown()


@pytest.fixture
def group():
    made = placement_group([{"CPU": 1}, {"CPU": 2}])
    assert made.wait(60)
    yield made
    remove_placement_group(made)


def inside(group, bundle=-1, captures=None):
    return PlacementGroupSchedulingStrategy(group, bundle, captures)


def free_cpus():
    return shoal.available_resources().get("CPU", 0)


def test_a_group_reserves_and_releases_resources():
    assert free_cpus() == 4
    group = placement_group([{"CPU": 1}, {"CPU": 2}], strategy="SPREAD")
    assert shoal.get(group.ready()) == group
    assert free_cpus() == 1
    assert group.bundle_specs == [{"CPU": 1}, {"CPU": 2}]
    assert group.bundle_count == 2
    remove_placement_group(group)
    assert free_cpus() == 4
    remove_placement_group(group)  # idempotent
    assert placement_group_table(group)["state"] == "REMOVED"


def test_the_table_has_the_nodes_of_the_bundles(group):
    row = placement_group_table(group)
    (node,) = shoal.nodes()
    assert row["state"] == "CREATED"
    assert row["bundles"] == {0: {"CPU": 1}, 1: {"CPU": 2}}
    assert row["bundles_to_node_id"] == {0: node["id"], 1: node["id"]}
    assert placement_group_table()[group.id] == row


def test_a_group_that_does_not_fit_waits(group):
    waiting = placement_group([{"CPU": 2}])
    assert not waiting.wait(0.05)
    with pytest.raises(GetTimeoutError):
        shoal.get(waiting.ready(), timeout=0.05)
    assert placement_group_table(waiting)["state"] == "PENDING"
    ready = waiting.ready()
    remove_placement_group(group)
    shoal.get(ready)
    remove_placement_group(waiting)


def test_ready_of_a_removed_group_fails(group):
    waiting = placement_group([{"CPU": 2}])
    ready = waiting.ready()
    remove_placement_group(waiting)
    with pytest.raises(shoal.exceptions.TaskPlacementGroupRemoved):
        shoal.get(ready)


def test_a_group_is_placed_completely_or_not_at_all(group):
    waiting = placement_group([{"CPU": 1}, {"CPU": 1}])  # has to wait, because only one CPU is free
    assert not waiting.wait(0.05)
    assert free_cpus() == 1
    remove_placement_group(waiting)


def test_actors_use_the_resources_of_their_bundle(group):
    first = Log.options(num_cpus=2, scheduling_strategy=inside(group, 1)).remote()
    assert shoal.get(first.echo.remote(1)) == 1
    assert free_cpus() == 1  # the one CPU outside of the group
    second = Log.options(num_cpus=1, scheduling_strategy=inside(group, 1)).remote()
    answer = second.echo.remote(2)
    assert shoal.wait([answer], timeout=0.1) == ([], [answer])
    third = Log.options(num_cpus=1, scheduling_strategy=inside(group)).remote()
    assert shoal.get(third.echo.remote(3)) == 3
    shoal.kill(first)
    assert shoal.get(answer) == 2


def test_an_actor_in_a_group_sees_its_group(group):
    @shoal.remote
    def where():
        context = shoal.get_runtime_context()
        return context.get_placement_group_id(), context.should_capture_child_tasks_in_placement_group

    assert shoal.get(where.options(scheduling_strategy=inside(group)).remote()) == (group.id, False)
    assert shoal.get(where.remote()) == (None, False)
    assert shoal.get_runtime_context().get_placement_group_id() is None


def test_removal_of_a_group_kills_its_actors(group):
    actor = Log.options(num_cpus=1, scheduling_strategy=inside(group)).remote()
    assert shoal.get(actor.echo.remote(1)) == 1
    remove_placement_group(group)  # returns early: calls that were sent before the actor is killed are still answered

    def died():
        try:
            shoal.get(actor.echo.remote(1))
        except ActorDiedError as error:
            return "its placement group was removed" in str(error)
        return False

    wait_until(died, 10)
    wait_until(lambda: free_cpus() == 4, 10)  # all CPUs are free once the actor's process has ended


def test_tasks_run_in_a_group(group):
    @shoal.remote(num_cpus=1)
    def where():
        return shoal.util.get_current_placement_group()

    assert shoal.get(where.remote()) is None
    assert shoal.get([where.options(scheduling_strategy=inside(group)).remote() for _ in range(3)]) == [group] * 3


def test_children_are_captured_on_request(group):
    @shoal.remote(num_cpus=0)
    class Parent:
        def grandchild(self):
            @shoal.remote(num_cpus=0)
            class Child:
                def group(self):
                    return shoal.util.get_current_placement_group()

            self.child = Child.remote()
            return shoal.get(self.child.group.remote())

    captured = Parent.options(scheduling_strategy=inside(group, captures=True)).remote()
    free = Parent.options(scheduling_strategy=inside(group)).remote()
    assert shoal.get(captured.grandchild.remote()) == group
    assert shoal.get(free.grandchild.remote()) is None


def test_a_task_waits_for_a_group_and_removes_it():
    made = placement_group([{"CPU": 1}])

    @shoal.remote(num_cpus=0)
    def wait_for(group):
        return group.wait(60)

    @shoal.remote(num_cpus=0)
    def remove(group):
        remove_placement_group(group)
        return placement_group_table(group)["state"]

    assert shoal.get(wait_for.remote(made))
    assert shoal.get(remove.remote(made)) == "REMOVED"


def test_a_named_group_is_found():
    group = placement_group([{"CPU": 1}], name="g")
    found = get_placement_group("g")
    assert found == group
    assert found.bundle_specs == [{"CPU": 1}]
    with pytest.raises(shoal.exceptions.ActorAlreadyExistsError):
        placement_group([{"CPU": 1}], name="g")
    remove_placement_group(group)
    with pytest.raises(ValueError, match="no placement group is named 'g'"):
        get_placement_group("g")


@pytest.mark.parametrize("bundles", [[], [{}], None, [{"CPU": -1}], [{"CPU": 0}], {"CPU": 1}, [{"CPU": "1"}]], ids=repr)
def test_an_invalid_bundle_is_a_value_error(bundles):
    with pytest.raises(ValueError, match="bundle"):
        placement_group(bundles)


def test_unknown_strategies_and_lifetimes_are_value_errors():
    with pytest.raises(ValueError, match="STRICT_SPREAD"):
        placement_group([{"CPU": 1}], strategy="SCATTER")
    with pytest.raises(ValueError, match="strategy"):
        placement_group([{"CPU": 1}], "")
    with pytest.raises(ValueError, match="lifetime"):
        placement_group([{"CPU": 1}], lifetime="long")
    with pytest.raises(ValueError, match="scheduling_strategy"):
        Log.options(scheduling_strategy="NEAR").remote()


def test_arguments_have_rays_order_and_unsupported_ones_are_refused():
    group = placement_group([{"CPU": 1}], None, "by order", None, None, [{}], None)
    row = placement_group_table(group)
    assert (row["name"], row["strategy"]) == ("by order", "PACK")
    remove_placement_group(group)
    here = shoal.nodes()[0]["id"]
    with pytest.raises(Unimplemented, match="_soft_target_node_id"):
        placement_group([{"CPU": 1}], "STRICT_PACK", "", None, here)
    with pytest.raises(ValueError, match="STRICT_PACK"):
        placement_group([{"CPU": 1}], _soft_target_node_id=here)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["rack"], "must be a dict"),
        ({"": "STRICT_PACK"}, "non-empty strings"),
        ({"rack": "NEAR"}, "Invalid topology strategy 'NEAR'"),
        ({"rack": "SPREAD"}, "only 'STRICT_PACK' is supported"),
        ({"rack": "STRICT_PACK", "zone": "STRICT_PACK"}, "at most one topology label"),
    ],
)
def test_a_wrong_topology_is_a_value_error(given, why):
    with pytest.raises(ValueError, match=why):
        placement_group([{"CPU": 1}], topology_strategy=given)


def test_a_topology_includes_the_strategy_for_nodes():
    with pytest.raises(ValueError, match="cannot both be specified"):
        placement_group([{"CPU": 1}], "PACK", topology_strategy={})
    group = placement_group([{"CPU": 1}, {"CPU": 1}], topology_strategy={"ray.io/node-id": "STRICT_PACK", "rack": "STRICT_PACK"})
    row = placement_group_table(group)
    assert (row["strategy"], row["state"], row["pending_reason"]) == ("STRICT_PACK", "PENDING", "no node has the label rack")
    remove_placement_group(group)


def test_a_request_larger_than_its_bundle_is_a_value_error(group):
    with pytest.raises(ValueError, match="cannot fit into any bundle"):
        Log.options(num_cpus=3, scheduling_strategy=inside(group)).remote()
    with pytest.raises(ValueError, match="cannot fit into bundle 0"):
        Log.options(num_cpus=2, scheduling_strategy=inside(group, 0)).remote()
    with pytest.raises(ValueError, match=r"placement group bundle index 2 is invalid\. Valid placement group indexes: 0-1"):
        Log.options(num_cpus=1, scheduling_strategy=inside(group, 2)).remote()


@pytest.mark.parametrize("options", [{}, {"placement_group": None}])
@pytest.mark.parametrize("target", [Log, shoal.remote(lambda: 1)], ids=["an actor", "a function"])
def test_a_bundles_index_needs_a_group(target, options):
    with pytest.raises(ValueError, match="If placement group is not set"):
        target.options(placement_group_bundle_index=0, **options).remote()


def test_an_actor_without_num_cpus_needs_a_group_with_cpus():
    group = placement_group([{"memory": 1}])
    with pytest.raises(ValueError, match=r"Cannot schedule Log .* requires 1 CPU for creation.*Say num_cpus=0"):
        Log.options(scheduling_strategy=inside(group)).remote()
    actor = Log.options(num_cpus=0, scheduling_strategy=inside(group)).remote()
    assert shoal.get(actor.echo.remote(1)) == 1
    remove_placement_group(group)


def test_a_none_group_is_not_the_creators_group(group):
    @shoal.remote(num_cpus=0)
    def group_of(options):
        return shoal.get(inner.options(**options).remote())

    @shoal.remote(num_cpus=0)
    def inner():
        return shoal.get_runtime_context().get_placement_group_id()

    captures = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    maker = group_of.options(scheduling_strategy=captures)
    choices = {}, {"placement_group": "default"}, {"placement_group": None}
    assert shoal.get([maker.remote(c) for c in choices]) == [group.id, group.id, None]


@pytest.mark.parametrize("other", [None, "group", 3])
def test_a_non_group_is_a_type_error(other):
    with pytest.raises(TypeError, match="a placement group is what"):
        shoal.remote(scheduling_strategy=PlacementGroupSchedulingStrategy(other))(lambda: 1).remote()


def test_bundle_is_a_reserved_resource_name():
    with pytest.raises(ValueError, match="should not include `bundle`"):
        placement_group([{"bundle": 1}])
    with pytest.raises(ValueError, match="should not include `bundle`"):
        Log.options(resources={"bundle": 1}).remote()


def test_the_module_is_callable_as_the_function_of_its_name():
    module = importlib.import_module("shoal.util.placement_group")
    group = module([{"CPU": 1}])
    assert group.wait(GUARD_S)
    remove_placement_group(group)


def test_a_strict_spread_needs_nodes():
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert not group.wait(0.05)
    remove_placement_group(group)


def test_node_affinity_places_an_actor_on_its_node():
    (node,) = shoal.nodes()
    actor = Log.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False)).remote()
    assert shoal.get(actor.echo.remote(1)) == 1
    nowhere = Log.options(scheduling_strategy=NodeAffinitySchedulingStrategy("abc", soft=False)).remote()
    with pytest.raises(shoal.exceptions.ActorUnschedulableError):
        shoal.get(nowhere.echo.remote(1))
    shoal.kill(nowhere)
    elsewhere = Log.options(scheduling_strategy=NodeAffinitySchedulingStrategy("abc", soft=True)).remote()
    assert shoal.get(elsewhere.echo.remote(1)) == 1


def test_a_function_that_no_node_can_run_is_unschedulable():
    @shoal.remote(num_cpus=0)
    def one():
        return 1

    nowhere = one.options(scheduling_strategy=NodeAffinitySchedulingStrategy("abc", soft=False))
    refs = [nowhere.remote(), nowhere.remote()]
    for ref in refs:
        with pytest.raises(shoal.exceptions.TaskUnschedulableError):
            shoal.get(ref)
    (node,) = shoal.nodes()
    here = one.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False))
    assert shoal.get(here.remote()) == 1
    too_much = one.options(num_cpus=1000, scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False))
    with pytest.raises(shoal.exceptions.TaskUnschedulableError):
        shoal.get(too_much.remote())


def test_a_request_with_absent_labels_waits():
    hopeless = [
        {"label_selector": {"zone": "a"}},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": Exists()})},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": In("a", "b")})},
    ]
    for options in hopeless:
        actor = Log.options(**options).remote()
        assert shoal.wait([actor.echo.remote(1)], timeout=0.05)[0] == []
        shoal.kill(actor)
    for options in [
        {"label_selector": {"zone": "!a", "rack": "!in(x, y)"}},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": DoesNotExist(), "rack": NotIn("x")})},
        {"scheduling_strategy": "SPREAD"},
    ]:
        assert shoal.get(Log.options(**options).remote().echo.remote(1)) == 1
