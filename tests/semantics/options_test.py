"""Options and arguments as Ray takes them: amounts, numpy's numbers, those without effect, and those that are refused."""

import numpy as np
import pytest
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal.exceptions import ActorUnschedulableError, TaskUnschedulableError
from shoal.util.metrics import Gauge


@pytest.fixture
def labelled(module_home):
    """A cluster whose node has labels."""
    ray.shutdown()
    ray.init(num_cpus=4, labels={"zone": "a"})
    yield
    ray.shutdown()
    ray.init(num_cpus=8)


# ---- options


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_cpus": -1}, ValueError),
        ({"num_gpus": float("nan")}, ValueError),
        ({"num_cpus": "1"}, TypeError),
        ({"memory": True}, TypeError),
        ({"resources": ["a"]}, TypeError),
        ({"resources": {"a": -1}}, ValueError),
        ({"resources": {"CPU": 1}}, ValueError),
    ],
    ids=repr,
)
def test_invalid_amounts_are_refused_at_the_call(options, error):
    with pytest.raises(error, match=next(iter(options))):
        Recorder.options(**options)
    with pytest.raises(error, match=next(iter(options))):
        ray.remote(**options)(len)


NUMBERS = [np.int64(2), np.uint8(2), np.float32(2), np.float64(2), np.array(2)]
WHOLE = [n for n in NUMBERS if hasattr(n, "__index__") and not isinstance(n, float)]


@pytest.mark.parametrize("two", NUMBERS, ids=lambda n: type(n).__name__)
def test_amounts_and_timeouts_may_be_numpy_numbers(two):
    f = ray.remote(num_cpus=two, resources={})(lambda: 1)
    assert f._options["num_cpus"] == 2
    assert type(f._options["num_cpus"]) in (int, float)
    ref = f.remote()
    assert ray.get(ref, timeout=two * 60) == 1
    assert ray.wait([ref], timeout=two) == ([ref], [])
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(Gate.remote().wait.remote(), timeout=two / 100)
    group = ray.util.placement_group([{"CPU": two}])
    assert group.wait(two * 60)
    assert group.bundle_specs == [{"CPU": 2}]
    ray.util.remove_placement_group(group)
    Gauge("of_numpy").set(two)


@pytest.mark.parametrize("two", WHOLE, ids=lambda n: type(n).__name__)
def test_counts_may_be_numpy_numbers(two):
    pair = ray.remote(num_returns=two, max_retries=two, max_calls=two)(lambda: (1, 2))
    refs = pair.remote()
    assert ray.wait(refs, num_returns=two, timeout=GUARD_S) == (refs, [])
    options = {"max_concurrency": two, "max_restarts": two, "max_task_retries": two, "max_pending_calls": two, "memory": two}
    actor = ray.remote(**options)(Recorder.__ray_actor_class__).remote()
    assert ray.get(actor.echo.options(num_returns=two).remote((1, 2)), timeout=GUARD_S) == [1, 2]
    ray.kill(actor)


def test_flags_may_be_numpy_bools():
    yes, no = np.bool_(True), np.bool_(False)
    actor = Recorder.options(name="flagged", get_if_exists=yes, allow_out_of_order_execution=no, enable_task_events=no).remote()
    assert ray.get(actor.echo.options(retry_exceptions=yes, max_task_retries=1).remote(2), timeout=GUARD_S) == 2
    assert ray.get(ray.remote(retry_exceptions=no)(lambda: 1).remote(), timeout=GUARD_S) == 1
    ray.cancel(actor.echo.remote(1), force=no, recursive=yes)
    ray.kill(actor, no_restart=yes)
    for wrong in (1, "yes"):
        with pytest.raises(TypeError, match="retry_exceptions is a bool, not"):
            ray.remote(retry_exceptions=wrong)(lambda: 1)


@pytest.mark.parametrize("wrong", ["2", True, np.bool_(True), [2], 1 + 2j], ids=repr)
def test_a_non_number_is_a_type_error(wrong):
    for use in (
        lambda: ray.wait([ray.put(1)], num_returns=wrong),
        lambda: ray.remote(num_cpus=wrong),
        lambda: ray.remote(max_retries=wrong),
    ):
        with pytest.raises(TypeError):
            use()(lambda: 1)


# ---- unsupported arguments


@pytest.mark.parametrize(
    "given",
    [
        {"job_config": object()},
        {"enable_resource_isolation": True},
        {"cgroup_path": "/sys/fs/cgroup"},
        {"system_reserved_cpu": 1.0},
        {"system_reserved_memory": 1 << 30},
        {"proxy_server_url": "http://host:8080"},
        {"_enable_object_reconstruction": True},
        {"_metrics_export_port": 8080},
        {"_node_ip_address": "10.0.0.1"},
        {"_node_name": "one"},
        {"_plasma_directory": "/tmp"},
        {"_redis_password": "secret"},
        {"_redis_username": "me"},
        {"_tracing_startup_hook": print},
    ],
    ids=lambda given: next(iter(given)),
)
def test_unsupported_init_arguments_are_refused_with_a_hint(given):
    with pytest.raises(NotImplementedError, match=f"{next(iter(given))} of init") as refused:
        ray.init(ignore_reinit_error=True, **given)
    assert refused.value.hint
    ray.init(ignore_reinit_error=True, **dict.fromkeys(given, None))


def test_arguments_without_effect_are_accepted_and_unknown_ones_are_type_errors():
    ray.init(ignore_reinit_error=True, enable_resource_isolation=False, _redis_password="", _skip_env_hook=True)
    ray.init(ignore_reinit_error=True, _driver_object_store_memory=1 << 30)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_cpu'"):
        ray.init(ignore_reinit_error=True, num_cpu=4)
    for named in ("shutdown", "put"):
        with pytest.raises(TypeError, match="colour"):
            getattr(ray, named)(**{"value": 1} if named == "put" else {}, colour="red")


def test_shutdown_takes_rays_arguments(labelled):
    ray.shutdown(wait_for_processes=True, _exiting_interpreter=True)
    assert not ray.is_initialized()


def test_put_refuses_owner_and_transport(recorder):
    with pytest.raises(ValueError, match="_owner"):
        ray.put(1, _owner=recorder)
    with pytest.raises(NotImplementedError, match="_tensor_transport"):
        ray.put(1, _tensor_transport="nixl")


@pytest.mark.parametrize(
    ("of", "options"),
    [
        ("actor", {"object_store_memory": 1 << 20}),
        ("actor", {"enable_tensor_transport": True}),
        ("actor", {"_actor_generator_backpressure_num_objects": 2}),
        ("function", {"object_store_memory": 1 << 20}),
        ("function", {"_num_objects_per_yield": 2}),
        ("method", {"_num_objects_per_yield": 2}),
        ("method", {"tensor_transport": "nccl"}),
    ],
    ids=str,
)
def test_unsupported_options_are_refused_with_a_hint(recorder, of, options):
    what = {"actor": Recorder, "function": one, "method": recorder.echo}[of]
    with pytest.raises(NotImplementedError) as refused:
        what.options(**options)
    assert refused.value.hint
    what.options(**dict.fromkeys(options, None))


def test_defaults_of_unsupported_options_are_accepted():
    assert ray.get(one.options(object_store_memory=None, _num_objects_per_yield=1).remote()) == 1
    actor = Recorder.options(enable_tensor_transport=False, _actor_generator_backpressure_num_objects=-1).remote()
    assert ray.get(actor.echo.options(_num_objects_per_yield=1, tensor_transport=None).remote(2)) == 2
    with pytest.raises(ValueError, match="above 0"):
        Recorder.options(_actor_generator_backpressure_num_objects=0)
    with pytest.raises(ValueError, match="_num_objects_per_yield is no option of actors"):
        Recorder.options(_num_objects_per_yield=1)


@pytest.mark.parametrize("name", ["_spill_on_unavailable", "_fail_on_unavailable"])
def test_an_affinity_that_does_not_wait_is_soft_or_not(name):
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    soft, node = name == "_spill_on_unavailable", ray.nodes()[0]["NodeID"]
    with pytest.raises(ValueError, match=rf"{name} cannot be set when soft is {not soft}\. Please set soft to {soft} to use {name}\."):
        affinity(node, not soft, **{name: True})
    for given in (False, True):
        taken = affinity(node, soft, **{name: given})
        assert ray.get(one.options(scheduling_strategy=taken).remote(), timeout=GUARD_S) == 1


def test_an_affinity_that_does_not_wait_fails_without_room(gate):
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(ray.nodes()[0]["NodeID"], False, _fail_on_unavailable=True)
    # Each takes more than half of the node, so that there is room for one. A waiting worker lends its CPUs, but no memory.
    much = {"scheduling_strategy": affinity, "memory": ray.cluster_resources()["memory"] * 0.6}
    waits = through.options(**much)
    first = waits.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(TaskUnschedulableError, match="no room for it now"):
        ray.get(waits.remote(gate), timeout=GUARD_S)
    with pytest.raises(ActorUnschedulableError, match="no room for it now"):
        ray.get(Recorder.options(**much).remote().all.remote(), timeout=GUARD_S)
    ray.get(gate.open.remote())
    assert ray.get(first, timeout=GUARD_S) is None


# ---- options without effect, groups, labels


@ray.remote
def one():
    return 1


@ray.remote
def through(gate):
    return ray.get(gate.arrive.remote("through"))


def test_options_without_effect_are_accepted():
    assert ray.get(one.options(enable_task_events=False, _labels={"a": "b"}).remote()) == 1
    actor = Recorder.options(enable_task_events=False).remote()
    assert ray.get(actor.echo.options(enable_task_events=True).remote(2)) == 2
    with pytest.raises(TypeError):
        one.options(enable_task_events="no")
    with pytest.raises(NotImplementedError):
        one.options(_generator_backpressure_num_objects=2)
    with pytest.raises(ValueError, match="above 0"):
        one.options(_generator_backpressure_num_objects=0)


@ray.remote
def in_group():
    return ray.get_runtime_context().get_placement_group_id()


@ray.remote(num_cpus=0)
def child():
    return ray.get(in_group.options(num_cpus=0).remote())


def test_children_are_captured_by_the_option_too():
    group = ray.util.placement_group([{"CPU": 1}])
    placed = child.options(placement_group=group, placement_group_capture_child_tasks=True)
    assert ray.get(placed.remote(), timeout=GUARD_S) == group.id
    assert ray.get(child.options(placement_group=group).remote(), timeout=GUARD_S) is None
    ray.util.remove_placement_group(group)


def test_the_fallback_strategy_applies_when_no_node_has_the_labels(labelled):
    nowhere, here = {"label_selector": {"zone": "b"}}, {"label_selector": {"zone": "a"}}
    assert ray.get(one.options(**nowhere, fallback_strategy=[nowhere, here]).remote(), timeout=GUARD_S) == 1
    actor = Recorder.options(**nowhere, fallback_strategy=[here]).remote()
    assert ray.get(actor.echo.remote(1), timeout=GUARD_S) == 1
    for wrong, error in (({}, TypeError), ([5], TypeError), ([{}], ValueError), ([{"zone": "a"}], ValueError)):
        with pytest.raises(error):
            one.options(fallback_strategy=wrong)
