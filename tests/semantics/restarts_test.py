"""Actors whose process is restarted when it ends."""

import os
import signal
import sys

import numpy as np
import pytest
from launching.leftovers import wait_until

import shoal
from shoal.exceptions import ActorDiedError, ActorUnavailableError


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=4)
    yield
    shoal.shutdown()


@shoal.remote(num_cpus=0)
class Mortal:
    def __init__(self, first=0, more=None):
        self.value = first
        self.more = more

    def add(self):
        self.value += 1
        return self.value

    def total(self):
        return float(np.sum(self.more))

    def pid(self):
        return os.getpid()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self, path):
        """Dies at its first call."""
        if not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.add()

    def leave(self, code=0):
        os._exit(code)

    def reconstructed(self):
        return shoal.get_runtime_context().was_current_actor_reconstructed

    def exit_actor(self):
        shoal.exit_actor()

    def sys_exit(self, code=0):
        sys.exit(code)


@shoal.remote(num_cpus=0)
class Made:
    """An actor whose process exits in the first run of its constructor."""

    def __init__(self, path, code):
        if not os.path.exists(path):
            open(path, "w").close()
            sys.exit(code)

    def ping(self):
        return "pong"


class MortalAsync:
    async def reconstructed(self):
        return shoal.get_runtime_context().was_current_actor_reconstructed

    async def sys_exit(self, code):
        sys.exit(code)


KINDS = pytest.mark.parametrize(
    "kind",
    [Mortal, Mortal.options(max_concurrency=2), shoal.remote(num_cpus=0)(MortalAsync)],
    ids=["ordinary", "threads", "async"],
)


def row_of(actor):
    (row,) = (r for r in shoal._core.process.session().list("actors") if r["id"] == actor._actor_id)
    return row


def test_an_actor_restarts_with_the_same_arguments():
    actor = Mortal.options(max_restarts=1).remote(10)
    assert shoal.get([actor.add.remote(), actor.add.remote(), actor.reconstructed.remote()]) == [11, 12, False]
    first = shoal.get(actor.pid.remote())
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.remote())
    assert shoal.get([actor.add.remote(), actor.reconstructed.remote()]) == [11, True]
    assert shoal.get(actor.pid.remote()) != first
    assert row_of(actor)["num_restarts"] == 1


def test_an_actor_dies_for_good_after_its_last_restart():
    actor = Mortal.options(max_restarts=1).remote()
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.remote())
    with pytest.raises(ActorDiedError):
        shoal.get(actor.die.remote())
    with pytest.raises(ActorDiedError):
        shoal.get(actor.add.remote())


def test_an_actor_without_restarts_dies_at_once():
    actor = Mortal.remote()
    with pytest.raises(ActorDiedError):
        shoal.get(actor.die.remote())


def test_calls_during_a_restart_wait():
    actor = Mortal.options(max_restarts=-1, max_task_retries=-1).remote()
    shoal.get(actor.add.remote())
    for _ in range(3):
        os.kill(shoal.get(actor.pid.remote()), signal.SIGKILL)
        wait_until(lambda: row_of(actor)["state"] != "ALIVE" or row_of(actor)["num_restarts"], 10)
    assert shoal.get(actor.add.remote()) >= 1


def test_lost_calls_are_retried_in_order_with_max_task_retries(tmp_path):
    actor = Mortal.options(max_restarts=1, max_task_retries=1).remote(5)
    refs = [actor.die_once.remote(str(tmp_path / "died")), actor.add.remote(), actor.add.remote()]
    assert shoal.get(refs) == [6, 7, 8]


def test_retries_of_a_lost_call_are_bounded():
    actor = Mortal.options(max_restarts=3, max_task_retries=1).remote()
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.remote())
    assert row_of(actor)["num_restarts"] == 2
    assert shoal.get(actor.add.remote()) == 1


def test_a_call_has_its_own_retry_count():
    actor = Mortal.options(max_restarts=-1, max_task_retries=-1).remote()
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.options(max_task_retries=0).remote())
    assert row_of(actor)["num_restarts"] == 1
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.options(max_task_retries=2).remote())
    assert row_of(actor)["num_restarts"] == 4
    assert shoal.get(actor.add.remote()) == 1


def test_a_decorated_method_has_its_own_retry_count(tmp_path):
    @shoal.remote(num_cpus=0, max_restarts=-1)
    class Decorated:
        @shoal.method(max_task_retries=-1)
        def die_once(self, path):
            if not os.path.exists(path):
                open(path, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return path

    actor, path = Decorated.remote(), str(tmp_path / "died")
    assert shoal.get(actor.die_once.remote(path)) == path


def test_arguments_may_be_references_and_large(tmp_path):
    large = np.ones(1 << 20)
    actor = Mortal.options(max_restarts=2).remote(shoal.put(3), large)
    assert shoal.get(actor.total.remote()) == 1 << 20
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.remote())
    assert shoal.get(actor.total.remote()) == 1 << 20
    assert shoal.get(actor.add.remote()) == 4


@pytest.mark.parametrize("code", [0, 1, 99, 127])
def test_an_unannounced_exit_causes_a_restart(code):
    actor = Mortal.options(max_restarts=1).remote()
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.leave.remote(code))
    assert shoal.get(actor.add.remote()) == 1


@pytest.mark.parametrize("way", ["exit_actor", "sys_exit", "terminate"])
def test_an_orderly_end_causes_no_restart(way):
    actor = Mortal.options(max_restarts=-1, max_task_retries=-1).remote()
    with pytest.raises(ActorDiedError):
        shoal.get(actor.__ray_terminate__.remote() if way == "terminate" else getattr(actor, way).remote())
    with pytest.raises(ActorDiedError):
        shoal.get(actor.add.remote())
    assert row_of(actor)["num_restarts"] == 0


@KINDS
def test_exit_code_0_is_orderly_on_threads_and_loops_too(kind):
    actor = kind.options(max_restarts=-1, max_task_retries=-1).remote()
    for _ in range(2):
        with pytest.raises(ActorDiedError):
            shoal.get(actor.sys_exit.remote(0))
    assert row_of(actor)["num_restarts"] == 0


@KINDS
@pytest.mark.parametrize("code", [1, 99, None, "a message"], ids=repr)
def test_any_other_exit_code_causes_a_restart(kind, code):
    actor = kind.options(max_restarts=1).remote()
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.sys_exit.remote(code))
    assert shoal.get(actor.reconstructed.remote())
    with pytest.raises(ActorDiedError):  # the actor had one restart only
        shoal.get(actor.sys_exit.remote(code))


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}], ids=["ordinary", "threads"])
def test_an_exit_in_the_constructor_causes_a_restart(options, tmp_path):
    actor = Made.options(max_restarts=1, max_task_retries=-1, **options).remote(str(tmp_path / "made"), 1)
    assert shoal.get(actor.ping.remote()) == "pong"
    assert row_of(actor)["num_restarts"] == 1


def test_a_constructors_exit_is_final_with_code_0_or_without_restarts(tmp_path):
    for name, code, restarts in (("first", 0, -1), ("second", 4, 0)):
        actor = Made.options(max_restarts=restarts).remote(str(tmp_path / name), code)
        with pytest.raises(ActorDiedError, match=f"exited with code {code}"):
            shoal.get(actor.ping.remote())
        assert row_of(actor)["num_restarts"] == 0


def test_kill_is_final_unless_no_restart_is_false():
    actor = Mortal.options(max_restarts=1).remote()
    shoal.get(actor.add.remote())
    shoal.kill(actor, no_restart=False)
    wait_until(lambda: row_of(actor)["num_restarts"] == 1 and row_of(actor)["state"] == "ALIVE", 10)
    assert shoal.get(actor.add.remote()) == 1
    shoal.kill(actor)
    with pytest.raises(ActorDiedError, match=r"shoal\.kill"):
        shoal.get(actor.add.remote())


class OwnBaseError(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, OwnBaseError, KeyboardInterrupt])
def test_a_constructor_error_causes_no_restart(error):
    @shoal.remote(num_cpus=0, max_restarts=-1)
    class Broken:
        def __init__(self):
            raise error("no way")

        def ping(self):
            pass

    actor = Broken.remote()
    with pytest.raises(ActorDiedError, match="no way"):
        shoal.get(actor.ping.remote())
    assert row_of(actor)["num_restarts"] == 0


@shoal.remote(num_cpus=0)
class Unlucky:
    """An actor whose process dies in its constructor `times` times."""

    def __init__(self, folder, times):
        if len(os.listdir(folder)) < times:
            open(os.path.join(folder, str(os.getpid())), "w").close()
            os._exit(1)
        self.calls = 0

    def count(self):
        self.calls += 1
        return self.calls


def test_calls_wait_for_the_next_life_after_a_crashed_constructor(tmp_path):
    actor = Unlucky.options(max_restarts=2).remote(str(tmp_path), 2)
    assert shoal.get([actor.count.remote() for _ in range(3)]) == [1, 2, 3]


def test_calls_of_other_processes_wait_after_a_crashed_constructor(tmp_path):
    @shoal.remote(num_cpus=0)
    class Holder:
        def call(self, actor):
            return shoal.get(actor.count.remote())

    holders = [Holder.remote() for _ in range(2)]
    actor = Unlucky.options(max_restarts=-1).remote(str(tmp_path), 2)
    assert sorted(shoal.get([holder.call.remote(actor) for holder in holders])) == [1, 2]


def test_calls_after_crashed_constructors_fail_at_last(tmp_path):
    actor = Unlucky.options(max_restarts=1).remote(str(tmp_path), 9)
    with pytest.raises(ActorDiedError):
        shoal.get(actor.count.remote())
    assert len(os.listdir(tmp_path)) == 2


def test_a_restarted_actor_keeps_its_name():
    actor = Mortal.options(name="phoenix", max_restarts=1).remote(1)
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.remote())
    assert shoal.get(shoal.get_actor("phoenix").add.remote()) == 2


def test_other_holders_of_the_handle_see_the_restart():
    @shoal.remote(num_cpus=0)
    class Holder:
        def call(self, actor):
            return shoal.get(actor.add.remote())

    holder = Holder.remote()
    actor = Mortal.options(max_restarts=1).remote()
    assert shoal.get(holder.call.remote(actor)) == 1
    with pytest.raises(ActorUnavailableError):
        shoal.get(actor.die.remote())
    wait_until(lambda: row_of(actor)["state"] == "ALIVE", 10)
    assert shoal.get(holder.call.remote(actor)) == 1


@pytest.mark.parametrize("options", [{"max_restarts": -2}, {"max_task_retries": -2}], ids=repr)
def test_invalid_restart_options_are_a_value_error(options):
    with pytest.raises(ValueError, match="max_"):
        Mortal.options(**options).remote()
