"""Translations by ``shoal migrate`` of short scripts."""

import ast
import textwrap

import pytest
import torch.distributed.fsdp
from torch.distributed.fsdp import wrap as torch_wrap

import shoal.fsdp
import shoal.fsdp1
from shoal._scripts import constructor
from shoal._scripts.imports import FSDP2_NAMES
from shoal._scripts.methods import FSDP1_NAMES
from shoal._scripts.migrate import migrate
from shoal._scripts.source import Source
from shoal.exceptions import InvalidArgument

FSDP1 = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
FSDP2 = "import torch\nfrom torch.distributed.fsdp import fully_shard\n"


def source(text):
    return Source("script.py", textwrap.dedent(text))


def migrated(text, to="shoal"):
    done = migrate(source(text), to)
    ast.parse(done.text)
    return done


def body(text):
    """The translation of statements after FSDP1's import, without imports."""
    done = migrated(FSDP1 + textwrap.dedent(text))
    assert done.result == "shoal.fsdp", done.notes
    assert not [n for n in done.notes if n.level == "by hand"]
    return "".join(line for line in done.text.splitlines(keepends=True) if not line.startswith(("import ", "from ")))


def rules(text, level=None):
    return [(n.line, n.rule) for n in migrated(text).notes if level in (None, n.level)]


BODIES = {
    "one unit": ("model = FSDP(model)", "model = fully_shard(model)"),
    "inside an expression": ("self.head = Wrapper(FSDP(Linear(4, 4)))", "self.head = Wrapper(fully_shard(Linear(4, 4)))"),
    "strategy": (
        "model = FSDP(model, None, torch.distributed.fsdp.ShardingStrategy.SHARD_GRAD_OP)",
        "model = fully_shard(model, reshard_after_forward=False)",
    ),
    "a strategy by its name": ('model = FSDP(model, sharding_strategy="FULL_SHARD")', "model = fully_shard(model)"),
    "hybrid": (
        'model = FSDP(model, sharding_strategy="HYBRID_SHARD", device_mesh=mesh)',
        "model = fully_shard(model, mesh=mesh)",
    ),
    "what FSDP2 always does": (
        "model = FSDP(model, backward_prefetch=torch.distributed.fsdp.BackwardPrefetch.BACKWARD_PRE, use_orig_params=True)",
        "model = fully_shard(model)",
    ),
    "ignored modules": (
        "model = FSDP(model, ignored_modules=[model.table])",
        "model = fully_shard(model, ignored_params={p for module in [model.table] for p in module.parameters()})",
    ),
    "precision that may be None": (
        "model = FSDP(model, mixed_precision=choose())",
        "model = fully_shard(model, mp_policy=choose() or MixedPrecisionPolicy())",
    ),
    "offload by a flag": (
        "from torch.distributed.fsdp import CPUOffload\nmodel = FSDP(model, cpu_offload=CPUOffload(offload_params=flag))",
        "model = fully_shard(model, offload_policy=CPUOffloadPolicy() if flag else OffloadPolicy())",
    ),
    "a policy of classes": (
        """
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        policy = ModuleWrapPolicy({Encoder, Decoder})
        def build():
            return FSDP(Net(), auto_wrap_policy=policy)
        """,
        """
        def build():
            model = Net()
            for unit in reversed(list(model.modules())):  # innermost first
                if unit is not model and isinstance(unit, (Encoder, Decoder)):
                    fully_shard(unit)
            return fully_shard(model)
        """,
    ),
    "a policy of classes that are added": (
        """
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        blocks = {Encoder}
        blocks.add(Decoder)
        net = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy(blocks))
        """,
        """
        blocks = {Encoder}
        blocks.add(Decoder)
        net = Net()
        for unit in reversed(list(net.modules())):  # innermost first
            if unit is not net and isinstance(unit, tuple(blocks)):
                fully_shard(unit)
        fully_shard(net)
        """,
    ),
    "a policy of a set with others inside": (
        """
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        net = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({*blocks}))
        """,
        """
        net = Net()
        for unit in reversed(list(net.modules())):  # innermost first
            if unit is not net and isinstance(unit, tuple({*blocks})):
                fully_shard(unit)
        fully_shard(net)
        """,
    ),
    "a policy by a function": (
        """
        import functools
        from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy
        net = FSDP(Net(), auto_wrap_policy=functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m.wide))
        """,
        """
        net = Net()
        for unit in reversed(list(net.modules())):  # innermost first
            if unit is not net and (lambda m: m.wide)(unit):
                fully_shard(unit)
        fully_shard(net)
        """,
    ),
    "a whole state dict": (
        """
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        model = FSDP(model)
        with FSDP.state_dict_type(  # keeps this
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)
        ):
            # and this
            states = model.state_dict(), '''a
                text'''
            optim = FSDP.optim_state_dict(model, optimizer)
        """,
        """
        model = fully_shard(model)
        # keeps this
        # and this
        states = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), '''a
                text'''
        optim = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        """,
    ),
    "sharded states, loaded": (
        """
        from torch.distributed.fsdp import StateDictType
        model = FSDP(model)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            model.load_state_dict(states["model"])
            found = FSDP.optim_state_dict_to_load(model, optimizer, states["optim"])
            optimizer.load_state_dict(found)
        """,
        """
        model = fully_shard(model)
        set_model_state_dict(model, states["model"])
        set_optimizer_state_dict(model, optimizer, states["optim"])
        """,
    ),
    "the default type of state dicts": (
        "model = FSDP(model)\nstates = model.state_dict(), optimizer_.state_dict()",
        "model = fully_shard(model)\n"
        "states = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), optimizer_.state_dict()",
    ),
    "methods": (
        """
        def step(model: FSDP):
            model.clip_grad_norm_(1.0, norm_type=2.0)
            assert isinstance(model, FSDP) and FSDP.fsdp_modules(model)
        """,
        """
        def step(model: FSDPModule):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=2.0)
            assert isinstance(model, FSDPModule) and [m for m in model.modules() if isinstance(m, FSDPModule)]
        """,
    ),
    "types": (
        "from typing import Optional\nfrom torch.distributed.fsdp import MixedPrecision\n"
        "def build(bf16: Optional[MixedPrecision]) -> FSDP: return FSDP(net, mixed_precision=bf16)",
        "def build(bf16: Optional[MixedPrecisionPolicy]) -> FSDPModule: return fully_shard(net, mp_policy=bf16 or MixedPrecisionPolicy())",
    ),
    "methods of others": (
        "model = FSDP(net)\naccelerator.clip_grad_norm_(model.parameters(), 1.0)",
        "model = fully_shard(net)\naccelerator.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    "the wrapped module": ("model = FSDP(net)\nprint(model.module.layers)", "model = fully_shard(net)\nprint(model.layers)"),
    "nested conditionals": (
        """
        from torch.distributed.fsdp import CPUOffload, MixedPrecision
        model = FSDP(model, mixed_precision=(a if b else None) if (c if d else e) else None, cpu_offload=CPUOffload(x if y else z))
        """,
        """
        model = fully_shard(
            model,
            mp_policy=((a or MixedPrecisionPolicy()) if b else MixedPrecisionPolicy()) if (c if d else e) else MixedPrecisionPolicy(),
            offload_policy=CPUOffloadPolicy() if (x if y else z) else OffloadPolicy(),
        )
        """,
    ),
    "offload by a flag that another chooses": (
        "from torch.distributed.fsdp import CPUOffload\nmodel = FSDP(m, cpu_offload=CPUOffload(flag) if on else CPUOffload(other or flag))",
        "model = fully_shard(\n    m,\n    offload_policy=(CPUOffloadPolicy() if flag else OffloadPolicy()) if on else "
        "(CPUOffloadPolicy() if (other or flag) else OffloadPolicy()),\n)",
    ),
    "initial values by a lambda": (
        "init = 1\nmodel = FSDP(net, param_init_fn=lambda m: m.to_empty(device={'a': 1}['a']))",
        """
        init = 1
        model = net
        fully_shard(model)
        init_ = lambda m: m.to_empty(device={'a': 1}['a'])
        for module in model.modules():
            init_(module)
        """,
    ),
    "initial values by a choice": (
        "model = FSDP(net, param_init_fn=(lambda m: m.reset())\n    if low else None)",
        """
        model = net
        fully_shard(model)
        init = ((lambda m: m.reset())
            if low else None)
        if init is not None:
            for module in model.modules():
                init(module)
        """,
    ),
    "initial values by a function": (
        "def reset(m): pass\nmodel = FSDP(net, param_init_fn=reset)",
        "def reset(m): pass\nmodel = net\nfully_shard(model)\nfor module in model.modules():\n    reset(module)",
    ),
    "values of rank 0 by a flag": (
        "model = FSDP(build()\n    .to(device), sync_module_states=options['sync'])",
        """
        model = (build()
            .to(device))
        if options['sync']:
            for tensor in [*model.parameters(), *model.buffers()]:  # all ranks begin with the values of rank 0
                torch.distributed.broadcast(tensor.detach(), src=0)
        fully_shard(model)
        """,
    ),
    "comments of arguments": (
        "model = FSDP(\n    net,\n    limit_all_gathers=True,  # against fragmentation\n)",
        "# against fragmentation\nmodel = fully_shard(net)",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_fsdp1_becomes_fsdp2(name):
    before, after = (textwrap.dedent(text).strip() for text in BODIES[name])
    assert body(before).strip() == after


def test_units_by_size_are_those_of_torchs_policy():
    text = FSDP1 + textwrap.dedent("""
        from functools import partial
        from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
        def shard(model):
            model = FSDP(model, auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=100))
        """)
    done = migrated(text)
    assert "    for unit in units_by_size(model, min_num_params=100):\n        fully_shard(unit)\n    fully_shard(model)\n" in done.text
    assert "partial" not in done.text
    helper = next(n for n in ast.parse(done.text).body if getattr(n, "name", "") == "units_by_size")
    names = {"torch": torch}
    exec(compile(ast.Module([helper], []), "helper", "exec"), names)  # the function alone
    nn = torch.nn
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Linear(9, 11), nn.ModuleList([nn.Linear(12, 12)])) for _ in range(2)]
    model = nn.Sequential(nn.Linear(3, 3), *blocks, nn.MultiheadAttention(8, 2), nn.ModuleDict({"a": nn.Linear(20, 20)}))
    ours, theirs = names["units_by_size"](model, 100), []

    def policy(module, recurse, nonwrapped_numel):
        chosen = torch_wrap.size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=100)
        if chosen and not recurse:
            theirs.append(module)
        return chosen

    torch_wrap._recursive_wrap(model, policy, lambda m, **_: nn.Identity(), set(), set(), only_wrap_children=True)
    assert ours == theirs
    assert len(theirs) > 3


def test_no_sync_keeps_its_form():
    done = migrated(FSDP1 + "model = FSDP(net)\nwith model.no_sync() if k % 4 else contextlib.nullcontext():\n    pass\n")
    assert "with no_sync(model) if k % 4 else" in done.text
    assert "import contextlib\n" in done.text
    assert "model.set_requires_gradient_sync(False)" in done.text


def test_no_sync_of_ddp_stays():
    text = FSDP1 + "from torch.nn.parallel import DistributedDataParallel\nmodel = FSDP(net)\nother.no_sync(), model.no_sync()\n"
    done = migrated(text)
    assert done.text.endswith("other.no_sync(), no_sync(model)\n")
    assert [n.rule for n in done.notes] == ["no-sync"]


def test_options_in_a_dictionary_are_translated_where_they_are_set():
    text = body("""
        import functools
        from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
        def build(net, big):
            options = {"use_orig_params": True, "device_mesh": mesh}
            if big:
                options["auto_wrap_policy"] = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
            if fast:
                options["forward_prefetch"] = True
            net = FSDP(net, **options)
        """)
    assert 'options = {"mesh": mesh}\n' in text
    assert '["auto_wrap_policy"] = functools.partial(units_by_size, min_num_params=100)\n' in text
    assert "    if fast:\n        pass\n" in text
    assert "    for unit in options_units(net):\n        fully_shard(unit, **options)\n    fully_shard(net, **options)\n" in text


KEPT = {
    "sharding-strategy": 'model = FSDP(model, sharding_strategy="NO_SHARD")',
    "argument": "model = FSDP(model, process_group=group)",
    "fsdp1-name": "with FSDP.summon_full_params(model):\n    print(model.weight)",
    "auto-wrap-policy": "model = FSDP(model, auto_wrap_policy=choose)",
    "starred": "model = FSDP(model, **options)",
    "method": "model = FSDP(model)\nmodel.register_comm_hook(None, hook)",
    "state-dict": "from torch.distributed.fsdp import StateDictType\n"
    "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    save(model)",
}


@pytest.mark.parametrize("rule", KEPT)
def test_what_fsdp2_lacks_keeps_fsdp1s_class_and_says_so(rule):
    text = FSDP1 + KEPT[rule] + "\n"
    done = migrated(text)
    assert done.result == "shoal.fsdp1"
    assert done.text == text.replace("torch.distributed.fsdp", "shoal.fsdp1")
    assert rule in [n.rule for n in done.notes if n.level == "by hand"]
    assert all(n.code and n.message and n.hint for n in done.notes)
    assert migrated(text, "fsdp2").text == text


def test_values_of_rank_0_for_modules_without_values_keep_fsdp1s_class():
    done = migrated(FSDP1 + "model = FSDP(model, sync_module_states=True, param_init_fn=init if rank else None)\n")
    assert done.result == "shoal.fsdp1"
    assert "broadcast_from_rank0=True" in done.notes[0].hint


@pytest.mark.parametrize("to", ["shoal", "fsdp2"])
def test_a_translation_that_is_no_program_is_not_written(to, monkeypatch):
    monkeypatch.setattr(constructor, "statement_text", lambda *_: "fully_shard(")
    text = FSDP1 + "model = FSDP(model, sync_module_states=True)\n"
    done = migrated(text, to)
    assert done.text == (text.replace("torch.distributed.fsdp", "shoal.fsdp1") if to == "shoal" else text)
    (note,) = [n for n in done.notes if n.rule == "no-program"]
    assert (note.line, note.level) == (3, "by hand")
    assert note.message == "the translation is no program: '(' was never closed"


# Statements after the imports, their translation, and the rules of notes by hand.
OWNERS = {
    "a model that is passed on": (
        """
        def step(net, limit):
            net.clip_grad_norm_ (max_norm=limit(isinstance(net, FSDP)))
            with net.no_sync():
                print(net.module.layers, net.state_dict())
        class Trainer:
            def __init__(self, net):
                self.net = net
            def save(self):
                return self.net.module.state_dict()
        class Loud(Trainer):
            def save(self):
                print(self.net.module)
        def build():
            return FSDP(Net())
        model = build()
        step(model, 1)
        Trainer(net=model)
        """,
        """
        def step(net, limit):
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=limit(isinstance(net, FSDPModule)))
            with no_sync(net):
                print(net.layers, get_model_state_dict(net, options=StateDictOptions(full_state_dict=True)))
        class Trainer:
            def __init__(self, net):
                self.net = net
            def save(self):
                return get_model_state_dict(self.net, options=StateDictOptions(full_state_dict=True))
        class Loud(Trainer):
            def save(self):
                print(self.net)
        def build():
            return fully_shard(Net())
        model = build()
        step(model, 1)
        Trainer(net=model)
        """,
        [],
    ),
    "objects of others": (
        """
        class Ours:
            def clip_grad_norm_(self, limit): pass
        class Plain:
            def __init__(self): self.model = Ours()
            def read(self): return self.model.module, self.model.clip_grad_norm_(1.0), self.model.no_sync()
        class Sharded:
            def __init__(self): self.model = FSDP(net)
            def run(self):
                with accelerator.no_sync(self.model): print(self.model.module)
        """,
        """
        class Ours:
            def clip_grad_norm_(self, limit): pass
        class Plain:
            def __init__(self): self.model = Ours()
            def read(self): return self.model.module, self.model.clip_grad_norm_(1.0), self.model.no_sync()
        class Sharded:
            def __init__(self): self.model = fully_shard(net)
            def run(self):
                with accelerator.no_sync(self.model): print(self.model)
        """,
        [],
    ),
    "an object that nothing shows": (
        """
        model = FSDP(net)
        def step(optimizer, engine): engine.clip_grad_norm_(1.0), optimizer.no_sync()
        def save(model): return model.module, model.state_dict()
        """,
        """
        model = fully_shard(net)
        def step(optimizer, engine): engine.clip_grad_norm_(1.0), optimizer.no_sync()
        def save(model): return model.module, model.state_dict()
        """,
        ["clip-grad-norm", "no-sync", "state-dict", "wrapped-module"],
    ),
    "DDP on another branch": (
        """
        def save(m): return m.module.state_dict()
        if ddp: model = torch.nn.parallel.DistributedDataParallel(build())
        else: model = FSDP(net)
        save(model), model.module, model.no_sync()
        """,
        """
        def save(m): return m.module.state_dict()
        if ddp: model = torch.nn.parallel.DistributedDataParallel(build())
        else: model = fully_shard(net)
        save(model), model.module, model.no_sync()
        """,
        ["no-sync", "state-dict", "wrapped-module"],
    ),
    "a model on a condition": (
        "model = FSDP(net) if sharded else net\nmodel.module, model.state_dict()",
        "model = fully_shard(net) if sharded else net\nmodel.module, model.state_dict()",
        ["state-dict", "wrapped-module"],
    ),
    "options of the same names": (
        "model = FSDP(net)\nprint(args.no_sync, args.state_dict_type, saved.optim_state_dict, getattr(args, 'no_sync'))",
        "model = fully_shard(net)\nprint(args.no_sync, args.state_dict_type, saved.optim_state_dict, getattr(args, 'no_sync'))",
        [],
    ),
    "before the model is one": (
        "def main():\n    net = build()\n    print(net.module)\n    net = FSDP(net)\n    print(net.module)",
        "def main():\n    net = build()\n    print(net.module)\n    net = fully_shard(net)\n    print(net)",
        [],
    ),
}


@pytest.mark.parametrize("name", OWNERS)
def test_only_models_of_fsdp_are_rewritten(name):
    before, after, by_hand = OWNERS[name]
    done = migrated(FSDP1 + textwrap.dedent(before).strip())
    assert done.result == "shoal.fsdp", done.notes
    assert done.text.endswith(textwrap.dedent(after).strip()), done.text
    assert sorted({n.rule for n in done.notes if n.level == "by hand"}) == by_hand


@pytest.mark.parametrize(
    "use",
    [
        "context = model.no_sync if k % 4 else nullcontext",
        "hook = model.clip_grad_norm_",
        "def clip(m):\n    return partial(m.clip_grad_norm_, 1.0)",
        "class T:\n    def f(self):\n        with self.model.summon_full_params(self.model): pass",
        "model.optim_state_dict(model, optimizer)",
        "model.no_sync(1)",
        "context = getattr(model, 'no_sync')()",
    ],
)
def test_methods_that_fsdp2_lacks_keep_fsdp1s_class(use):
    done = migrated(FSDP1 + f"model = FSDP(model)\n{use}\n")
    assert done.result == "shoal.fsdp1"
    (note,) = [n for n in done.notes if n.rule == "method"]
    assert note.level == "by hand"
    assert any(name in note.message for name in ("no_sync", "clip_grad_norm_", "summon_full_params", "optim_state_dict"))


# A script without FSDP's import, and lines of its translation.
NAMES = {
    "a module by another name": (
        "import torch as th\nmodel = FSDP(net)\nmodel.clip_grad_norm_(1.0)",
        ["import torch as th", "th.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"],
    ),
    "a module that one function imports": (
        "def f():\n    import torch\nmodel = FSDP(net)\nmodel.clip_grad_norm_(1.0)",
        ["import torch", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"],
    ),
    "a module whose name is a parameter": (
        "import torch\ndef f(torch):\n    model = FSDP(net)\n    model.clip_grad_norm_(1.0)",
        ["import torch as torch_", "    torch_.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"],
    ),
    "a function by another name": (
        "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict as gms\n"
        "model = FSDP(net)\nx = gms(model), model.state_dict()",
        ["x = gms(model), gms(model, options=StateDictOptions(full_state_dict=True))"],
    ),
    "a relative import": (
        "from ..state_dict import get_model_state_dict\nmodel = FSDP(net)\nx = model.state_dict()",
        [
            "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict as get_model_state_dict_",
            "x = get_model_state_dict_(model, options=StateDictOptions(full_state_dict=True))",
        ],
    ),
    "a function of the script": (
        "def get_model_state_dict(m): pass\nmodel = FSDP(net)\nx = model.state_dict()",
        ["x = get_model_state_dict_(model, options=StateDictOptions(full_state_dict=True))"],
    ),
    "a parameter": (
        "def shard(model, fully_shard):\n    return FSDP(model)",
        ["from shoal.fsdp import fully_shard as fully_shard_", "    return fully_shard_(model)"],
    ),
    "modules in functions that are added": (
        "import contextlib as c, torch as t\nmodel = FSDP(net, auto_wrap_policy=functools.partial(size_based_auto_wrap_policy))\n"
        "with model.no_sync(): pass",
        ["@c.contextmanager", "        if numel < min_num_params or isinstance(module, t.nn.MultiheadAttention):"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_a_translation_uses_are_bound_to_what_it_means(name):
    text, lines = NAMES[name]
    imports = "import functools\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    done = migrated(f"{imports}from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy\n{text}\n")
    assert done.result == "shoal.fsdp"
    assert set(lines) <= set(done.text.splitlines()), done.text


MISTAKES = {
    "rank-zero-collective": FSDP1 + "model = FSDP(model)\nif rank == 0:\n    torch.save(model.state_dict(), 'x')",
    "star-import": "from torch.distributed.fsdp import *\nFullyShardedDataParallel(model)",
    "broadcast-result": FSDP1 + "model = FSDP(m)\nx = torch.distributed.broadcast_object_list([x], src=0)[0]",
    "no-such-name": FSDP2 + "fully_shard(model)\nprint(p._sharded)",
    "no-such-argument": FSDP2 + "fully_shard(model)\ntorch.amp.GradScaler(device_type='cuda')",
    "optimizer-after": FSDP2 + "optimizer = torch.optim.SGD(model.parameters())\nfully_shard(model)",
    "forward-call": FSDP2 + "fully_shard(model)\nmodel.forward(x)",
    "reset-parameters": FSDP2 + "class Net(torch.nn.Module): pass\nmodel = Net()\nfully_shard(model)\nmodel.reset_parameters()",
    "ddp-around-shards": FSDP2 + "fully_shard(model)\nmodel = torch.nn.parallel.DistributedDataParallel(model)",
}


@pytest.mark.parametrize("rule", MISTAKES)
def test_mistakes_of_the_documents_are_named(rule):
    assert rule in [r for _, r in rules(MISTAKES[rule], "by hand")]


ACCEPTED = {
    "former-name": "from torch.distributed.fsdp.wrap import default_auto_wrap_policy\n"
    "model = FSDP(model, fsdp_auto_wrap_policy=default_auto_wrap_policy)",
    "policy-is-called": "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n"
    "model = FSDP(model, auto_wrap_policy=transformer_auto_wrap_policy(transformer_layer_cls={Block}))",
    "no-such-argument": "model = FSDP(model, flatten_parameters=True)",
    "no-such-name": "model = FSDP(model)\nwith FSDP.state_dict_type(model, FSDP.StateDictType.FULL_STATE_DICT):\n    model.state_dict()",
}


@pytest.mark.parametrize("rule", ACCEPTED)
def test_names_that_never_existed_are_taken_as_meant(rule):
    assert rule in [r for _, r in rules(FSDP1 + ACCEPTED[rule], "check")]
    assert migrated(FSDP1 + ACCEPTED[rule]).result == "shoal.fsdp"


def test_fsdp2_needs_other_imports_only():
    start = "import torch.distributed.fsdp\n"
    text = start + "from torch.distributed.fsdp import (\n    fully_shard, FSDPModule as F,\n)\n\n\n\nx  =  [ 1,2 ]\n"
    after = "from shoal.fsdp import FSDPModule as F, fully_shard\n\n\n\nx  =  [ 1,2 ]\n"
    assert migrated(text + "fully_shard(F)\n").text == start + after + "fully_shard(F)\n"
    text = "import torch.distributed.fsdp as f\nf.fully_shard(m)\n"
    assert migrated(text).text == "from shoal.fsdp import fully_shard\nfully_shard(m)\n"


def test_imports_stay_in_their_blocks():
    text = """
        if available():
            import torch
            from torch.distributed.fsdp import FlatParameter, fully_shard
            from torch.distributed.fsdp import FSDPModule
            fully_shard(model), FlatParameter
        """
    assert migrated(text).text.splitlines()[3:6] == [
        "    from torch.distributed.fsdp import FlatParameter",
        "    from shoal.fsdp import fully_shard",
        "    from shoal.fsdp import FSDPModule",
    ]
    text = """
        def g():
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import CPUOffload
            return FSDP(model, cpu_offload=CPUOffload(True))
        """
    assert "def g():\n    return fully_shard(model, offload_policy=CPUOffloadPolicy())" in migrated(text).text
    names = "import CPUOffload", "import FullyShardedDataParallel as FSDP"
    block = "if x:\n" + "".join(f"    from torch.distributed.fsdp {name}\n" for name in names)
    done = migrated(block + "model = FSDP(m, cpu_offload=CPUOffload())").text
    assert done == "if x:\n    pass\nfrom shoal.fsdp import fully_shard\nmodel = fully_shard(m)"


def test_bytes_that_nothing_changes_stay():
    text = FSDP1.replace("\n", "\r\n") + 'x  = "ü"\t;  y=1\r\n\r\n\r\nmodel = FSDP(m)  # ü\r\n\x0c\r\nz = 2'
    done = migrate(Source("script.py", text))
    first, _, rest = done.text.partition("fully_shard\r\n")
    assert rest == 'x  = "ü"\t;  y=1\r\n\r\n\r\nmodel = fully_shard(m)  # ü\r\n\x0c\r\nz = 2'
    assert first == "import torch\r\nfrom shoal.fsdp import "
    assert "\r\n\\ No newline at end of file" not in done.diff()


def test_a_script_without_fsdp_stays():
    assert migrated("import torch\nprint(torch.ones(2))\n").text == "import torch\nprint(torch.ones(2))\n"
    with pytest.raises(InvalidArgument, match=r"script.py, line 2 is no Python program"):
        source("x = 1\nif x\n")


def test_the_names_are_those_of_torch_and_shoal():
    assert set(shoal.fsdp.__all__) >= FSDP2_NAMES
    theirs = {*torch.distributed.fsdp.__all__, "OptimStateKeyType", "ShardedGradScaler"}
    left_out = {"FlatParameter", "OptimStateDictConfig", "StateDictConfig", "StateDictSettings"}
    assert theirs - FSDP2_NAMES <= FSDP1_NAMES | left_out
    assert [n for n in FSDP1_NAMES if not hasattr(shoal.fsdp1, n) and not hasattr(shoal.fsdp1.wrap, n)] == []
    code = torch.distributed.fsdp.FullyShardedDataParallel.__init__.__code__
    assert code.co_varnames[1 : code.co_argcount] == constructor._SIGNATURE
