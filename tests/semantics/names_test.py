"""Named and detached actors, and namespaces."""

import pickle
import time

import pytest
from internals.core import actor_ownership
from launching.actors import Log
from launching.leftovers import wait_until
from semantics_actors import Gate

import shoal
from shoal.exceptions import ActorDiedError
from shoal.util import list_named_actors


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=4, namespace="ours")
    yield
    shoal.shutdown()


@pytest.fixture
def named():
    actor = Log.options(name="log").remote(1)
    yield actor
    shoal.kill(actor)


def test_an_actor_is_found_by_its_name(named):
    found = shoal.get_actor("log")
    assert found == named
    assert shoal.get(found.all.remote()) == [1]


def test_an_actor_finds_another_by_name_in_its_jobs_namespace(named):
    @shoal.remote
    def look():
        return shoal.get(shoal.get_actor("log").all.remote())

    assert shoal.get(look.remote()) == [1]


def test_an_unused_name_is_a_value_error():
    with pytest.raises(ValueError, match="no living actor is named 'nobody' in namespace 'ours'"):
        shoal.get_actor("nobody")


def test_a_dead_actors_name_is_free_again():
    first = Log.options(name="again").remote()
    shoal.kill(first)
    with pytest.raises(ValueError, match="no living actor"):
        shoal.get_actor("again")
    second = Log.options(name="again").remote(2)
    assert shoal.get(shoal.get_actor("again").all.remote()) == [2]
    shoal.kill(second)


def test_a_second_actor_of_one_name_is_a_value_error(named):
    with pytest.raises(ValueError, match="an actor named 'log' lives already"):
        Log.options(name="log").remote()


def test_get_if_exists_returns_the_existing_actor_or_creates_one(named):
    same = Log.options(name="log", get_if_exists=True).remote(9)
    assert same == named
    assert shoal.get(same.all.remote()) == [1]
    fresh = Log.options(name="fresh", get_if_exists=True).remote(3)
    assert shoal.get(fresh.all.remote()) == [3]
    shoal.kill(fresh)


def test_get_if_exists_never_returns_an_ending_actor():
    def once():
        log = Log.options(name="again", get_if_exists=True).remote()
        return shoal.get([log.add.remote(1), log.all.remote()], timeout=60)

    assert [once()[1][-1:] for _ in range(40)] == [[1]] * 40
    actor_ownership.settle()
    wait_until(lambda: "again" not in list_named_actors(), 60, "the end of the last")


def test_an_actor_that_waits_to_end_goes_on_when_found():
    gate = Gate.remote()
    log = Log.options(name="busy").remote()
    actor_id, late = log._actor_id, log.echo.remote(gate.wait.remote(then="late"))
    del log
    actor_ownership.settle()  # returns once the actor was asked to end
    found = Log.options(name="busy", get_if_exists=True).remote()
    assert found._actor_id == actor_id
    shoal.get(gate.open.remote())
    assert shoal.get([late, found.add.remote(7)], timeout=60) == ["late", 1]
    actor_ownership.settle()
    assert shoal.get(found.all.remote(), timeout=60) == [7]
    del found
    wait_until(lambda: "busy" not in list_named_actors(), 60, "its end")


def test_concurrent_get_if_exists_creates_one_actor():
    @shoal.remote(num_cpus=0)
    class Getter:
        def get(self):
            self.actor = Log.options(name="one", get_if_exists=True).remote()  # the actor ends with the getter that created it
            return shoal.get(self.actor.pid.remote())

    getters = [Getter.remote() for _ in range(4)]
    assert len(set(shoal.get([g.get.remote() for g in getters]))) == 1
    for g in getters:
        shoal.kill(g)


def test_get_if_exists_without_a_name_is_a_value_error():
    with pytest.raises(ValueError, match="needs the name"):
        Log.options(get_if_exists=True).remote()


@pytest.mark.parametrize("name", [1, b"x", ["a"]])
def test_a_name_that_is_no_str_is_a_type_error(name):
    with pytest.raises(TypeError, match="is a str"):
        Log.options(name=name).remote()
    with pytest.raises(TypeError, match="is a str"):
        shoal.get_actor(name)


def test_an_empty_name_is_a_value_error():
    with pytest.raises(ValueError, match="Actor name cannot be an empty string"):
        Log.options(name="").remote()
    with pytest.raises(ValueError, match="not empty"):
        shoal.get_actor("")


def test_an_unknown_lifetime_is_a_value_error():
    with pytest.raises(ValueError, match="actor `lifetime` argument must be one of 'detached', 'non_detached' and 'None'"):
        Log.options(lifetime="forever").remote()


def test_namespaces_are_apart(named):
    with pytest.raises(ValueError, match="in namespace 'theirs'"):
        shoal.get_actor("log", namespace="theirs")
    other = Log.options(name="log", namespace="theirs").remote(2)
    assert shoal.get(shoal.get_actor("log", namespace="theirs").all.remote()) == [2]
    assert shoal.get(shoal.get_actor("log").all.remote()) == [1]
    assert list_named_actors() == ["log"]
    assert sorted(a["namespace"] for a in list_named_actors(all_namespaces=True)) == ["ours", "theirs"]
    shoal.kill(other)


def test_calls_on_a_found_handle_fail_after_the_actors_death(named):
    @shoal.remote(num_cpus=0)
    class Holder:
        def hold(self):
            self.log = shoal.get_actor("log")
            return shoal.get(self.log.all.remote())

        def ask(self):
            return shoal.get(self.log.all.remote())

    holder = Holder.remote()
    assert shoal.get(holder.hold.remote()) == [1]
    shoal.kill(named)
    assert any(_died(holder.ask.remote()) for _ in range(100_000))  # the killed actor may answer other callers until its process ends
    shoal.kill(holder)


def _died(ref) -> bool:
    try:
        shoal.get(ref)
    except ActorDiedError:
        return True
    return False


def test_calls_by_name_on_an_actor_with_a_failed_constructor_raise():
    @shoal.remote(num_cpus=0)
    class Slow:
        def __init__(self):
            time.sleep(0.3)
            raise ValueError("no way")

        def ping(self):
            pass

    Slow.options(name="slow").remote()

    @shoal.remote
    def call():
        try:
            shoal.get(shoal.get_actor("slow").ping.remote())
        except ActorDiedError as error:
            return str(error)

    assert "no way" in shoal.get(call.remote())


def test_an_actor_of_a_cpp_program_is_found_and_refused():
    found = b"cshoal._handle\n_foreign\n(Vuser::Counter\ntR."  # the pickle of a handle, as in actors/api/worker/worker_test.cc
    with pytest.raises(shoal.exceptions.Unimplemented, match=r"a user::Counter of a C\+\+ program"):
        pickle.loads(found)
