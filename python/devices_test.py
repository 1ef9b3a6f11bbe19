"""The choice of a transport between devices, and the order in which a group's operations and the streams wait for each other."""

from dataclasses import replace

import pytest
import torch

from shoal._distributed.devices import Choice, DeviceGroup, Offer, choose
from shoal.exceptions import InvalidArgument, Unavailable
from shoal.fsdp._devices import groups as _groups
from shoal.fsdp._devices.ahead import Ahead
from shoal.fsdp._devices.groups import DeviceGroups


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


class StubUnit:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def begin(self):
        self.log.append(f"begin {self.name}")
        return True

    def drop_begun(self):
        self.log.append(f"drop {self.name}")


def version(ahead, log, units):
    for unit in units:
        log.append(f"use {unit.name}")
        ahead.used(unit)
    ahead.version_ends()
    taken = list(log)
    log.clear()
    return taken


def test_a_gather_begins_with_the_use_of_the_unit_before_it_from_the_second_time_on():
    log = []
    a, b, c = (StubUnit(name, log) for name in "abc")
    ahead = Ahead(depth=1)
    assert version(ahead, log, [a, b, c, b]) == ["use a", "use b", "use c", "use b"]
    assert version(ahead, log, [a, b, c, b]) == ["use a", "begin b", "use b", "begin c", "use c", "begin b", "use b"]


def test_a_gather_that_no_unit_used_is_dropped_before_the_parameters_change():
    log = []
    a, b, c = (StubUnit(name, log) for name in "abc")
    ahead = Ahead(depth=2)
    version(ahead, log, [a, b, c])
    assert version(ahead, log, [a]) == ["use a", "begin b", "begin c", "drop b", "drop c"]
    assert version(ahead, log, [b, c]) == ["use b", "use c"]  # another program than the last one
    assert version(ahead, log, [b, c]) == ["use b", "begin c", "use c"]


def test_evaluation_after_training_begins_ahead_and_keeps_no_record_of_each_batch():
    log = []
    a, b, c = (StubUnit(name, log) for name in "abc")
    ahead = Ahead(depth=1)
    version(ahead, log, [a, b, c, b, a])
    taken = version(ahead, log, [a, b, c] * 100)  # batches of an evaluation, within one version
    assert taken[:5] == ["use a", "begin b", "use b", "begin c", "use c"]
    assert taken[-7:] == ["use a", "begin b", "use b", "begin c", "use c", "begin a", "drop a"]
    assert len(ahead._next) <= 9


class StubPending:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def finish(self):
        self.log.append(f"order after {self.name}")
        if self.name == "broken":
            raise Unavailable("a rank has died")


def test_a_reduction_ends_once_the_next_one_has_begun():
    log = []
    ahead = Ahead(depth=1)
    for name in ("a", "b"):
        log.append(f"begin {name}")
        ahead.reduces(StubPending(name, log), lambda name=name: log.append(f"take {name}"))
    assert log == ["begin a", "begin b", "order after a", "take a"]
    ahead.finish_reductions()
    assert log[4:] == ["order after b", "take b"]


def test_after_an_exception_the_stream_is_behind_each_reduction_and_none_is_taken():
    log = []
    ahead = Ahead(depth=1)
    ahead.reduces(StubPending("broken", log), lambda: log.append("take"))
    ahead.forget_reductions()
    assert log == ["order after broken"]
