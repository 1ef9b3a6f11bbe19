"""Ray's names, modules, exceptions, types and ids, and small helpers."""

import importlib
import pickle
import threading

import numpy as np
import pytest
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError, RayActorError, RayError

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


def test_decorators_cancel_and_exit_actor_have_the_texts_that_programs_match():
    for apply in (lambda: ray.remote(), lambda: ray.remote(1), lambda: ray.remote(len, num_cpus=1)):
        with pytest.raises(AssertionError, match=r"The @ray\.remote decorator must be applied either with no arguments and no parentheses"):
            apply()
    with pytest.raises(
        TypeError, match=r"ray\.cancel\(\) only supported for object refs\. For actors, try ray\.kill\(\)\. Got: <class 'int'>"
    ):
        ray.cancel(5)
    with pytest.raises(TypeError, match="exit_actor API is called on a non-actor worker"):
        ray.exit_actor()
    for options, accepts in (
        ({"max_retries": -2}, "'max_retries' only accepts None, 0, -1 or a positive integer, where -1 represents infinity"),
        ({"max_calls": -1}, "'max_calls' only accepts None, 0 or a positive integer"),
        ({"num_returns": -1}, "'num_returns' only accepts None, a non-negative integer, 'streaming'"),
    ):
        with pytest.raises(ValueError, match=f"The keyword {accepts}"):
            ray.remote(**options)(lambda: 1)


def test_a_call_may_be_made_by_a_decorator_of_its_invocation():
    def reversed_and_counted(invocation):
        def invoke(args, kwargs):
            return invocation(args[::-1], {"d": 5}), kwargs

        return invoke

    def four(a, b, c, d=None):
        return a, b, c, d

    four.__ray_invocation_decorator__ = reversed_and_counted

    @ray.remote(num_cpus=0)
    class Four:
        def four(self, a, b, c, d=None):
            return a, b, c, d

        four.__ray_invocation_decorator__ = reversed_and_counted

    actor = Four.remote()
    for target in (ray.remote(four), actor.four, actor.four.options(name="four"), ray.get(ray.put(actor)).four):
        ref, kwargs = target.remote(1, 2, 3, d=4)
        assert kwargs == {"d": 4}
        assert ray.get(ref) == (3, 2, 1, 5)
    ray.kill(actor)


def test_code_that_is_too_large_is_a_value_error():
    large = bytes(100_000_000)

    @ray.remote
    def size():
        return len(large)

    @ray.remote(num_cpus=0)
    class Sized:
        def size(self):
            return len(large)

    with pytest.raises(ValueError, match=r"The remote function .*size is too large .*95 MiB > FUNCTION_SIZE_ERROR_THRESHOLD=95 MiB"):
        size.remote()
    with pytest.raises(ValueError, match="The actor Sized is too large"):
        Sized.remote()


def test_names_of_rays_extension_module():
    assert ray._raylet.ObjectRefGenerator is ray.ObjectRefGenerator
    assert ray._raylet.ObjectRef is ray.ObjectRef


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
    import torch  # not at the top, because workers import this module

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
