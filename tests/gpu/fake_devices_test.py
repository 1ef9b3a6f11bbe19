"""Python's use of CUDA devices and NCCL, on the strict fakes: ranks are threads, and memory of the process is memory of their devices."""

import ctypes
import os
import pathlib
import threading

import pytest
import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).parent
PLACES = [HERE / "libfake_devices.so", HERE.parents[1] / "bazel-bin/tests/gpu/libfake_devices.so"]
LIBRARY = next((str(place) for place in PLACES if place.exists()), str(PLACES[0]))
os.environ["SHOAL_CUDA_LIBRARY"] = os.environ["SHOAL_NCCL_LIBRARY"] = LIBRARY

import shoal  # noqa: E402
import shoal.collective as sc  # noqa: E402
from shoal import _native  # noqa: E402
from shoal._distributed.communicator import make_communicator  # noqa: E402
from shoal._distributed.devices import Choice, DeviceGroup, choose, offer_of  # noqa: E402
from shoal.exceptions import InvalidArgument, Unimplemented  # noqa: E402
from shoal.optim import SGD, Adam, AdamW, _kernels  # noqa: E402


class DefaultStream:
    def current(self):
        return 0


@pytest.fixture(scope="module")
def fake():
    library = ctypes.CDLL(LIBRARY)
    library.shoal_fake_violations.restype = ctypes.c_char_p
    return library


@pytest.fixture(autouse=True)
def no_violations(fake):
    yield
    assert fake.shoal_fake_violations().decode() == ""


@pytest.fixture(scope="module")
def session():
    shoal.init(num_cpus=2)
    yield
    shoal.shutdown()


def on_ranks(world, program, transport="nccl"):
    """Runs ``program(group, rank)`` in a thread per rank, with a device each; all with device 0 where data travel by copies."""
    store, failures = dist.HashStore(), []

    def run(rank):
        try:
            device = _native.Device(transport=transport, number=rank if transport == "nccl" else 0, kernels=b"fake")
            native = make_communicator(name, tuple(range(world)), rank, True, store=store, timeout=60, device=device)
            program(DeviceGroup(native, DefaultStream()), rank)
            native.leave()
        except BaseException as error:
            failures.append(error)

    on_ranks.count = getattr(on_ranks, "count", 0) + 1
    name = f"ranks-{on_ranks.count}"
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_devices_have_identities_and_missing_ones_are_named():
    offers = [offer_of(number, host=0) for number in (0, 1)]
    assert offers[0].device != offers[1].device
    assert choose(offers) == Choice("nccl")
    assert (offers[0].no_cuda, offers[0].no_nccl, len(set(offers[0].visible))) == ("", "", 8)
    assert "rank 1: there is no device 8" in choose([offers[0], offer_of(8, host=0)]).why


@pytest.mark.parametrize("transport", ["nccl", "cuda_ipc"])
def test_parameters_are_gathered_in_place_and_gradients_added(fake, session, transport):
    def program(group, rank):
        assert group.transport == transport
        device = rank if transport == "nccl" else 0
        own, uneven = torch.full((4,), float(rank)), torch.full((rank,), 7.0)
        whole, whole_uneven = torch.empty(8), torch.empty(1)
        group.all_gather_each([(own, whole, [16, 16]), (uneven, whole_uneven, [0, 4])], "unit").finish()
        fake.shoal_fake_synchronize(device)
        assert whole.tolist() == [0.0] * 4 + [1.0] * 4
        assert whole_uneven.tolist() == [7.0]
        flat, out = torch.arange(6.0) + rank, torch.empty(3)
        group.reduce_scatter(flat, out, "unit").finish()
        group.all_reduce(out, "unit").finish()
        fake.shoal_fake_synchronize(device)
        assert out.tolist() == [8.0, 12.0, 16.0]

    on_ranks(2, program, transport)


def test_ranks_whose_calls_differ_get_an_error_that_names_both(fake, session):
    def program(group, rank):
        t = torch.zeros(4 + rank)
        pending = group.all_reduce(t, "unit")
        with pytest.raises(InvalidArgument, match="all_reduce"):
            pending._work.wait()

    on_ranks(2, program)
    fake.shoal_fake_violations()  # the fake has noticed that the calls differ


@pytest.mark.parametrize("transport", ["nccl", "cuda_ipc"])
def test_collectives_of_tensors_are_ordered_with_the_stream(fake, session, transport):
    def program(devices, rank):
        group = sc.Group(devices.native, torch.device("cpu"), devices.streams)  # the fakes take memory of the CPU
        device = rank if transport == "nccl" else 0
        # The sources live until the end: the host's memory is not freed in the order of a stream, as a device's is.
        own, flat, sent = torch.full((2,), float(rank)), torch.arange(4.0), torch.ones(3)
        gathered = sc.all_gather(own, group=group)
        total = sc.all_reduce(torch.tensor([1.0, 2.0]), group=group)
        work = sc.reduce_scatter(flat, group=group, async_op=True)
        assert group.transport == transport
        piece = work.wait()
        sc.barrier(group=group)
        fake.shoal_fake_synchronize(device)
        assert gathered.tolist() == [0.0, 0.0, 1.0, 1.0]
        assert total.tolist() == [2.0, 4.0]
        assert piece.tolist() == ([0.0, 2.0] if rank == 0 else [4.0, 6.0])
        with pytest.raises(Unimplemented):
            group._native.window(4, ("window", 0, 0.0, False))
        if rank == 0:
            sc.send(sent, 1, group=group)
        else:
            received = sc.recv(torch.empty(3), 0, group=group)
            fake.shoal_fake_synchronize(device)
            assert received.tolist() == [1.0] * 3
        sc.barrier(group=group)
        with pytest.raises(InvalidArgument, match="this group takes tensors on cpu, not on meta"):
            sc.all_reduce(torch.empty(1, device="meta"), group=group)

    on_ranks(2, program, transport)


class FakeKernels:
    """The kernels of a device on the fake, whose update has passed when the call returns."""

    def __init__(self, fake):
        self._fake, self._native = fake, _native.DeviceOptim(0, image=b"fake")
        self.num_updates = 0

    def adam(self, dtypes, rows, **options):
        self._native.adam(dtypes, rows, stream=0, **options)
        self._end()

    def sgd(self, dtypes, rows, **options):
        self._native.sgd(dtypes, rows, stream=0, **options)
        self._end()

    def _end(self):
        self._fake.shoal_fake_synchronize(0)
        self.num_updates += 1


@pytest.fixture
def same_bits_on_a_device(fake, monkeypatch):
    """Returns a function that compares three steps of ``make(parameters)`` on the fake device with those on the CPU."""
    if "fma" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no fused multiply-add, and rounds twice")

    def train(make, dtype, grad_scale):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(size).to(dtype)) for size in (70, 1, 300)]
        optimizer = make(parameters)
        if grad_scale is not None:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(grad_scale), torch.tensor(0.0)
        for step in range(3):
            for p in parameters[: 2 + (step > 0)]:  # the third is one step behind
                p.grad = torch.randn_like(p)
            optimizer.step()
        return [t for p in parameters for t in (p.detach(), p.grad)], optimizer.state_dict()["state"]

    def compare(make, dtype, grad_scale=None):
        expected, expected_state = train(make, dtype, grad_scale)
        kernels = FakeKernels(fake)
        monkeypatch.setattr(_kernels, "kernels_on", lambda device: kernels)
        got, state = train(make, dtype, grad_scale)
        assert kernels.num_updates >= 3
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)
        assert state.keys() == expected_state.keys()
        for index, of_one in expected_state.items():
            assert state[index].keys() == of_one.keys()
            for key, value in of_one.items():
                assert torch.equal(state[index][key], value), key

    return compare


@pytest.mark.parametrize("make", [Adam, AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adam_on_a_device_has_the_bits_of_the_cpu(same_bits_on_a_device, make, dtype):
    same_bits_on_a_device(lambda parameters: make(parameters, lr=0.01, amsgrad=True, weight_decay=0.1), dtype)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "maximize": True},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "master_weights": False},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sgd_on_a_device_has_the_bits_of_the_cpu(same_bits_on_a_device, options, dtype):
    same_bits_on_a_device(lambda parameters: SGD(parameters, lr=0.1, **options), dtype)


@pytest.mark.parametrize("make", [AdamW, SGD])
def test_gradients_on_a_device_are_unscaled_as_on_the_cpu(same_bits_on_a_device, make):
    same_bits_on_a_device(make, torch.float16, grad_scale=96.0)
