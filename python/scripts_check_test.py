"""Findings of ``shoal check`` in short scripts."""

import textwrap

import pytest

from shoal._scripts.check import RULES, check
from shoal._scripts.source import Source


def source(text):
    return Source("script.py", textwrap.dedent(text))


def findings(text):
    return [(n.line, n.rule) for n in check(source(text))]


GOOD = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
model = Net()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters())
if args.explicit:
    model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])
print(torch.cuda.max_memory_allocated())
dcp.save({}, checkpoint_id="x")
"""
LINES = GOOD.splitlines()


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


BAD = {
    "submodules-first": [
        (changed("for layer", "fully_shard(model, mp_policy=policy)\nfor layer"), 8),
        (changed("for layer in model.layers:\n    fully_shard(layer, mp_policy=policy)\n", ""), 6),
        (changed("for layer in model.layers", "for layer in model.modules()"), 7),
    ],
    "optimizer-after": [
        (changed("model = Net()\n", "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n"), 5),
        (GOOD + "def build(net):\n    return torch.optim.Adam(net.parameters())\nother = Net()\nbuild(other)\nfully_shard(other[0])\n", 15),
    ],
    "checkpoint": [(changed("import torch.distributed.checkpoint as dcp\n", "").replace("dcp.save", "torch.save"), 12)],
    "prefetch": [(changed("if args.explicit:\n    model", "model"), 10)],
    "mixed-precision": [
        (GOOD.replace(", mp_policy=policy", ""), 7),
        (changed(", reduce_dtype=torch.float32", ""), 5),
    ],
    "memory": [(changed("print(torch.cuda.max_memory_allocated())\n", ""), 7)],
}


def test_a_script_that_follows_the_guide_has_no_findings():
    assert findings(GOOD) == []
    assert findings("import torch\nmodel = torch.nn.Linear(2, 2)\n") == []
    assert list(BAD) == list(RULES)


@pytest.mark.parametrize("rule", BAD)
def test_each_practice_is_checked(rule):
    for text, line in BAD[rule]:
        found = [(n, r) for n, r in findings(text.lstrip()) if r == rule]
        assert found == [(line, rule)], (text, findings(text))


def test_the_order_is_followed_through_functions():
    text = """
        from torch.distributed.fsdp import fully_shard
        from torch import optim
        def shard(net):
            for layer in (net[0], net[1], net):
                fully_shard(layer)
            return net
        def main(rank):
            model = shard(Net())
            first = optim.Adam(model.parameters())
        def wrong():
            model = Net()
            first = optim.Adam(model.parameters())
            second = shard(model)
        """
    assert [(n, r) for n, r in findings(text) if r in ("submodules-first", "optimizer-after")] == [(13, "optimizer-after")]


def test_the_order_is_followed_through_methods():
    text = """
        import torch
        from torch.distributed.fsdp import fully_shard
        class Trainer:
            def __init__(self, model):
                self.model = model
                {}
            def build(self):
                self.optimizer = torch.optim.Adam(self.model.parameters())
            def shard(self):
                fully_shard(self.model[0])
                fully_shard(self.model)
        class Other:
            def build(self):
                self.optimizer = torch.optim.Adam(self.model.parameters())
            def shard(self):
                fully_shard(self.model)
                fully_shard(self.model[0])
        """
    wanted = ("submodules-first", "optimizer-after")
    right = [f for f in findings(text.format("self.shard(), self.build()")) if f[1] in wanted]
    assert right == [(18, "submodules-first")]
    wrong = [f for f in findings(text.format("self.build(), self.shard()")) if f[1] in wanted]
    assert wrong == [(9, "optimizer-after"), (18, "submodules-first")]
    apart = [f for f in findings(text.format("pass")) if f[1] in wanted]
    assert apart == right


def test_functions_that_nothing_calls_have_no_order():
    text = """
        import torch
        from torch.distributed.fsdp import fully_shard
        model = Net()
        def build():
            return torch.optim.Adam(model.parameters())
        def shard():
            fully_shard(model[0])
            fully_shard(model)
        """
    assert [f for f in findings(text) if f[1] == "optimizer-after"] == []
