"""Collectives over tensors between processes of real ranks: results in every shape, and errors that name the mistake."""

import os
import signal
import threading
import time

import pytest
import torch
from launching.commands import LIMIT_S
from launching.ranks import fresh_ranks

import shoal
from shoal.exceptions import Cancelled, InvalidArgument, Unavailable, Unimplemented
from shoal.train import ScalingConfig, Trainer

WORLD = 3
REDUCED = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


def run(function, world=WORLD, **config):
    """``config["transport"]``: "shm", or that of ranks which act as if each were on a host of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_TRANSPORT", config.get("transport", "shm").replace("shm", ""))
        return Trainer(function, train_loop_config=config, scaling_config=ScalingConfig(num_workers=world)).fit().returns


def values(rank, *shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(rank)
    return torch.randint(1, 5, shape, generator=g).to(dtype)


def every_collective(config):
    import torch.distributed as dist

    import shoal.collective as sc

    rank, world = dist.get_rank(), dist.get_world_size()
    if config["transport"] != "shm":
        os.environ["SHOAL_HOST"] = str(rank)
    out = {}
    for dtype in REDUCED:
        for op in ("sum", "min", "max", "product", "avg"):
            mine = values(rank, 700, 3, dtype=getattr(torch, dtype))
            assert sc.all_reduce(mine, op) is mine
            out[dtype, op] = mine
    out["bool"] = sc.all_reduce(torch.tensor([rank == 1, False, True]), "max").tolist()
    sizes = [5 * r for r in range(world)]
    out["gathered"] = sc.all_gather(values(rank, sizes[rank], 2), sizes=sizes)
    out["complex"] = sc.all_gather(torch.full((1, 2), complex(rank, 1)))
    out["scattered"] = sc.reduce_scatter(values(rank, 10, 7), dist.ReduceOp.SUM)
    strided = torch.zeros(4, 6)[:, ::2]
    version = strided._version
    out["broadcast"] = sc.broadcast(strided.add_(rank), src=1)
    assert strided._version > version + 1  # autograd notices that broadcast wrote to the tensor
    sends = [(rank + r) % 3 for r in range(world)]
    receives = [(r + rank) % 3 for r in range(world)]
    out["exchanged"] = sc.all_to_all(
        torch.cat([torch.full((n, 2), 10.0 * rank + r) for r, n in enumerate(sends)]), send_sizes=sends, receive_sizes=receives
    )
    got = torch.empty(100_000)
    sent = sc.send(torch.full((100_000,), float(rank)), (rank + 1) % world, tag=4, async_op=True)
    sc.recv(got, (rank - 1) % world, tag=4)
    sent.wait()
    out["received"] = got[[0, -1]].tolist()
    if config["transport"] == "shm":
        window = sc.window((rank + 1, 2))
        window.tensor.fill_(rank)
        sc.barrier()
        into = torch.empty(2)
        version = into._version
        out["read"] = sc.read(window, (rank + 1) % world, into).tolist()
        assert into._version > version
        sc.barrier()
    works = [sc.all_reduce(torch.full((50_000,), float(i + rank)), async_op=True) for i in range(8)]
    out["async"] = [w.wait()[-1].item() for w in reversed(works)]
    assert all(w.is_completed() for w in works)
    half = dist.new_group([0, 2])
    out["half"] = sc.all_reduce(torch.tensor([rank]), group=half).item() if rank != 1 else None
    out["transport"] = sc.group().transport
    return out


@pytest.mark.parametrize("transport", ["shm", "tcp", "gloo"])
def test_every_collective_equals_torchs_on_every_rank(transport):
    returns = run(every_collective, transport=transport)
    for dtype in REDUCED:
        inputs = torch.stack([values(r, 700, 3, dtype=getattr(torch, dtype)) for r in range(WORLD)])
        wide = inputs.to(torch.float64)
        expected = {
            "sum": wide.sum(0),
            "min": wide.amin(0),
            "max": wide.amax(0),
            "product": wide.prod(0),
            "avg": wide.mean(0) if inputs.is_floating_point() else wide.sum(0).div(WORLD, rounding_mode="trunc"),
        }
        for out in returns:
            for op, e in expected.items():
                half = 1e-2 if dtype in ("float16", "bfloat16") else None
                torch.testing.assert_close(out[dtype, op], e.to(inputs.dtype), rtol=half, atol=half)
    total = torch.stack([values(r, 10, 7) for r in range(WORLD)]).sum(0)
    for rank, out in enumerate(returns):
        assert out["bool"] == [True, False, True]
        assert torch.equal(out["gathered"], torch.cat([values(r, 5 * r, 2) for r in range(WORLD)]))
        assert out["complex"].tolist() == [[complex(r, 1)] * 2 for r in range(WORLD)]
        assert torch.equal(out["scattered"], total.chunk(WORLD)[rank])
        assert torch.equal(out["broadcast"], torch.ones(4, 3))
        exchanged = [10.0 * r + rank for r in range(WORLD) for _ in range((r + rank) % 3)]
        assert out["exchanged"][:, 0].tolist() == exchanged
        assert out["received"] == [float((rank - 1) % WORLD)] * 2
        if transport == "shm":
            assert out["read"] == [float((rank + 1) % WORLD)] * 2
        assert out["async"] == [3.0 * i + 3 for i in reversed(range(8))]
        assert out["half"] == (None if rank == 1 else 2)
        assert out["transport"] == transport


def caught(config):
    """The text of the error that a mistake raises on this rank, and True if it came within 5 s after the last common call."""
    import torch.distributed as dist

    import shoal.collective as sc

    transport = config.get("transport", "shm")
    if transport != "shm":
        os.environ["SHOAL_HOST"] = str(dist.get_rank())
    sc.barrier()
    assert sc.group().transport == transport
    began = time.monotonic()
    try:
        MISTAKES[config["mistake"]](sc, dist.get_rank())
        sc.barrier(label="after")
        return "no error", True
    except (InvalidArgument, Unavailable, Cancelled) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began < 5


def _other_order(sc, rank):
    for name in ("a", "b") if rank == 0 else ("b", "a"):
        sc.all_reduce(torch.ones(3 if name == "a" else 4), label=name, step=7)


def _other_dtype(sc, rank):
    sc.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 2 else torch.float32), label="norm")


def _mutual(sc, rank):
    if rank == 0:
        sc.recv(torch.empty(1), 1, label="token", step=2)
    sc.barrier(label="end", step=3)


def _leaves(sc, rank):
    if rank == 2:
        sc.group().leave()
        time.sleep(2)
        return
    sc.all_reduce(torch.ones(1), label="last", step=9)


def _aborts(sc, rank):
    if rank == 1:
        sc.group().abort("enough")
    sc.barrier()
    sc.barrier()


MISTAKES = {f.__name__[1:]: f for f in (_other_order, _other_dtype, _mutual, _leaves, _aborts)}


@pytest.mark.parametrize(
    ("mistake", "texts"),
    [
        ("other_order", ["InvalidArgument", "differ", "sum of 12 bytes of float32) 'a', step 7", "16 bytes of float32) 'b', step 7"]),
        ("other_dtype", ["InvalidArgument", "rank 2", "float64", "'norm'"]),
        ("mutual", ["InvalidArgument", "wait for each other", "rank 0 waits for rank 1 in recv", "'token', step 2", "'end', step 3"]),
        ("leaves", ["ActorDied", "rank 2 has left", "'last', step 9", "look at the output of rank 2"]),
        ("aborts", ["Cancelled", "enough"]),
    ],
)
def test_every_rank_gets_an_error_that_names_the_mistake(mistake, texts):
    for rank, (said, soon) in enumerate(run(caught, mistake=mistake)):
        if mistake == "leaves" and rank == 2:
            continue
        assert soon
        for text in texts:
            assert text in said


@pytest.mark.parametrize(
    ("transport", "mistake", "texts"),
    [
        ("gloo", "other_order", ["InvalidArgument", "differ", "(36 bytes) 'a', step 7", "(48 bytes) 'b', step 7"]),
        (
            "tcp",
            "other_order",
            ["InvalidArgument", "differ", "sum of 12 bytes of float32) 'a', step 7", "16 bytes of float32) 'b', step 7"],
        ),
        (
            "gloo",
            "mutual",
            ["InvalidArgument", "wait in different calls", "rank 0 waits in recv from rank 1", "'token', step 2", "'end', step 3"],
        ),
        ("gloo", "leaves", ["ActorDied", "rank 2 has left", "'last', step 9", "look at the output of rank 2"]),
        ("tcp", "leaves", ["ActorDied", "rank 2 has left", "'last', step 9", "look at the output of rank 2"]),
        ("gloo", "aborts", ["Cancelled", "enough"]),
        ("tcp", "aborts", ["Cancelled", "enough"]),
    ],
)
def test_ranks_on_several_hosts_get_the_same_errors(transport, mistake, texts):
    for rank, (said, soon) in enumerate(run(caught, mistake=mistake, transport=transport)):
        if mistake == "leaves" and rank == 2:
            continue
        assert soon, said
        for text in texts:
            assert text in said


SURVIVES = """
import os, signal
import torch, torch.distributed as dist
import shoal.collective as sc
from shoal.exceptions import ActorDiedError

rank = int(os.environ["RANK"])
sc.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    sc.barrier()
except ActorDiedError as error:
    said = str(error)
group = sc.group().reform()
summed = sc.all_reduce(torch.tensor([float(rank)]), group=group).item()
print(group.generation, group.world_size, group.rank, summed, "rank 1 is gone" in said, flush=True)
sc.barrier(group=group)  # rank 0 has the store, and is the last to end
os._exit(0)
"""


def test_remaining_ranks_go_on_in_a_new_generation(module_home):
    """Runs without a launcher, which would end all ranks."""
    ranks = fresh_ranks(["-c", SURVIVES], WORLD)
    assert [r.returncode for r in ranks] == [0, -signal.SIGKILL, 0], ranks
    assert [r.stdout.strip() for r in ranks] == ["2 2 0 2.0 True", "", "2 2 1 2.0 True"]


def refused(config):
    from torch.testing._internal.two_tensor import TwoTensor

    import shoal.collective as sc

    out = []
    for call in (
        lambda: sc.all_reduce(torch.ones(1, dtype=torch.int16)),
        lambda: sc.all_reduce(torch.ones(1, device="meta")),
        lambda: sc.all_reduce(TwoTensor(torch.ones(1), torch.ones(1))),
        lambda: sc.all_to_all(torch.ones(4)),
        lambda: sc.all_gather(torch.ones(2), torch.empty(5)),
        lambda: sc.broadcast(torch.ones(1), src=3),
        lambda: sc.all_reduce(torch.ones(1), "bxor"),
        lambda: sc.group("world"),
    ):
        try:
            call()
            out.append("")
        except (InvalidArgument, Unimplemented) as error:
            out.append(str(error))
    sc.barrier()  # works, because the refused calls had no effect on the group
    return out


def test_unsupported_arguments_are_refused_by_name():
    texts = ["int16", "meta", "TwoTensor", "4 rows", "[5]", "rank 3", "bxor", "str"]
    for said in run(refused):
        assert all(t in s for t, s in zip(texts, said, strict=True)), said


class Meeting:
    """A store in which rank 1 answers each exchange, and dies before it connects."""

    def __init__(self):
        self.keys = {}

    def set(self, key, value):
        self.keys[key] = self.keys[key.removesuffix("0") + "1"] = value

    def get(self, key):
        return self.keys[key]

    def check(self, keys):
        if all(key in self.keys for key in keys):
            return True
        raise Unavailable("rank 1 was killed", reason="ActorDied")


def test_a_rank_that_connects_gives_up_on_the_word_of_a_death():
    from internals.distributed import make_communicator

    with pytest.raises(Unavailable, match="rank 1 was killed"):
        make_communicator("doomed", (0, 1), 0, False, store=Meeting())


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_leaves_its_group_at_once_fails_no_slower_one(monkeypatch, transport):
    """Rank 1 goes on when rank 0 waits for it, or has left and ended the store."""
    from internals.distributed import communicator

    make, waits_or_left, left, store = communicator.make_communicator, threading.Event(), threading.Event(), torch.distributed.HashStore()

    def be_slow():
        assert waits_or_left.wait(LIMIT_S)
        if left.is_set():
            raise torch.distributed.DistNetworkError("rank 0 and the store have ended")

    class Watched:
        def __init__(self, native):
            self.transport, self.leave, self._native = native.transport, native.leave, native

        def barrier(self, call):
            waits_or_left.set()
            return self._native.barrier(call)

    class SlowlyRead:
        """The store, for rank 1."""

        set, get, wait = store.set, store.get, store.wait

        def check(self, keys):
            if "/made/" in keys[0]:
                be_slow()
            return store.check(keys)

    def make_slowly(name, ranks, rank, *words, **more):
        native = make(name, ranks, rank, *words, **more)
        if rank == 1 and transport == "tcp":  # it has connected, which rank 0 waits for
            be_slow()
        return native if rank == 1 else Watched(native)

    def form(rank, store):
        communicator.form_communicator("left", (0, 1), rank, transport == "shm", store=store).leave()

    def rank_0():
        try:
            form(0, store)
        finally:
            left.set()
            waits_or_left.set()

    monkeypatch.setattr(communicator, "make_communicator", make_slowly)
    thread = threading.Thread(target=rank_0)
    thread.start()
    try:
        form(1, SlowlyRead())
    finally:
        thread.join()


def making_other_groups(config):
    import torch.distributed as dist
    from internals.distributed import _generations

    events, rank, destroy, sums = dist.FileStore(config["events"], 2), dist.get_rank(), dist.destroy_process_group, []
    if rank == 0:  # it leaves its first group when rank 1 forms the second one
        dist.destroy_process_group = lambda: (events.wait(["rank 1 forms a group"]), destroy())
    else:
        attach = _generations.attach
        _generations.attach = lambda *words: (events.set("rank 1 forms a group", ""), attach(*words))[1]
    for backend in ("shoal", "gloo", "shoal", "gloo"):
        if sums:
            destroy()
        dist.init_process_group(backend)
        dist.all_reduce(x := torch.ones(1))
        sums.append(x.item())
    if rank == 0:  # its loop ends before rank 1 forms a group of its own
        dist.destroy_process_group = lambda: (destroy(), events.set("rank 0 has left", ""))
    else:
        events.wait(["rank 0 has left"])
        dist.all_reduce(x := torch.ones(1), group=dist.new_group([1], backend="shoal", use_local_synchronization=True))
        sums.append(x.item())
    return sums


def test_a_training_makes_other_groups_however_slow_a_rank_is(tmp_path):
    assert run(making_other_groups, 2, events=str(tmp_path / "events")) == [[2.0] * 4, [2.0] * 4 + [1.0]]
