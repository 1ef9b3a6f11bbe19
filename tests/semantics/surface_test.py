"""Names, options and values of Ray programs that no other test covers."""

import importlib
import pickle
import threading

import numpy as np
import pytest
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError, RayActorError, RayError
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


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        "cloudpickle",
        "cluster_utils",
        "job_submission",
        "remote_function",
        "runtime_env",
        "types",
        "util.accelerators",
        "util.annotations",
        "util.serialization",
    ],
)
def test_modules_define_every_name_in_all(name):
    module = importlib.import_module(f"shoal.{name}")
    assert all(hasattr(module, n) for n in module.__all__)


def test_a_bare_import_has_scheduling_strategies_and_helpers():
    assert ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    assert ray.util.accelerators.NVIDIA_A100 == "A100"
    assert ray.util.get_node_ip_address() == ray.nodes()[0]["NodeManagerAddress"]
    assert [ray.util.log_once(k) for k in ("surface", "surface", "other")] == [True, False, True]
    assert (ray.SCRIPT_MODE, ray.WORKER_MODE) == (0, 1)


def test_arguments_have_rays_names():
    ref = ray.put(value=1)
    assert ray.get(object_refs=ref, timeout=-1) == 1
    assert ray.wait(ray_waitables=[ref], num_returns=1, timeout=None, fetch_local=True) == ([ref], [])
    ray.cancel(ray_waitable=ref, force=False, recursive=True)
    assert ray.get(ray.put(2, _owner=None, _tensor_transport=None)) == 2
    actor = Recorder.options(name="named-arguments").remote()
    assert ray.get(object_refs=[actor.__ray_ready__.remote()])
    ray.kill(actor=ray.get_actor(name="named-arguments", namespace=None), no_restart=True)


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
def test_an_affinity_that_does_not_wait_is_refused(name):
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    soft, node = name == "_spill_on_unavailable", ray.nodes()[0]["NodeID"]
    with pytest.raises(NotImplementedError, match=name):
        affinity(node, soft, **{name: True})
    with pytest.raises(ValueError, match=name):
        affinity(node, not soft, **{name: True})
    taken = affinity(node, soft, _spill_on_unavailable=False, _fail_on_unavailable=False)
    assert ray.get(one.options(scheduling_strategy=taken).remote(), timeout=GUARD_S) == 1


# ---- exceptions


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ActorAlreadyExistsError", ValueError),
        ("ActorHandleNotFoundError", ValueError),
        ("ActorPlacementGroupRemoved", RayError),
        ("AuthenticationError", RayError),
        ("CrossLanguageError", RayError),
        ("LocalRayletDiedError", RayError),
        ("NodeDiedError", RayError),
        ("ObjectFetchTimedOutError", ray.exceptions.ObjectLostError),
        ("ObjectReconstructionFailedError", ray.exceptions.ObjectLostError),
        ("ObjectRefStreamEndOfStreamError", RayError),
        ("OufOfBandObjectRefSerializationException", RayError),
        ("OutOfDiskError", RayError),
        ("PlasmaObjectNotAvailable", RayError),
        ("RayChannelError", ray.exceptions.RaySystemError),
        ("RayDirectTransportError", ray.exceptions.RaySystemError),
        ("ReferenceCountingAssertionError", AssertionError),
        ("RpcError", RayError),
        ("StreamingGeneratorReplayInconsistentError", ray.exceptions.RaySystemError),
        ("TaskPlacementGroupRemoved", RayError),
        ("UnserializableException", RayError),
        ("UserCodeException", RayError),
    ],
)
def test_exceptions_have_rays_import_paths(name, base):
    cls = getattr(ray.exceptions, name)
    assert issubclass(cls, base)
    assert issubclass(cls, RayError)
    assert str(cls())
    assert type(pickle.loads(pickle.dumps(cls("why")))) is cls


def test_an_actors_death_is_no_error_of_the_operating_system():
    assert not issubclass(RayActorError, OSError)
    assert not issubclass(ray.exceptions.ObjectLostError, OSError)
    assert str(RayActorError())
    actor = Recorder.remote()
    ray.kill(actor)
    try:
        ray.get(actor.all.remote(), timeout=GUARD_S)
    except OSError:
        pytest.fail("who waits for files and sockets does not mean actors")
    except ActorDiedError:
        pass


def test_a_name_that_is_taken_is_an_actor_already_exists_error():
    first = Recorder.options(name="taken").remote()
    ray.get(first.all.remote())
    with pytest.raises(ray.exceptions.ActorAlreadyExistsError):
        Recorder.options(name="taken").remote()
    ray.kill(first)


def test_a_non_reference_or_non_handle_is_a_value_error():
    for wrong in (5, "ref", None, {ray.put(1)}):
        with pytest.raises(ValueError, match=r"get\(\) takes"):
            ray.get(wrong)
    with pytest.raises(TypeError, match="the list has an element of type int"):
        ray.get([ray.put(1), 5])
    with pytest.raises(ValueError, match=r"kill\(\) takes"):
        ray.kill(ray.put(1))


# ---- types and ids


def test_types_can_be_subscripted():
    assert ray.ObjectRef[int].__args__ == (int,)
    assert ray.types.ObjectRef[int].__origin__ is ray.ObjectRef
    assert ray.actor.ActorHandle[Recorder].__origin__ is ray.actor.ActorHandle
    assert ray.actor.ActorClass[int].__origin__ is ray.actor.ActorClass


def test_ids_are_objects_with_their_text():
    actor = Recorder.remote()
    assert actor._actor_id.hex() == actor._actor_id == ray.ActorID.from_hex(actor._actor_id.hex())
    assert ray.ActorID.from_binary(actor._actor_id.binary()) == actor._actor_id
    assert not actor._actor_id.is_nil()
    assert ray.NodeID.nil().is_nil()
    ref = ray.put(1)
    assert ref.job_id() == ray.get_runtime_context().job_id == ray.get_runtime_context().get_job_id()
    assert not ref.is_nil()
    group = ray.util.placement_group([{"CPU": 1}])
    assert group.id.hex() == group.id
    assert ray.get(group.ready()) == group
    ray.util.remove_placement_group(group)
    ray.kill(actor)


@ray.remote
class Knows:
    """A class with a constant and methods of several kinds."""

    SIZE = 3

    @staticmethod
    def twice(value):
        return 2 * value

    @ray.method
    def context(self):
        c = ray.get_runtime_context()
        same_worker, no_group = c.worker_id == c.get_worker_id(), c.current_placement_group_id.is_nil()
        return c.actor_id, c.get_actor_id(), c.task_id.is_nil(), c.node_id, same_worker, no_group


def test_the_context_returns_id_objects():
    @ray.remote
    def ids():
        context = ray.get_runtime_context()
        return [context.get_job_id(), context.get_node_id(), context.get_worker_id(), context.get_task_id()]

    kinds = [ray.JobID, ray.NodeID, ray.WorkerID, ray.TaskID]
    found = ray.get(ids.remote(), timeout=GUARD_S)
    assert [type(i) for i in found] == kinds
    assert [i.hex() for i in found] == found
    assert [type(i).from_hex(i.hex()) for i in found] == found


def test_calls_may_be_written_with_underscore_remote():
    @ray.remote
    def add(x, y=0):
        return x + y

    made = Recorder._remote(num_cpus=0)
    calls = [add._remote([1], {"y": 2}), add._remote(args=(1,), num_cpus=0), made.echo._remote([5]), made.echo._remote(kwargs={"value": 6})]
    assert ray.get(calls, timeout=GUARD_S) == [3, 1, 5, 6]
    assert ray.get(made.echo._remote(args=[(1, 2)], num_returns=2), timeout=GUARD_S) == [1, 2]
    ray.kill(made)
    with pytest.raises(ActorDiedError, match="The actor is dead because it was killed by"):
        ray.get(made.echo.remote(1), timeout=GUARD_S)


def test_a_functions_name_includes_its_module():
    @ray.remote
    def name():
        return ray.get_runtime_context().get_task_function_name()

    @ray.remote
    class Named:
        def name(self):
            return ray.get_runtime_context().get_task_function_name()

        async def soon(self):
            return ray.get_runtime_context().get_task_function_name()

    named = Named.remote()
    calls = [name.remote(), named.name.remote(), named.soon.remote()]
    assert ray.get(calls, timeout=GUARD_S) == [f"{__name__}.name", f"{__name__}.Named.name", f"{__name__}.Named.soon"]


def test_a_decorated_class_shows_its_attributes():
    assert (Knows.SIZE, Knows.twice(4), Knows.__ray_actor_class__.SIZE) == (3, 8, 3)
    assert not hasattr(Knows, "nothing")
    with pytest.raises(TypeError):
        Knows()


def test_the_context_has_properties_too():
    actor = Knows.remote()
    mine, text, no_task, node, same_worker, no_group = ray.get(actor.context.remote())
    assert mine == text == actor._actor_id
    assert (no_task, node, same_worker, no_group) == (False, ray.nodes()[0]["NodeID"], True, True)


# ---- options


@ray.remote
def one():
    return 1


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


# ---- helpers


@ray.remote
def same(value):
    return value


def test_results_arrive_as_they_become_ready():
    refs = [same.remote(i) for i in range(7)]
    assert sorted(ray.util.as_completed(refs, chunk_size=3)) == list(range(7))
    assert set(ray.util.as_completed(refs, yield_obj_refs=True)) == set(refs)
    assert sorted(ray.util.map_unordered(same, range(25), backpressure_size=4, chunk_size=2)) == list(range(25))
    actor = Recorder.remote()
    assert sorted(ray.util.map_unordered(actor.echo, range(5), backpressure_size=None)) == list(range(5))
    assert list(ray.util.map_unordered(same, [])) == []
    with pytest.raises(ValueError, match="chunk_size"):
        next(ray.util.as_completed(refs, chunk_size=0))
    with pytest.raises(ValueError, match="backpressure_size"):
        next(ray.util.map_unordered(same, [1], backpressure_size=1, chunk_size=2))


def test_inspect_serializability_finds_the_unserializable_part(capsys):
    lock = threading.Lock()

    def holds():
        return lock

    good, failures = ray.util.inspect_serializability(holds, name="holds")
    assert not good
    assert [(f.obj, f.name, f.parent) for f in failures] == [(lock, "lock", holds)]
    assert "lock" in capsys.readouterr().out
    assert ray.util.inspect_serializability(5) == (True, set())


class Handle:
    def __init__(self, name):
        self.name, self.lock = name, threading.Lock()


@ray.remote
def name_in(value):
    return value["in"][0].name


def test_a_serializer_can_be_registered_and_removed():
    with pytest.raises(TypeError):
        ray.put(Handle("first"))
    ray.util.register_serializer(Handle, serializer=lambda h: h.name, deserializer=Handle)
    try:
        assert ray.get(name_in.remote({"in": [Handle("sent")]})) == "sent"
        assert ray.get(ray.put(Handle("kept"))).name == "kept"
    finally:
        ray.util.deregister_serializer(Handle)
    ray.util.deregister_serializer(Handle)
    with pytest.raises(TypeError):
        ray.put(Handle("third"))


class CodedError(Exception):
    pass


def of_ours(kind, *parts):
    return kind, "of ours", *parts


@pytest.mark.parametrize("made", ["ndarray", "large ndarray", "Tensor", "Parameter", "exception"])
def test_a_serializer_overrides_a_built_in_serialization(made):
    import torch  # imported here only, because workers import this module

    value = {
        "ndarray": np.arange(3),
        "large ndarray": np.arange(5000),
        "Tensor": torch.ones(3),
        "Parameter": torch.nn.Parameter(torch.ones(3)),
        "exception": CodedError("x"),
    }[made]
    kind = type(value)
    ray.util.register_serializer(kind, serializer=lambda value: kind.__name__, deserializer=of_ours)
    try:
        assert ray.get(ray.put(value)) == of_ours(kind.__name__)
        assert ray.get(ray.put({"in": [value]})) == {"in": [of_ours(kind.__name__)]}
    finally:
        ray.util.deregister_serializer(kind)
    assert type(ray.get(ray.put(value))) is kind
