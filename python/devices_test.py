"""The choice of a transport between devices, and the order in which a group's operations and the streams wait for each other."""

import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from shoal._distributed.devices import Choice, DeviceGroup, Offer, choose
from shoal.exceptions import InvalidArgument, Unavailable
from shoal.fsdp._devices import groups as _groups
from shoal.fsdp._devices import streams as _streams
from shoal.fsdp._devices.collectives import Collectives
from shoal.fsdp._devices.groups import DeviceGroups
from shoal.fsdp._devices.reduction import Reduction
from shoal.fsdp._devices.streams import DeviceStreams, Transfers
from shoal.fsdp._devices.timeline import HostStamps, Timeline


def offers(*devices, **fields):
    return [Offer(host=0, device=device, **fields) for device in devices]


def test_ranks_with_a_device_each_use_nccl():
    assert choose(offers("a", "b")) == Choice("nccl")
    assert choose(offers("a", "b", requested="nccl")) == Choice("nccl")


def test_the_variable_chooses_the_process_group():
    assert choose(offers("a", "b", requested="process_group")).transport == "process_group"


def test_meshes_have_the_process_group_unless_the_variable_names_another_transport(monkeypatch):
    asked = []
    monkeypatch.setattr(_groups, "open_group", lambda *_, default: asked.append(default))
    DeviceGroups().opens((0, 1), 0, torch.device("cuda"))
    assert asked == ["process_group"]
    assert choose(offers("a", "b"), default="process_group").transport == "process_group"
    assert choose(offers("a", "b", requested="nccl"), default="process_group") == Choice("nccl")


def test_ranks_that_ask_for_different_transports_get_an_error():
    with pytest.raises(InvalidArgument, match=r"rank 0 has SHOAL_DEVICE_TRANSPORT=nccl, and rank 1 \(none\)"):
        choose([Offer(0, "a", requested="nccl"), Offer(0, "b")])


def test_one_rank_without_nccl_moves_all_to_the_process_group():
    mixed = [Offer(0, "a"), Offer(1, "b", no_nccl="NCCL could not be loaded")]
    assert choose(mixed).transport == "process_group"
    assert choose(mixed).why.startswith("rank 1: NCCL could not be loaded")
    with pytest.raises(Unavailable, match="SHOAL_DEVICE_TRANSPORT=nccl cannot be used: rank 1: NCCL could not be loaded"):
        choose([replace(offer, requested="nccl") for offer in mixed])


def test_a_rank_without_a_device_names_what_is_missing():
    assert choose([Offer(0, "a"), Offer(0, "", no_cuda="no driver")]) == Choice("process_group", "rank 1: no driver")


def test_ranks_that_share_a_device_copy_between_their_processes():
    assert choose(offers("a", "b", "a", visible=["a", "b"])) == Choice("cuda_ipc")
    with pytest.raises(Unavailable, match="ranks 0 and 2 have one device, which NCCL refuses"):
        choose(offers("a", "b", "a", requested="nccl"))


def test_copies_between_processes_need_one_host_kernels_and_few_ranks():
    assert choose([Offer(0, "a"), Offer(1, "a")]) == Choice(
        "process_group", "ranks 0 and 1 have one device, which NCCL refuses; copies between processes need all ranks on one host"
    )
    assert "rank 0: no nvcc" in choose(offers("a", "a", no_kernels="no nvcc")).why
    assert "at most 16 ranks" in choose(offers(*["a"] * 17)).why
    assert choose(offers("a", "b", visible=["a", "b"], requested="cuda_ipc")) == Choice("cuda_ipc")
    with pytest.raises(Unavailable, match="rank 0 does not see the device of rank 1"):
        choose(offers("a", "b", requested="cuda_ipc"))


def test_an_unknown_transport_is_refused_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="SHOAL_DEVICE_TRANSPORT=gloo"):
        choose(offers("a", requested="gloo"))


class Recorder:
    """A communicator and the streams of a device, which record calls."""

    transport, world_size = "recorder", 2

    def __init__(self):
        self.calls = []
        self.stream = 7

    def current(self):
        return self.stream

    def ready_on(self, stream):
        self.calls.append(("ready_on", stream))

    def all_gather_each(self, gathers, dtype, call):
        self.calls.append(("all_gather_each", [(g.input, g.output, g.counts) for g in gathers], dtype))
        return "gather"

    def reduce_scatter(self, source, out, counts, dtype, op, call):
        self.calls.append(("reduce_scatter", counts, dtype, op))
        return "scatter"

    def all_reduce(self, source, out, dtype, op, call):
        self.calls.append(("all_reduce", source == out, dtype, op))
        return "reduce"

    def order_after(self, work, stream):
        self.calls.append(("order_after", work, stream))


def test_an_operation_waits_for_the_stream_of_its_call_and_the_stream_of_its_end_waits_for_it():
    recorder = Recorder()
    group = DeviceGroup(recorder, recorder)
    own, whole = torch.zeros(3), torch.zeros(2, 3)
    pending = group.all_gather_each([(own, whole, [12, 12])], "unit")
    recorder.stream = 9  # the unit is used on another stream than the one that started the gather
    pending.finish()
    assert recorder.calls == [
        ("ready_on", 7),
        ("all_gather_each", [((own.data_ptr(), 12), (whole.data_ptr(), 24), [12, 12])], "uint8"),
        ("order_after", "gather", 9),
    ]


def test_gradients_are_added_in_their_dtype_in_equal_pieces():
    recorder = Recorder()
    group = DeviceGroup(recorder, recorder)
    flat, out = torch.zeros(6, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)
    group.reduce_scatter(flat, out, "unit").finish()
    group.all_reduce(out, "unit").finish()
    assert recorder.calls == [
        ("ready_on", 7),
        ("reduce_scatter", [6, 6], "bfloat16", "sum"),
        ("order_after", "scatter", 7),
        ("ready_on", 7),
        ("all_reduce", True, "bfloat16", "sum"),
        ("order_after", "reduce", 7),
    ]


class RecordingStreams:
    """Streams that record which of them waits for which mark."""

    asynchronous = False

    def __init__(self):
        self.log, self.present, self.marks = [], ["present"], 0
        names = ("pack", "gather", "reduce", "replicas", "copies")
        self.pack, self.gather, self.reduce, self.replicas, self.copies = (Entered(self, name) for name in names)
        self.timeline = Timeline(HostStamps())

    def mark(self):
        self.marks += 1
        return RecordedMark(self, f"{self.present[-1]} {self.marks}")

    def of_event(self, event):
        return RecordedMark(self, event)

    def synchronize(self, mark):
        self.log.append(f"host: {mark.name}")


class Entered:
    def __init__(self, streams, name):
        self.streams, self.name = streams, name

    def __enter__(self):
        self.streams.present.append(self.name)

    def __exit__(self, *error):
        self.streams.present.pop()


class RecordedMark:
    def __init__(self, streams, name):
        self.streams, self.name = streams, name

    def wait(self):
        self.streams.log.append(f"{self.streams.present[-1]}: {self.name}")


def in_backward(run):
    t = torch.ones((), requires_grad=True)
    t.register_hook(lambda grad: run())
    (t * 2).backward()


def test_a_forward_keeps_the_buffer_of_its_last_gather_until_the_next_one_is_unpacked():
    streams = RecordingStreams()
    transfers = Transfers(streams)
    first, second = torch.zeros(4), torch.zeros(4)
    kept = weakref.ref(first)
    transfers.unpacked(first)
    del first
    assert streams.log == []
    assert kept() is not None
    transfers.unpacked(second)
    # The streams that use the memory next wait until the present stream has read it.
    assert streams.log == ["pack: present 1", "gather: present 1"]
    assert kept() is None


def test_the_end_of_a_forward_frees_the_buffer_of_its_last_gather():
    streams = RecordingStreams()
    transfers = Transfers(streams)
    buffer = torch.zeros(4)
    kept = weakref.ref(buffer)
    transfers.unpacked(buffer)
    del buffer
    transfers.end_forward()
    assert streams.log == ["pack: present 1", "gather: present 1"]
    assert kept() is None
    transfers.end_forward()
    assert len(streams.log) == 2


def test_a_backward_frees_the_buffer_of_a_gather_at_once():
    streams = RecordingStreams()
    transfers = Transfers(streams)
    in_backward(lambda: transfers.unpacked(torch.zeros(4)))
    assert streams.log == ["pack: present 1", "gather: present 1"]


def test_gathers_see_rows_as_the_present_stream_leaves_them_or_as_the_programs_event_says():
    streams = RecordingStreams()
    transfers = Transfers(streams)
    transfers.order_rows()
    with streams.pack:
        transfers.rows.wait()
    transfers.order_rows("an event")
    with streams.pack:
        transfers.rows.wait()
    assert streams.log == ["pack: present 1", "pack: an event"]


def test_a_copy_to_the_host_lies_beside_the_next_reduction_and_its_source_is_freed_by_the_one_after(monkeypatch):
    monkeypatch.setattr(_streams, "pinned_like", torch.empty_like)
    streams = RecordingStreams()
    transfers = Transfers(streams)
    gradient = torch.ones(4)
    kept = weakref.ref(gradient)
    with streams.replicas:
        copied = transfers.to_host(gradient, True, (streams.replicas, streams.reduce))
    del gradient
    assert copied.tolist() == [1] * 4
    assert streams.log == ["copies: replicas 1"]
    assert kept() is not None
    transfers.free_copied()
    assert streams.log[1:] == ["replicas: copies 2", "reduce: copies 2"]
    assert kept() is None
    transfers.finish()
    assert streams.log[3:] == ["host: copies 2"]


def test_the_host_adds_a_gradient_only_when_earlier_ones_have_arrived(monkeypatch):
    monkeypatch.setattr(_streams, "pinned_like", torch.empty_like)
    streams = RecordingStreams()
    transfers = Transfers(streams)
    first = transfers.to_host(torch.ones(4), True, ())
    first.add_(transfers.to_host(torch.ones(4), False, ()))  # a unit's second reduction in one pass
    assert streams.log == ["copies: present 1", "host: copies 2"]


def test_the_host_waits_for_a_device_as_its_current_one():
    order, device = [], torch.device("cuda", 1)
    streams = DeviceStreams.__new__(DeviceStreams)
    streams._device, streams._handle = device, SimpleNamespace(device=lambda of: Guard(order, of))
    streams.synchronize(SimpleNamespace(synchronize=lambda: order.append("synchronize")))
    assert order == [device, "synchronize", "end"]


class Guard:
    def __init__(self, order, device):
        self.order, self.device = order, device

    def __enter__(self):
        self.order.append(self.device)

    def __exit__(self, *error):
        self.order.append("end")


def test_the_end_of_a_pass_waits_once_for_each_accumulation():
    streams = RecordingStreams()
    transfers = Transfers(streams)
    for stream in (streams.reduce, streams.replicas):
        with stream:
            transfers.accumulated()
    transfers.finish()
    transfers.finish()
    assert streams.log == ["present: reduce 1", "present: replicas 2"]


class EqualRanks(Collectives):
    """Collectives among ranks that all have this one's tensors. Those of NCCL can divide."""

    def __init__(self, divides):
        super().__init__("unit")
        self.divides = divides

    def averages(self, data, streams):
        return self.divides

    def reduce(self, data, streams, out, packed, average=False):
        out.copy_(packed.view(data.shards, -1)[data.shard] * (1 if average else data.shards))
        return streams.mark()

    def reduce_replicas(self, data, streams, t, average=False):
        t *= 1 if average else data.replicas
        return streams.mark()


class ReducedParameter:
    """A parameter of 4 elements on two shards' ranks, with a sum over shards that an earlier pass has kept."""

    padded_shape, own_shape, dim, dtype, home = torch.Size([2]), torch.Size([2]), 0, torch.float32, torch.device("cpu")

    def __init__(self, partial):
        self.gradient, self.partial, self.grad = self, partial, None

    def take_partial(self):
        partial, self.partial = self.partial, None
        return partial

    def add(self, grad):
        self.grad = grad

    def dtensor(self, local):
        return local


@pytest.mark.parametrize("scale", [1 / 4, 1 / 3])
@pytest.mark.parametrize("divides", [False, True])
def test_gradients_are_divided_once_whether_or_not_the_collectives_divide(divides, scale):
    data = SimpleNamespace(shards=2, shard=1, replicas=2, ranks=(0, 1, 2, 3), device=torch.device("cpu"))
    hooks = {"all_reduce_hook": None, "all_reduce_hook_stream": None}
    target = SimpleNamespace(data=data, scale=scale, leaves=None, accumulated=lambda p: None, **hooks)
    for partial in (None, torch.tensor([2.0, 4.0])):
        p = ReducedParameter(partial)
        collectives = EqualRanks(divides)
        reduction = Reduction(Transfers(RecordingStreams()), collectives, target, [(p, torch.arange(4.0))], torch.float32, everywhere=True)
        reduction.reduce_replicas()
        reduction.finish()
        # The sum of four equal ranks; the kept sum is one over the two ranks of a replica.
        expected = torch.tensor([2.0, 3.0]) * 4 + (0 if partial is None else 2 * torch.tensor([2.0, 4.0]))
        torch.testing.assert_close(p.grad, expected * scale)


def test_nccls_process_groups_divide_and_others_do_not():
    def group(name):
        return SimpleNamespace(_get_backend=lambda device: SimpleNamespace(name=lambda: name))

    def averages(name, replicas=None, **fields):
        mesh = SimpleNamespace(device_type="cpu", get_group=lambda dim: group(replicas))
        count = 1 if replicas is None else 2
        data = SimpleNamespace(shards=2, shard_dim=1, shard_group=group(name), replicas=count, replicate_dim=0, mesh=mesh, device="cuda")
        collectives = Collectives("unit")
        for field, value in fields.items():
            setattr(collectives, field, value)
        return collectives.averages(data, RecordingStreams())

    assert averages("nccl")
    assert not averages("gloo")
    assert averages("gloo", reduce_group=group("nccl"))
    assert averages("nccl", replicas="nccl")
    assert not averages("nccl", replicas="gloo")
    assert not averages("nccl", reduce_scatter=object())
