"""A1 and A2 of COVERAGE.md, devices: the GPUs of a worker, types of accelerators, labels of the node. These tests need no GPU."""

import os

import pytest
from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import InvalidArgument


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    visible = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    ray.init(num_cpus=8, num_gpus=2, labels={"zone": "a", "disk": "fast"}, resources={"accelerator_type:A100": 1})
    yield
    ray.shutdown()
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


@ray.remote
class Device:
    def ids(self):
        return ray.get_gpu_ids()

    def seen(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES"), ray.get_runtime_context().get_accelerator_ids()

    def crash(self):
        os._exit(1)


def ids_of(actors):
    return ray.get([a.ids.remote() for a in actors], timeout=GUARD_S)


def all_free():
    wait_until(lambda: ray.available_resources().get("GPU") == 2, GUARD_S, "all GPUs free")


@pytest.fixture(autouse=True)
def free():
    all_free()


def test_a_whole_device_belongs_to_one_worker_until_it_ends():
    first, second = (Device.options(num_gpus=1).remote() for _ in range(2))
    assert sorted(ids_of([first, second])) == [[0], [1]]
    (freed,) = ids_of([first])
    ray.kill(first)
    third = Device.options(num_gpus=1).remote()
    assert ids_of([third]) == [freed]


def test_a_worker_sees_its_devices_only():
    assert ray.get(Device.options(num_gpus=2).remote().seen.remote(), timeout=GUARD_S) == ("0,1", {"GPU": ["0", "1"]})


def test_a_worker_without_gpus_sees_none():
    assert ray.get(Device.remote().seen.remote(), timeout=GUARD_S) == ("", {"GPU": []})


def test_a_share_belongs_to_one_device():
    actors = [Device.options(num_gpus=0.5).remote() for _ in range(4)]
    assert sorted(ids_of(actors)) == [[0], [0], [1], [1]]


def test_a_function_has_its_device():
    @ray.remote(num_gpus=1)
    def device():
        return ray.get_gpu_ids()

    assert ray.get(device.remote(), timeout=GUARD_S) in ([0], [1])


def test_a_restarted_actor_has_a_device_again():
    other = Device.options(num_gpus=1).remote()
    (taken,) = ids_of([other])
    actor = Device.options(num_gpus=1, max_restarts=1, max_task_retries=-1).remote()
    before = ids_of([actor])
    actor.crash.options(max_task_retries=0).remote()
    assert ids_of([actor]) == before != [taken]


def test_a_variable_set_by_the_user_is_kept():
    actor = Device.options(num_gpus=1, runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": "7"}}).remote()
    assert ids_of([actor]) == [[7]]


def test_a_share_of_several_devices_is_refused():
    with pytest.raises(ValueError, match="a whole number or below 1"):
        Device.options(num_gpus=1.5)


def test_accelerator_type_selects_a_node_that_has_it():
    assert ids_of([Device.options(num_gpus=1, accelerator_type="A100").remote()]) in ([[0]], [[1]])

    @ray.remote(accelerator_type="A100")
    def there():
        return True

    @ray.remote(accelerator_type="TPU")
    def elsewhere():
        return True

    assert ray.get([there.remote() for _ in range(3)], timeout=GUARD_S) == [True] * 3
    ref = elsewhere.remote()
    assert ray.wait([ref], timeout=0.2)[0] == []
    ray.cancel(ref)
    for wrong in (5, ""):
        with pytest.raises(TypeError, match="accelerator_type is a str"):
            Device.options(accelerator_type=wrong)


def test_the_node_has_the_labels_that_init_was_given():
    (node,) = ray.nodes()
    assert {"zone": "a", "disk": "fast"}.items() <= node["labels"].items()
    assert ids_of([Device.options(label_selector={"zone": "a", "disk": "!slow"}).remote()]) == [[]]


def test_init_labels_need_a_new_cluster():
    with pytest.raises(TypeError, match="labels is a dict"):
        ray.init(labels={"zone": 5}, ignore_reinit_error=True)
    ray.shutdown()
    with pytest.raises(InvalidArgument, match="labels cannot be set"):
        ray.init("127.0.0.1:1", labels={"zone": "a"})
