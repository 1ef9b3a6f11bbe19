"""Runs a script with Shoal, with torch's FSDP2 over gloo, and in one plain process, and compares the results.

A case is a function that takes an API, which is a namespace with ``fully_shard`` and its policies. In the plain process these do nothing.
"""

import functools
from types import SimpleNamespace

import torch
from launching.trained import run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

# Cases that name no others take these.
STEPS = 3
OPTIMIZER = functools.partial(torch.optim.AdamW, lr=1e-2)


class Cases(dict):
    """Cases by name. Calling the dictionary returns a decorator that adds a case."""

    def __call__(self, worlds=(1, 2, 3, 4), plain=True, rtol=1e-5, atol=1e-6, theirs=True):
        """``plain``: compares the case with one plain process; ``theirs``: compares it with torch's FSDP2."""

        def keep(function):
            self[function.__name__] = SimpleNamespace(
                function=function, worlds=worlds, plain=plain, rtol=rtol, atol=atol, theirs=theirs, expected={}
            )
            return function

        return keep

    def by_world(self):
        """Pairs of a world size and the name of a case for it, as the parameters of a test."""
        return [(n, name) for n in (1, 2, 3, 4) for name, spec in self.items() if n in spec.worlds]


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(8, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)
        self.checkpointed = False

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return self.head(self.norm(x))


def rank():
    return torch.distributed.get_rank()


def world():
    return torch.distributed.get_world_size()


def batch(step, of_rank, features=8):
    generator = torch.Generator().manual_seed(1000 * step + of_rank)
    return torch.randn(4, features, generator=generator), torch.randint(5, (4,), generator=generator)


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


class Seen:
    """The results of a run that are compared: losses, whole gradients and parameters. They are gathered at their first use, so that the run
    has no collectives and waits for its device but its own."""

    def __init__(self):
        self._copies = {}
        self._values = {}

    def see(self, name, value):
        self._copies[name] = value.detach().clone() if isinstance(value, torch.Tensor) else value

    @property
    def values(self):
        """Collective, because it gathers what was seen since the last use."""
        for name, value in self._copies.items():
            self._values[name] = full(value).float() if isinstance(value, torch.Tensor) else value
        self._copies.clear()
        return self._values

    @property
    def own(self):
        """This rank's parts of the results, which needs no other rank."""
        return self._values | {n: v.to_local() if isinstance(v, DTensor) else v for n, v in self._copies.items()}

    def parameters(self, model, what=""):
        for name, p in model.named_parameters():
            self.see(f"{what}parameter {name}", p)

    def gradients(self, model, what=""):
        for name, p in model.named_parameters():
            self.see(f"{what}gradient {name}", p.grad)


def loss_of(api, model, step, micro=0):
    """The loss on this rank's batch; in the plain process, the mean of the losses on all ranks' batches."""
    ranks = range(world()) if api.plain else [rank()]
    out = 0
    for r in ranks:
        x, y = batch(10 * step + micro, r)
        out = out + nn.functional.cross_entropy(model(x).float(), y)
    return out / len(ranks)


def train(api, model, optimizer=None, steps=None, between=lambda model: None, loss=loss_of):
    seen = Seen()
    optimizer = optimizer or OPTIMIZER(model.parameters())
    for step in range(steps or STEPS):
        value = loss(api, model, step)
        value.backward()
        mean = value.detach().clone()
        if not api.plain:
            torch.distributed.all_reduce(mean)
            mean /= world()
        seen.see(f"loss {step}", mean)
        between(model)
        if step == 0:
            seen.gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    seen.parameters(model)
    return seen


def sharded(api, model, **options):
    options.setdefault("mesh", api.mesh)
    for block in model.blocks:
        api.fully_shard(block, **options)
    return api.fully_shard(model, **options)


def make_apis():
    """The namespaces that cases take: ``plain``, ``theirs`` and ``ours``."""
    from torch.distributed import fsdp as fsdp2

    import shoal.fsdp

    mesh = init_device_mesh("cpu", (world(),))
    mesh_2d = mesh_tp = None
    if world() % 2 == 0:
        mesh_tp = init_device_mesh("cpu", (world() // 2, 2), mesh_dim_names=("dp", "tp"))
        mesh_2d = init_device_mesh("cpu", (2, world() // 2), mesh_dim_names=("replicate", "shard"))

    def nothing(module, *args, **kwargs):
        return module

    plain = SimpleNamespace(plain=True, mesh=None, mesh_2d=None, fully_shard=nothing, register_fsdp_forward_method=nothing)
    out = {"plain": plain}
    for name, module in (("theirs", fsdp2), ("ours", shoal.fsdp)):
        names = ("fully_shard", "MixedPrecisionPolicy", "CPUOffloadPolicy", "register_fsdp_forward_method", "DataParallelMeshDims")
        out[name] = SimpleNamespace(plain=False, mesh=mesh, mesh_2d=mesh_2d, mesh_tp=mesh_tp, **{n: getattr(module, n) for n in names})
    return out


def _compare(ours, other, spec, who):
    assert ours.values.keys() == other.values.keys(), ours.values.keys() ^ other.values.keys()
    for name, value in ours.values.items():
        expected = other.values[name]
        assert (value is None) == (expected is None), f"{name}: {value} where {who} has {expected}"
        if value is not None:
            torch.testing.assert_close(value, expected, rtol=spec.rtol, atol=spec.atol, msg=lambda m, n=name: f"{n} beside {who}: {m}")


def try_case(spec, apis):
    ours = spec.function(apis["ours"])
    if spec.plain:
        _compare(ours, _expected(spec, apis, "plain"), spec, "one plain process")
    if spec.theirs:
        _compare(ours, _expected(spec, apis, "theirs"), spec, "FSDP2")


def _expected(spec, apis, api):
    """Runs the case once in this process, also if several kinds of ours are compared with it."""
    if api not in spec.expected:
        spec.expected[api] = spec.function(apis[api])
    return spec.expected[api]


def run_cases(cases):
    """Runs on a rank: tries all cases of this world size. Returns the name and traceback of each that failed."""
    apis = make_apis()
    return run({name: functools.partial(try_case, spec, apis) for name, spec in cases.items() if world() in spec.worlds})
