import dataclasses
import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch

from shoal._core import serialize
from shoal._core.serialize import dump_exception, dumps, loads
from shoal.exceptions import TaskError


def there_and_back(value):
    """Serializes and loads a value as a call does: the buffers arrive in read-only memory."""
    head, buffers = dumps(value)
    return loads(head, [memoryview(bytes(b)) for b in buffers])


def test_a_snapshot_has_the_values_of_its_moment():
    small, large, array, inner = torch.zeros(2), torch.zeros(2000), np.zeros(2000), {"a": [1]}
    taken = serialize.snapshot({"small": small, "large": large, "array": array, "inner": inner}, "it")
    for tensor in (small, large, array):
        tensor += 1
    inner["a"].append(2)
    found, again = loads(*taken), loads(*taken)
    assert [found[n].sum().item() for n in ("small", "large", "array")] == [0, 0, 0]
    assert found["inner"] == {"a": [1]}
    found["large"] += 1
    assert again["large"].sum() == 0


@pytest.fixture
def on_device(monkeypatch):
    tensor, one_device = torch.ones(3, requires_grad=True), torch.Tensor.device
    device_of = property(lambda t: torch.device("cuda") if t is tensor else one_device.__get__(t))
    monkeypatch.setattr(torch.Tensor, "device", device_of, raising=False)
    return tensor


def test_a_value_on_the_host_shares_the_memory_of_large_arrays():
    array, tensor = np.arange(2000.0), torch.arange(2000.0)
    head, buffers = serialize.dumps((serialize.OnHost({"array": array, "tensor": tensor}), 1))
    assert [np.shares_memory(np.frombuffer(b, np.uint8), t) for b, t in zip(buffers, (array, tensor.numpy()), strict=True)] == [True, True]
    found, _ = loads(head, buffers)
    assert np.array_equal(found["array"], array)
    assert torch.equal(found["tensor"], tensor)


def test_an_error_for_a_value_on_the_host_names_the_value():
    value = serialize.OnHost({"lock": threading.Lock()})
    with pytest.raises(TypeError, match="the metrics, of type dict, cannot be sent: cannot pickle"):
        serialize.pack(value, what="the metrics")


@pytest.mark.parametrize("pickled", [lambda t: serialize.snapshot([t], "it"), lambda t: serialize.dumps(serialize.OnHost([t]))])
def test_tensors_of_devices_arrive_in_the_hosts_memory(on_device, pickled):
    head, buffers = pickled(on_device)
    assert b"torch.storage" not in head  # torch's own pickle of a device's memory, which needs that device
    (found,) = loads(head, buffers)
    assert found.requires_grad
    assert torch.equal(found, on_device)


PLAIN = [None, True, -(2**70), 1.5, complex(1, 2), "", "grüß", b"", b"\0" * 5000, (), [1, (2, [3])], {"a": {1: None}}, {1, 2}, range(3)]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_round_trip(value):
    assert there_and_back(value) == value
    head, buffers, refs = serialize.pack(value)
    assert (loads(head, buffers), refs) == (value, [])


@pytest.mark.parametrize("size", [0, (1 << 16) - 1, 1 << 16])
def test_large_bytes_are_outside_of_the_pickle_in_any_container(size):
    value = b"x" * size
    head, buffers, _ = serialize.pack(value)
    assert loads(head, buffers) == value
    assert len(buffers) == (size >= 1 << 16)
    assert serialize.small(value) == (not buffers)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5),
        np.arange(100_000, dtype=np.float32).reshape(100, 1000),
        np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
        np.arange(100_000)[::7],
        np.arange(20)[::7],
        np.asfortranarray(np.arange(20.0).reshape(4, 5)),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros((0, 3)),
        np.array(7),
        np.array(["a", "bc"]),
        np.array([{"a": 1}, None], dtype=object),
        np.zeros(3000, dtype=[("x", "i4"), ("y", "f8")]),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_arrays_round_trip_with_dtype_shape_and_values(array):
    back = there_and_back({"a": [array]})["a"][0]
    assert back.flags.writeable == array.dtype.hasobject
    assert array.flags.writeable  # the sender's array stays writable
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert (back == array).all()


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_are_outside_of_the_pickle(kind):
    value = kind(os.urandom(1 << 16))
    head, buffers = dumps(value)
    assert [b.nbytes for b in buffers] == [len(value)]
    assert len(head) < 1000
    back = there_and_back(value)
    assert (back, type(back)) == (value, kind)
    assert dumps(value[1:])[1] == []  # smaller parts of it


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (64, 129)])
def test_tensors_round_trip_bit_for_bit(dtype, shape):
    tensor = (torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) % 100).to(dtype)
    back = there_and_back(tensor)
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def special_tensors(numel=12):
    x = torch.arange(float(numel)).reshape(3, -1)
    return {
        "plain": x,
        "transposed": x.t(),
        "permuted": x.reshape(3, 2, -1).permute(2, 0, 1),
        "strided": x[:, ::2],
        "repeated": x[:1].expand(5, -1),
        "one repeated": x[:1, :1].expand(5, numel),
        "bfloat16": x.bfloat16(),
        "conjugated": (x + 1j).conj(),
        "negated": torch.tensor([1 + 2j]).conj().imag.expand(numel),
        "wants a gradient": x.clone().requires_grad_(),
        "transposed and wants a gradient": x.t().clone().requires_grad_().t(),
        "computed": x.clone().requires_grad_() * 2,
        "a parameter": torch.nn.Parameter(x.clone()),
        "a frozen parameter": torch.nn.Parameter(x.clone(), requires_grad=False),
        "sparse": x.to_sparse(),
    }


@pytest.mark.parametrize("name", special_tensors())
def test_tensors_without_plain_memory_round_trip(name):
    tensor = special_tensors()[name]
    tensor.note = "kept"
    back = there_and_back(tensor)
    assert torch.equal(back.detach().to_dense(), tensor.detach().to_dense())
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert back.requires_grad == tensor.requires_grad
    assert back.is_leaf
    assert type(back) is type(tensor)
    assert back.note == "kept"


@dataclasses.dataclass
class Batch:
    x: object
    more: dict


LARGE = {
    **special_tensors(3_000_000),
    "module": torch.nn.Linear(1500, 1500),
    "array": np.zeros(2_000_000),
    "columns": np.asfortranarray(np.zeros((1000, 2000))),
    "every other": np.zeros(4_000_000)[::2],
    "backwards": np.zeros(2_000_000)[::-1],
    "permuted array": np.zeros((100, 200, 100)).transpose(1, 0, 2),
    "dates": np.zeros(2_000_000, "datetime64[s]"),
    "records": np.zeros(2_000_000, dtype=[("x", "i4"), ("y", "f8")]),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_bytes_of_tensors_and_arrays_are_never_in_the_pickle(name):
    head, buffers = dumps([{"a": Batch(LARGE[name], {"b": (LARGE[name],)})}])
    assert len(head) < 10_000
    if "repeated" not in name:  # this tensor has little memory
        assert sum(b.nbytes for b in buffers) > 5_000_000


def test_a_tensor_in_another_order_of_dimensions_is_not_copied():
    tensor = torch.zeros(200, 300, 100).permute(2, 0, 1)
    _, (buffer,) = dumps(tensor)
    assert np.frombuffer(buffer, np.uint8).ctypes.data == tensor.data_ptr()
    assert there_and_back(tensor).stride() == tensor.stride()


def test_a_slice_carries_its_own_bytes_only():
    head, buffers = dumps(torch.zeros(1_000_000)[:2000])
    assert len(head) + sum(b.nbytes for b in buffers) < 10_000


@pytest.mark.parametrize("value", [np.zeros(100_000), torch.zeros(100_000)], ids=["array", "tensor"])
def test_a_large_buffer_is_passed_without_a_copy(value):
    _, buffers = dumps(["before", value, "after"])
    address = value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr()
    assert [np.frombuffer(b, np.uint8).ctypes.data for b in buffers] == [address]


def test_an_array_is_loaded_in_place_and_read_only():
    head, buffers = dumps(np.arange(100_000))
    memory = memoryview(bytes(buffers[0]))
    back = loads(head, [memory])
    assert back.ctypes.data == np.frombuffer(memory, np.uint8).ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", ">f8", "i2", "?", "c8", "S7", "U3", [("a", "i4"), ("b", "f8")]])
def test_arrays_of_one_shape_each_have_their_own_values(dtype, order):
    arrays = [np.zeros((100, 50), dtype=dtype, order=order) for _ in range(3)]
    for i, array in enumerate(arrays):
        np.ravel(array, order="A").view(np.uint8)[:] = i if np.dtype(dtype).kind != "U" else 0
        head, buffers = dumps(array)
        buffers = [memoryview(bytes(b)).toreadonly() for b in buffers]
        first, again = loads(head, buffers), loads(head, buffers)
        for value in (first, again):
            assert type(value) is np.ndarray
            assert (value.dtype, value.shape) == (array.dtype, array.shape)
            assert value.flags.c_contiguous == array.flags.c_contiguous
            assert value.flags.f_contiguous == array.flags.f_contiguous
            assert not value.flags.writeable
            assert value.tobytes() == array.tobytes()
        assert (head in serialize._known) == (array.dtype.names is None)


def test_the_second_array_of_a_shape_is_read_only_too():
    head, buffers = dumps(np.ones(1000))
    for _ in range(2):
        array = loads(head, [memoryview(bytearray(buffers[0])).toreadonly()])
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


class _Lazy:
    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return self.array.__reduce_ex__(5)


class _Doubled(np.ndarray):
    pass


class _Made:
    def __reduce__(self):
        return np.add, (np.ones(1000), np.ones(1000))


@pytest.mark.parametrize(
    "value",
    [
        (np.ones(1000),),
        np.ones(1000).view(_Doubled),
        _Made(),
        np.ones(1000)[::2],
        np.ones((2, 3, 500)).transpose(1, 0, 2),
        _Lazy(np.ones((2, 3, 500)).transpose(1, 0, 2)),
        np.ones(1000, dtype=np.dtype("f8", metadata={"unit": [1]})),
    ],
    ids=["tuple", "subclass", "made of arrays", "slice", "transposed", "transposed, by numpy's own pickle", "with metadata"],
)
def test_values_of_several_arrays_are_unpickled_each_time(value):
    before = dict(serialize._known)
    head, buffers = dumps(value)
    loads(head, [memoryview(bytes(b)).toreadonly() for b in buffers])
    assert serialize._known == before


def test_writable_arrays_are_not_mistaken_for_read_only_ones():
    for _ in range(2):
        held = []
        head = pickle.dumps(np.ones(1000), protocol=5, buffer_callback=held.append)
        array = loads(head, [memoryview(bytearray(held[0].raw()))])
        array[0] = 7
        assert array[0] == 7


def test_the_number_of_cached_shapes_is_bounded():
    for n in range(1000, 2100):
        head, buffers = dumps(np.zeros(n))
        assert len(loads(head, buffers)) == n
        assert len(serialize._known) <= 1000


def test_a_tensor_may_be_written_even_if_its_memory_may_not():
    head, buffers = dumps(torch.zeros(100_000))
    memory = bytes(buffers[0])
    loads(head, [memoryview(memory)]).add_(1)
    assert memory == bytes(400_000)


def test_a_tensor_takes_the_memory_behind_a_read_only_view():
    head, buffers = dumps(torch.zeros(100_000))
    memory = bytearray(buffers[0])
    back = loads(head, [memoryview(memory).toreadonly()])
    assert back.data_ptr() == np.frombuffer(memory, np.uint8).ctypes.data


def test_a_value_keeps_its_memory_alive():
    class Owner(bytearray):
        pass

    head, buffers = dumps(np.arange(10_000))
    owner = Owner(buffers[0])
    gone = weakref.ref(owner)
    back = loads(head, [memoryview(owner).toreadonly()])
    del owner
    gc.collect()
    assert gone() is not None
    assert back[-1] == 9999
    del back
    gc.collect()
    assert gone() is None


def test_a_value_may_contain_many_arrays():
    arrays = [np.full(1024, i) for i in range(20_000)]
    head, buffers = dumps(arrays)
    assert len(buffers) < 16_384  # the limit of one value
    assert [a[0] for a in loads(head, buffers)] == list(range(20_000))


def test_a_recursive_value_round_trips():
    loop = [1]
    loop.append(loop)
    back = there_and_back(loop)
    assert back[1] is back
    ring = {}
    ring["self"] = (ring,)
    assert isinstance(there_and_back(ring)["self"][0]["self"], tuple)


def test_an_object_that_occurs_twice_stays_one():
    array = np.zeros(10_000)
    a, b = there_and_back((array, array))
    assert a is b


def test_closures_lambdas_and_classes_of_a_function_travel_by_value():
    factor = 3

    class Local:
        def times(self, x):
            return x * factor

    function, instance = there_and_back((lambda x: x * factor, Local()))
    assert function(2) == 6
    assert instance.times(2) == 6


def test_an_unpicklable_value_is_an_error():
    with pytest.raises(TypeError, match="lock"):
        dumps(threading.Lock())


class _Unloadable(Exception):
    def __reduce__(self):
        return _raise, ("no such luck",)


def _raise(text):
    raise RuntimeError(text)


def raised(error, where="A.m"):
    """Returns the error that ``get`` raises on the other side."""
    try:
        raise error
    except BaseException as e:
        head, buffers = dump_exception(e, where)
    value = loads(head, buffers)
    assert isinstance(value, TaskError)
    return value.as_instance_of_cause()


def test_an_exception_with_unpicklable_attributes_keeps_its_class():
    class HoldsLockError(Exception):
        def __init__(self, text):
            super().__init__(text, threading.Lock())
            self.lock = threading.Lock()
            self.kept = 7

    error = raised(HoldsLockError("held"))
    assert isinstance(error, TaskError)
    assert type(error).__mro__[2].__name__ != "object"
    assert any(c.__name__ == "HoldsLockError" for c in type(error).__mro__)
    assert error.kept == 7
    assert "held" in str(error)


def test_an_exception_that_cannot_be_loaded_becomes_text():
    error = raised(_Unloadable("what it said"))
    assert isinstance(error, TaskError)
    assert "what it said" in str(error)


def test_an_exception_of_an_absent_module_becomes_text():
    head, buffers = dump_exception(ValueError("theirs"), "A.m")
    import builtins

    name = "OnlyThereError"
    made = type(name, (Exception,), {"__module__": "builtins"})
    setattr(builtins, name, made)
    try:
        head, buffers = dump_exception(made("theirs"), "A.m")
    finally:
        delattr(builtins, name)
    error = loads(head, buffers)
    assert isinstance(error, TaskError)
    assert error.cause is None
    assert "OnlyThereError: theirs" in str(error)


def test_an_exception_whose_str_raises_is_serialized():
    class RudeError(Exception):
        def __str__(self):
            raise RuntimeError("no")

        __repr__ = __str__

    assert "RudeError" in str(raised(RudeError()))


def test_a_large_array_in_an_exception_is_outside_of_the_pickle():
    error = ValueError("big", np.zeros(100_000))
    assert raised(error).args[1].shape == (100_000,)


def test_heads_are_ordinary_pickles():
    assert pickle.loads(serialize.dumps([1, "a"])[0]) == [1, "a"]


@pytest.mark.parametrize("name", ["_handle _revive_handle", "_ids ActorID", "_refs _fetch", "_remote RemoteFunction", "_serialize _tensor"])
def test_stored_pickles_find_names_that_have_moved(name):
    module, found = name.split()
    value = pickle.loads(f"cshoal.{module}\n{found}\n.".encode())
    assert (value.__module__ != f"shoal.{module}", value.__name__) == (True, found)
