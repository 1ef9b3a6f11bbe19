"""Edge cases of Ray's API: methods with two underscores, the last method of an actor, texts of errors, impossible amounts and nodes."""

import gc
import os
import pickle
import time
from pathlib import Path

import pytest
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ActorDiedError, ActorUnschedulableError, RayTaskError
from shoal.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# ---- methods with two underscores


@ray.remote
class Table:
    def __init__(self):
        self.rows = {"a": 1}

    def __call__(self, by, *, plus=0):
        return {k: v * by + plus for k, v in self.rows.items()}

    def __getitem__(self, name):
        return self.rows[name]

    def __len__(self):
        return len(self.rows)


def test_user_defined_dunder_methods_are_callable():
    table = Table.remote()
    assert ray.get([table.__call__.remote(3, plus=1), table.__getitem__.remote("a"), table.__len__.remote()]) == [{"a": 4}, 1, 1]


def test_dunder_methods_are_callable_through_a_pickled_handle():
    @ray.remote
    def ask(table):
        return ray.get(table.__call__.remote(2))

    assert ray.get(ask.remote(Table.remote())) == {"a": 2}


def test_wrong_arguments_of_dunder_methods_are_a_type_error():
    with pytest.raises(TypeError, match=r"Table\.__getitem__"):
        Table.remote().__getitem__.remote()


@pytest.mark.parametrize("name", ["__enter__", "__missing__", "__array_interface__"])
def test_undefined_dunder_methods_are_an_attribute_error(name):
    with pytest.raises(AttributeError, match=name):
        getattr(Table.remote(), name)


def test_a_handle_with_such_methods_is_still_a_handle():
    table = Table.remote()
    assert table
    assert not callable(table)
    assert table in {table}
    assert pickle.loads(pickle.dumps(table)) == table


# ---- names of users' methods and arguments


def _of_ours() -> list[str]:
    """Names with one underscore that Shoal's classes and handles have, or had in earlier versions. A user's methods may have them, too."""
    had = ["_actor", "_own", "_count", "_created", "_sharing", "_in_any_order", "_actor_id", "_ray_actor_id", "_remote", "_shoal"]
    ours = [*dir(Table.remote()), *dir(Table), *dir(Table.remote().__call__), *ray.actor.ActorMethod.__slots__]
    return sorted({*had, *(n for n in ours if not n.startswith(("__", "_shoal_")) and n != "rows")})


NAMES = ["remote", "options", "bind", "count", "get", "kill", "method", "items", "_cls", "_method", "_options", "_name", "_check"]


def test_methods_may_have_any_name():
    names = [*NAMES, *_of_ours()]
    service = ray.remote(type("Service", (), {name: (lambda self, name=name: name) for name in names})).remote()

    @ray.remote
    def through(handle):
        return ray.get([getattr(handle, name).remote() for name in names], timeout=GUARD_S)

    assert ray.get([getattr(service, name).remote() for name in names], timeout=GUARD_S) == names
    assert ray.get(through.remote(service), timeout=GUARD_S) == names
    del through
    ray.kill(service)  # works, although a method of the actor has the name of the handle's `_actor_id`


def test_a_class_keeps_its_own_attributes_when_it_is_decorated():
    @ray.remote
    class Settings:
        _options, _methods, _cls = {"a": 1}, ["b"], "c"

        @staticmethod
        def _checked(x):
            return x

    assert (Settings._options, Settings._methods, Settings._cls, Settings._checked(2)) == ({"a": 1}, ["b"], "c", 2)


class Keywords:
    def __init__(this, **words):
        this.words = words

    def both(this, **words):
        return this.words, words


WORDS = {"self": 1, "cls": 2, "args": 3, "kwargs": 4, "instance": 5, "function": 6, "method": 7, "session": 8, "name": 9}


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}, {"max_restarts": 1}, {"name": "keywords", "lifetime": "detached"}])
def test_keyword_arguments_of_methods_may_have_any_name(options):
    actor = ray.remote(Keywords).options(**options).remote(**WORDS)
    calls = [actor.both.remote(**WORDS), actor.both.options(name="named").remote(**WORDS), actor.both.bind(**WORDS).execute()]
    assert ray.get(calls, timeout=GUARD_S) == [(WORDS, WORDS)] * 3
    called = actor.__ray_call__.remote(lambda keywords, **words: (keywords.words, words), **WORDS)
    assert ray.get(called, timeout=GUARD_S) == (WORDS, WORDS)
    ray.kill(actor)


def test_keyword_arguments_of_functions_may_have_any_name():
    @ray.remote
    def both(**words):
        return words

    calls = [both.remote(**WORDS), both.options(num_cpus=0).remote(**WORDS), both.bind(**WORDS).execute()]
    assert ray.get(calls, timeout=GUARD_S) == [WORDS] * 3


class Shadowed:
    def __init__(self):
        self.called, self.fixed, self.of_class, self.__ray_shutdown__ = 1, 2, 3, 4

    def called(self):
        return "method", self.called

    @staticmethod
    def fixed(x):
        return "static", x

    @classmethod
    def of_class(cls):
        return cls.__name__


class ShadowedAsync(Shadowed):
    async def called(self):
        return "method", self.called


@pytest.mark.parametrize(("cls", "options"), [(Shadowed, {}), (Shadowed, {"max_concurrency": 2}), (ShadowedAsync, {})])
def test_an_attribute_of_the_instance_does_not_hide_a_method(cls, options):
    actor = ray.remote(cls).options(**options).remote()
    calls = [actor.called.remote(), actor.fixed.remote(5), actor.of_class.remote(), actor.called.bind().execute()]
    assert ray.get(calls, timeout=GUARD_S) == [("method", 1), ("static", 5), cls.__name__, ("method", 1)]


# ---- the last method


class Leaves:
    def __init__(self, notes):
        self.notes = notes

    def pid(self):
        return os.getpid()

    def leave(self):
        ray.actor.exit_actor()

    def __ray_shutdown__(self):
        with Path(self.notes).open("a") as file:
            file.write("bye\n")


class LeavesAsync(Leaves):
    async def pid(self):
        return os.getpid()

    async def leave(self):
        ray.actor.exit_actor()


KINDS = pytest.mark.parametrize("kind", [Leaves, LeavesAsync, "threads"])


def make(kind, notes):
    if kind == "threads":
        return ray.remote(max_concurrency=2)(Leaves).remote(str(notes))
    return ray.remote(kind).remote(str(notes))


@KINDS
@pytest.mark.parametrize("way", ["leave", "__ray_terminate__"])
def test_an_orderly_end_calls_ray_shutdown(kind, way, tmp_path):
    actor = make(kind, tmp_path / "notes")
    ray.get(actor.pid.remote())
    with pytest.raises(ActorDiedError):
        ray.get(getattr(actor, way).remote(), timeout=GUARD_S)
    assert (tmp_path / "notes").read_text() == "bye\n"


@KINDS
def test_children_of_an_actor_end_with_it(kind, tmp_path):
    """Also ends children of multiprocessing, which Python would join at exit. The actor's exit handlers run before."""
    actor = make(kind, tmp_path / "notes")

    def begin(_, notes):
        import atexit
        import multiprocessing
        import signal

        atexit.register(lambda: Path(notes).touch())
        fork = multiprocessing.get_context("fork")
        patient = fork.Process(target=time.sleep, args=(1000,))
        deaf = fork.Process(target=lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(1000)))
        patient.start()
        deaf.start()
        return os.getpid(), patient.pid, deaf.pid

    pids = ray.get(actor.__ray_call__.remote(begin, str(tmp_path / "handler")), timeout=GUARD_S)
    del actor
    gc.collect()
    wait_until(lambda: not any(map(alive, pids)), GUARD_S, "the end of the actor and its children")
    assert (tmp_path / "handler").exists()


def _pool(actor):
    import multiprocessing

    pool = multiprocessing.get_context("fork").Pool(2)
    actor.pool = pool, pool.apply_async(time.sleep, (1000,))
    return [os.getpid(), *(p.pid for p in pool._pool)]


def _queue(actor):
    import multiprocessing

    actor.queue = multiprocessing.get_context("fork").Queue()
    actor.queue.put(bytes(1 << 20))  # more than the capacity of a pipe
    return [os.getpid()]


@pytest.mark.parametrize("begin", [_pool, _queue])
def test_pending_work_of_a_pool_or_queue_does_not_keep_an_actor(begin, tmp_path):
    actor = make(Leaves, tmp_path / "notes")
    pids = ray.get(actor.__ray_call__.remote(begin), timeout=GUARD_S)
    del actor
    gc.collect()
    wait_until(lambda: not any(map(alive, pids)), GUARD_S, "the end of the actor and its children")


@KINDS
def test_an_actor_out_of_scope_calls_ray_shutdown(kind, tmp_path):
    actor = make(kind, tmp_path / "notes")
    ray.get(actor.pid.remote())
    del actor
    gc.collect()
    wait_until((tmp_path / "notes").exists, GUARD_S, "the last method")


def test_an_error_in_ray_shutdown_does_not_change_the_end():
    @ray.remote
    class Stumbles:
        def leave(self):
            ray.actor.exit_actor()

        def __ray_shutdown__(self):
            raise ValueError("not in order")

    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(Stumbles.remote().leave.remote(), timeout=GUARD_S)


def test_kill_does_not_call_ray_shutdown(tmp_path):
    actor = make(Leaves, tmp_path / "notes")
    ray.get(actor.pid.remote())
    ray.kill(actor)
    with pytest.raises(ActorDiedError):
        ray.get(actor.pid.remote(), timeout=GUARD_S)
    assert not (tmp_path / "notes").exists()


# ---- errors


@ray.remote
class Fails:
    def pid(self):
        return os.getpid()

    def fail(self):
        raise KeyError("nothing there")


def test_an_error_has_its_origin_in_rays_attributes():
    actor = Fails.remote()
    with pytest.raises(RayTaskError) as info:
        ray.get(actor.fail.remote())
    for error in (info.value, pickle.loads(pickle.dumps(info.value))):
        assert isinstance(error, KeyError)
        assert error.function_name == "Fails.fail"
        assert 'raise KeyError("nothing there")' in error.traceback_str
        assert error.pid == ray.get(actor.pid.remote())
        assert error.ip == ray.util.get_node_ip_address()
        assert error.proctitle == "ray::Fails.fail"


def test_a_forwarded_error_keeps_its_origin():
    @ray.remote
    def ask(actor):
        return ray.get(actor.fail.remote())

    actor = Fails.remote()
    with pytest.raises(RayTaskError) as info:
        ray.get(ask.remote(actor))
    assert info.value.pid == ray.get(actor.pid.remote())


class OwnProcessError(Exception):
    def __init__(self, pid, ip):
        super().__init__(pid, ip)
        self.pid, self.ip = pid, ip


def test_attributes_of_the_users_own_exception_are_its_own():
    @ray.remote
    def fail():
        raise OwnProcessError({"of": "theirs"}, 7)

    @ray.remote
    def ask():
        return ray.get(fail.remote())

    for call in (fail, ask):
        with pytest.raises(OwnProcessError) as info:
            ray.get(call.remote())
        assert (info.value.pid, info.value.ip) == ({"of": "theirs"}, 7)


def test_an_actors_death_has_its_cause_and_the_preempted_flag():
    actor = Fails.remote()
    ray.kill(actor)
    with pytest.raises(ActorDiedError) as info:
        ray.get(actor.fail.remote(), timeout=GUARD_S)
    assert "Fails died" in info.value.error_msg
    assert info.value.preempted is False


def test_an_error_from_a_drained_node_is_preempted():
    died = ActorDiedError("actor A died", cause_reason="NodeDrained")
    assert died.preempted is pickle.loads(pickle.dumps(died)).preempted is True


# ---- impossible amounts and nodes


@pytest.mark.parametrize(("name", "hint"), [("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "memory="), ("object_store_memory", "")])
@pytest.mark.parametrize("decorated", [Fails, ray.remote(lambda: 1)], ids=["actor", "function"])
def test_resources_refuse_names_with_their_own_option(name, hint, decorated):
    with pytest.raises(ValueError, match=f"'{name}'.*{hint}"):
        decorated.options(resources={name: 1})
    with pytest.raises(ValueError, match=f"'{name}'.*{hint}"):
        ray.remote(resources={name: 1})


@pytest.mark.parametrize("node", ["5f" * 28, "0" * 56, "0"])
def test_an_id_in_rays_format_is_an_absent_node(node):
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    with pytest.raises(ActorUnschedulableError):
        ray.get(Fails.options(scheduling_strategy=there).remote().pid.remote(), timeout=GUARD_S)
    soft = NodeAffinitySchedulingStrategy(node, soft=True)
    assert ray.get(Fails.options(scheduling_strategy=soft).remote().pid.remote(), timeout=GUARD_S) > 0


def test_an_invalid_node_id_is_a_value_error():
    with pytest.raises(ValueError, match="hexadecimal"):
        Fails.options(scheduling_strategy=NodeAffinitySchedulingStrategy("here", soft=True)).remote()
