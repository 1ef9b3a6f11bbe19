"""Errors of Ray, as ``shoal.ray.run`` raises them. Ray itself is not needed: tests/launchers has it."""

import types

import pytest

from shoal import exceptions
from shoal.ray._run import _Reports, _value


class RayError(Exception):
    pass


def _ray() -> types.SimpleNamespace:
    """A module whose ``get`` raises the reference that it gets."""
    found = types.SimpleNamespace(RayError=RayError)
    names = ("RayActorError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "RaySystemError", "RayTaskError")
    for name in (*names, "RuntimeEnvSetupError", "ObjectLostError"):
        setattr(found, name, type(name, (RayError,), {}))
    found.ObjectOfRayAlone = type("ObjectOfRayAlone", (found.ObjectLostError,), {})

    def get(error):
        raise error

    return types.SimpleNamespace(exceptions=found, get=get)


@pytest.mark.parametrize("name", ["RayActorError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError"])
def test_a_death_is_a_death(name):
    ray = _ray()
    with pytest.raises(exceptions.ActorDiedError, match=r"^rank 1 of 2 died, and .* Ray's reason: it is gone$"):
        _value(ray, getattr(ray.exceptions, name)("it is gone"), "rank 1 of 2", None)


def test_a_result_that_ray_cannot_load_is_no_death():
    ray = _ray()
    with pytest.raises(exceptions.RaySystemError, match=r"^rank 1 of 2: its result cannot be read in the driver: System error: no module"):
        _value(ray, ray.exceptions.RaySystemError("System error: no module"), "rank 1 of 2", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ObjectLostError", exceptions.ObjectLostError), ("ObjectOfRayAlone", exceptions.ObjectLostError), ("RayError", exceptions.RayError)],
)
def test_other_errors_keep_their_class_and_text(name, expected):
    ray = _ray()
    with pytest.raises(exceptions.ShoalError, match=r"^rank 1 of 2: the text$") as raised:
        _value(ray, getattr(ray.exceptions, name)("the text"), "rank 1 of 2", None)
    assert type(raised.value) is expected


def test_the_death_of_the_actor_of_reports_is_named():
    ray = _ray()
    next_ = types.SimpleNamespace(remote=lambda: ray.exceptions.RayActorError("it is gone"))
    reports = _Reports(ray, types.SimpleNamespace(next=next_), print)
    with pytest.raises(exceptions.ActorDiedError, match=r"^the actor that passes on reports died"):
        reports.take()
