"""Models under SpmdFullyShardedDataParallel with one process per device, beside the same models in plain torch.

Argument: a folder, in which each rank writes two results by case. The first is the largest difference of losses, gradients and parameters.
The second is the reason why the outermost unit ran operator by operator (null: it ran on its own rows of the batch).
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import traceback
from pathlib import Path
from types import MethodType

import torch
from torch import nn
from units_models import (
    DEVICE,
    KEPT,
    MESH,
    Again,
    Below,
    Center,
    Counting,
    Hooked,
    Keeping,
    N,
    Net,
    NetAgain,
    Noisy,
    Normalised,
    Posted,
    Remembering,
    Scaled,
    Telling,
    both_asked,
    centred,
    differentiable_input,
    double,
    freeze,
    hooked,
    later,
    loss_of,
    many,
    marked,
    opened,
    plain_descent,
    reason_of,
    rows,
    train,
    twice,
    whole,
    with_penalty,
    with_scale,
    wrapped,
)

import shoal.spmd as xs
import shoal.spmd.runtime as xr
from shoal.exceptions import Unimplemented
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2
from shoal.spmd.fsdp import checkpoint_module
from shoal.spmd.parallel_loader import MpDeviceLoader


def saving():
    """After training, a state dict loads into the parameters' memory, and training goes on."""
    torch.manual_seed(3)
    plain = Net()
    ours = wrapped(copy.deepcopy(plain))
    saved = {n: v.detach().cpu().clone() for n, v in ours.state_dict().items()}
    want = train(plain, lambda x: x)
    train(ours, marked)
    with torch.no_grad():
        ours(marked(rows(0)))
    ours.load_state_dict({n: v.to(DEVICE) for n, v in saved.items()})
    got = train(ours, marked)
    for p in ours.parameters():
        p.data.mul_(0.5)
    halves = [p.detach().cpu().flatten() for p in ours.parameters()]
    want += [p.detach().flatten() / 2 for p in plain.parameters()]
    return max(float((a - b).abs().max()) for a, b in zip([*got, *halves], want, strict=True)), reason_of(ours)


def built_before():
    """The optimizer was built before the parameters were wrapped, and still updates them."""
    torch.manual_seed(3)
    plain = Net()
    ours = copy.deepcopy(plain).to(DEVICE)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (plain, ours)]
    ours = wrapped(ours)
    results = [
        train(m, put, optimizer=lambda _, o=o: o) for m, put, o in zip((plain, ours), (lambda x: x, marked), optimizers, strict=True)
    ]
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True)), reason_of(ours)


def assigned():
    """The program assigns parameters, and loads others by shards after an evaluation. The engine uses the new values."""
    torch.manual_seed(3)
    plain = Net()
    ours = wrapped(copy.deepcopy(plain))
    for p in (*plain.parameters(), *ours.parameters()):
        p.data = p.data * 0.5
    with torch.no_grad():
        ours(marked(rows(0)))
        for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
            p.mul_(1.5)
            sharded = xs.XLAShardedTensor(q)
            shards = sharded.local_shards
            for shard in shards:
                shard.data.mul_(1.5)
            sharded.load_local_shards_(shards)
    results = train(plain, lambda x: x), train(ours, marked)
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True)), reason_of(ours)


def twice_differentiated():
    """A penalty on the gradient of the input. The engine refuses it. Operator by operator, the result equals plain torch's."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
    engine, operators = (copy.deepcopy(plain).to(DEVICE) for _ in range(2))
    xs.mark_sharding(operators[0].bias, MESH, (None,))
    found = []
    for model in (plain, FSDPv2(operators, MESH), FSDPv2(engine, MESH)):
        x = (rows(0) if model is plain else marked(rows(0))).requires_grad_()
        y = model(x)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with contextlib.suppress(Unimplemented):
            (y.mean() + g.square().sum()).backward()
        found.append([p.grad.detach().cpu().clone() for p in model.parameters() if p.grad is not None])
    assert len(found[2]) < len(found[0]), "the engine differentiates again"
    return max(float((a - b).abs().max()) for a, b in zip(*found[:2], strict=True)), reason_of(model)


def loaded():
    """A loader's thread draws random numbers while the unit inspects its module."""
    torch.manual_seed(3)
    plain = Net()
    ours = wrapped(copy.deepcopy(plain))

    def batches():
        for s in range(4):
            for _ in range(5000):
                torch.rand(10)
            yield rows(s)

    loader = MpDeviceLoader(batches(), DEVICE, input_sharding=xs.ShardingSpec(MESH, ("fsdp", None)))
    gaps = [(ours(x).detach().cpu() - plain(rows(s)).detach()).abs().max() for s, x in enumerate(loader)]
    return float(max(gaps)), reason_of(ours)


def asked_for():
    """The program asks autograd for gradients of the engine's parameters, in two ways. Both are refused, and training goes on."""
    refused = []

    def loss(model, x):
        parameters = list(model.parameters())
        for ask in (lambda y: torch.autograd.grad(y, parameters, allow_unused=True), lambda y: y.backward(inputs=parameters)):
            if isinstance(model, FSDPv2):
                try:
                    ask(loss_of(model, x))
                except Unimplemented:
                    refused.append(ask)
        return loss_of(model, x)

    found = double(Net, loss=loss)
    assert len(refused) == 8, len(refused)
    return found


def evaluated():
    torch.manual_seed(3)
    plain = Net(inside=nn.Dropout(0.5))
    ours = wrapped(copy.deepcopy(plain)).eval()
    plain.eval()
    with torch.no_grad():
        found = [(plain(rows(s)), ours(marked(rows(s))).cpu()) for s in range(3)]
    return max(float((a - b).abs().max()) for a, b in found), reason_of(ours)


def checkpointed(model) -> None:
    for block in model.blocks:
        checkpoint_module(block)


def remembered(places, times):
    def loss(model, x):
        value = loss_of(model, x)
        kept = places(getattr(model, "module", model))
        assert len(kept) <= times, len(kept)
        value = value + kept[-1].abs().mean()
        kept.clear()
        return value

    return double(lambda: Remembering(places), loss=loss, optimizer=plain_descent)


def replaced(model) -> None:
    model.post = Center()


def bound(model) -> None:
    plain = model.forward
    model.forward = MethodType(lambda self, x: plain(x - x.mean(0)), model)


def patched():
    class Patched(Keeping):
        pass

    def change(model):
        Patched.forward = lambda self, x: Keeping.forward(self, x - x.mean(0))

    def loss(model, x):
        value = loss_of(model, x)
        model.seen = getattr(model, "seen", 0) + 1
        if model.seen == 2:
            change(model)
        elif model.seen == 4:
            del Patched.forward
        return value

    return double(Patched, loss=loss, optimizer=plain_descent)


def copied():
    """A copy of a wrapped model has the same marks, and runs operator by operator. To replace one of its parameters is an error."""
    torch.manual_seed(3)
    plain = Net(buffer=True)
    ours = wrapped(copy.deepcopy(plain))
    averages = [torch.optim.swa_utils.AveragedModel(m) for m in (plain, ours)]
    for model, average, put in zip((plain, ours), averages, (lambda x: x, marked), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for s in range(3):
            loss_of(model, put(rows(s))).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
    results = [train(m, put, optimizer=plain_descent) for m, put in zip(averages, (lambda x: x, marked), strict=True)]
    specs = [[xs.XLAShardedTensor(p).sharding_spec for p in m.parameters()] for m in (ours, averages[1].module)]
    assert specs[0] == specs[1], specs
    reason = reason_of(ours)
    inside = ours.module.last
    inside.weight = nn.Parameter(inside.weight.detach() * 2)
    raised = []
    try:
        ours(marked(rows(0)))
    except Unimplemented as error:
        raised.append(str(error))
    assert len(raised) == 1, raised
    assert "replaced" in raised[0], raised
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True)), reason


CASES = {
    "plain": lambda: double(Net),
    "buffer": lambda: double(lambda: Net(buffer=True)),
    "only the outer module": lambda: double(Net, wrap=lambda m: wrapped(m, inner=False)),
    "only the blocks": lambda: double(Net, wrap=lambda m: wrapped(m, outer=False)),
    "momentum": lambda: double(Net, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9)),
    "fused": lambda: double(Net, optimizer=lambda ps: torch.optim.AdamW(ps, lr=0.05, fused=True)),
    "clipped": lambda: double(Net, clip=True),
    "accumulated": lambda: double(Net, parts=2),
    "uneven batches": lambda: double(Net, batches=[rows(0)[:-1], rows(1), rows(2)[: 3 * N + 1]]),
    "frozen": lambda: double(Net, change=freeze),
    "penalty": lambda: double(Net, loss=with_penalty),
    "two forwards": lambda: double(Net, loss=twice),
    "gradient of the input": lambda: double(Net, loss=differentiable_input),
    "scale per row": lambda: double(lambda: Scaled(torch.exp), loss=with_scale((4 * N, 1)), optimizer=plain_descent),
    "scale per column": lambda: double(lambda: Scaled(torch.exp), loss=with_scale((1, 7)), optimizer=plain_descent),
    "scale of a sum": lambda: double(lambda: Scaled(lambda y: y.sum(0) / 9), loss=with_scale((4 * N, 7)), optimizer=plain_descent),
    "one rank has too few rows": lambda: double(lambda: Net(inside=many), batches=[rows(0)[: 2 * N - 1]]),
    "checkpointed": lambda: double(Net, before=checkpointed),
    "checkpointed by the program": lambda: double(Again, wrap=lambda m: FSDPv2(m, MESH)),
    "checkpointed, whole inputs": lambda: double(Net, before=checkpointed, put=whole, optimizer=plain_descent),
    "all checkpointed": lambda: double(Net, before=checkpoint_module, optimizer=plain_descent),
    "all checkpointed, whole inputs": lambda: double(Net, before=checkpoint_module, put=whole, optimizer=plain_descent),
    "blocks checkpointed by the program": lambda: double(NetAgain),
    "saving": saving,
    "assigned": assigned,
    "differentiated twice": twice_differentiated,
    "optimizer built before": built_before,
    "asked for": asked_for,
    "loaded": loaded,
    "evaluated": evaluated,
    "counting": lambda: double(Counting, optimizer=plain_descent),
    "own backward": lambda: double(lambda: Net(inside=Normalised.apply), optimizer=plain_descent),
    "noise behind a gate": lambda: later(opened, Noisy),
    "switched": lambda: later(centred),
    "other outputs": lambda: later(both_asked, Telling),
    "hooked": lambda: later(hooked),
    "hook of a tensor": lambda: double(Hooked, optimizer=plain_descent),
    "below a reentrant checkpoint": lambda: double(Below, optimizer=plain_descent),
    "kept in a nested list": lambda: remembered(lambda m: m.store["a"][0], 1),
    "kept in an object": lambda: remembered(lambda m: m.stats.a, 1),
    "kept in a global": lambda: remembered(lambda m: KEPT, 2),
    "submodule replaced": lambda: later(replaced, Posted),
    "forward replaced": lambda: later(bound),
    "class patched": patched,
    "copied": copied,
    "dropout": lambda: double(lambda: Net(inside=nn.Dropout(0.3))),
    "loss inside": lambda: double(lambda: Net(loss=True)),
    "mean of the batch": lambda: double(lambda: Net(after=lambda x: x - x.mean(0)), optimizer=plain_descent),
    "number of rows": lambda: double(lambda: Net(after=lambda x: x / x.shape[0])),
    "batch norm": lambda: double(lambda: Net(after=nn.BatchNorm1d(7)), optimizer=plain_descent),
}


def main() -> None:
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = case()
        except Exception:
            found[name] = traceback.format_exc()
            break  # the other cases are skipped: the ranks may be at different operators now
    Path(sys.argv[1], str(xr.process_index())).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
