"""``shoal check``: the six best practices of the FSDP2 guide."""

from __future__ import annotations

import ast

from shoal._scripts import flow
from shoal._scripts.source import Note, Source

RULES = {
    "submodules-first": "fully_shard is called on submodules first, then on the model",
    "optimizer-after": "the optimizer is built after fully_shard",
    "checkpoint": "checkpoints are written by torch.distributed.checkpoint or shoal.checkpoint",
    "prefetch": "prefetching is implicit at first, explicit where a measurement shows a need",
    "mixed-precision": "parameters are computed with in a lower precision, and gradients are reduced in float32",
    "memory": "the script measures its memory",
}
_CHECKPOINTS = ("torch.distributed.checkpoint", "shoal.checkpoint")
_MEASURES = ("memory_", "mem_get_info", "peak_bytes", "getrusage", "statm", "estimate_memory", "profile_memory", "memory_budget")
_LOW = ("torch.bfloat16", "torch.float16", "torch.half")


def check(source: Source) -> list[Note]:
    """Returns what the script leaves undone, one note per place. A script that shards nothing has none."""
    events = flow.events(source)
    shards = [e for e in events if e.kind == "shard"]
    if not shards:
        return []
    first = shards[0].node
    found = [*_submodules(source, shards), *_optimizers(source, events), *_checkpoints(source), *_prefetches(source, events)]
    found += [*_precision(source, shards), *_memory(source, first)]
    return sorted(dict.fromkeys(found), key=lambda n: (n.line, n.rule))


def shards_anything(source: Source) -> bool:
    return any(True for _ in source.calls(*flow.SHARDS))


def sharded_models(source: Source) -> set[str]:
    """Returns the expressions that are passed to fully_shard, or have its result."""
    found = set()
    for call in source.calls(*flow.SHARDS):
        statement = source.statement_of(call)
        nodes = [*call.args[:1], *(statement.targets if isinstance(statement, ast.Assign) and statement.value is call else [])]
        found |= {source.code(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute))}
    return found


def optimizers_before(source: Source) -> list[Note]:
    return [Note(n.line, n.rule, "by hand", n.code, n.message, n.hint) for n in dict.fromkeys(_optimizers(source, flow.events(source)))]


def _note(source: Source, node: ast.AST, rule: str, message: str, hint: str) -> Note:
    return Note(node.lineno, rule, "practice", source.line(node.lineno), message, hint)


def _submodules(source: Source, shards: list[flow.Event]) -> list[Note]:
    found = []
    for k, event in enumerate(shards):
        outer = next((e for e in shards[:k] if e.entry == event.entry and flow.inside(event.subject, e.subject)), None)
        if outer is not None:
            found.append(
                _note(
                    source,
                    event.node,
                    "submodules-first",
                    f"the module around this one is sharded already, in line {outer.node.lineno}, and has taken its parameters",
                    "call fully_shard on the inner modules first, on the model last",
                )
            )
        elif event.parents_first and not _one_class(source, event.node):
            found.append(
                _note(
                    source,
                    event.node,
                    "submodules-first",
                    "modules() begins with the parents, which take the parameters of the modules inside them",
                    "loop over reversed(list(model.modules()))",
                )
            )
        elif not _has_units(source, event, shards):
            found.append(
                _note(
                    source,
                    event.node,
                    "submodules-first",
                    "the whole model is one unit: all of its parameters are gathered at once, and nothing overlaps",
                    "call fully_shard on each layer first",
                )
            )
    return found


def _one_class(source: Source, call: ast.Call) -> bool:
    """True if a condition around a call selects modules by a class, whose modules seldom contain each other."""
    for test in source.within(call, ast.If):
        for inner in ast.walk(test.test):
            if isinstance(inner, ast.Call) and source.code(inner.func) == "isinstance" and len(inner.args) == 2:
                return not isinstance(inner.args[1], ast.Tuple) or len(inner.args[1].elts) == 1
    return False


def _has_units(source: Source, event: flow.Event, shards: list[flow.Event]) -> bool:
    """True if the module is a unit among others or a single layer, or if the script may choose units by a policy."""
    related = (flow.inside(e.subject, event.subject) or flow.inside(event.subject, e.subject) for e in shards)
    if any(related) or "[" in event.subject:
        return True
    given = {k.arg for k in event.node.keywords}
    if None in given or given & {"auto_wrap_policy", "fsdp_auto_wrap_policy"}:
        return True
    first = event.node.args[0] if event.node.args else None
    names = [first, *_assigned(source, first)] if first is not None else []
    constructors = [source.name_of(n.func) for n in names if isinstance(n, ast.Call)]
    layers = [n for n in constructors if n.startswith("torch.nn.") and n.rpartition(".")[2] not in ("Sequential", "Transformer")]
    return bool(layers)


def _assigned(source: Source, node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Name):
        return []
    scope = source.scope_of(node)
    assigns = [n for n in ast.walk(scope) if isinstance(n, ast.Assign)]
    return [a.value for a in assigns if any(isinstance(t, ast.Name) and t.id == node.id for t in a.targets)]


def _optimizers(source: Source, events: list[flow.Event]) -> list[Note]:
    found = []
    for k, event in enumerate(events):
        if event.kind != "optimizer" or not event.subject:
            continue
        later = (e for e in events[k + 1 :] if e.kind == "shard" and e.subject and e.entry == event.entry)
        after = (e for e in later if e.subject == event.subject or flow.inside(e.subject, event.subject))
        shard = next(after, None)
        if shard is not None:
            found.append(
                _note(
                    source,
                    event.node,
                    "optimizer-after",
                    f"line {shard.node.lineno} shards the model afterwards: the optimizer would update parameters that nothing uses",
                    "build the optimizer after the last call of fully_shard",
                )
            )
    return found


def _checkpoints(source: Source) -> list[Note]:
    if any(name.startswith(_CHECKPOINTS) for name in source.names.values()):
        return []
    return [
        _note(
            source,
            call,
            "checkpoint",
            "one rank writes a whole file: it waits for all values, and needs memory for the whole model",
            "write with shoal.checkpoint.save, torch.distributed.checkpoint.save or get_model_state_dict",
        )
        for call in source.calls("torch.save")
    ]


def _prefetches(source: Source, events: list[flow.Event]) -> list[Note]:
    hint = "put it behind an option, and keep it if a step takes less time and the memory suffices"
    found = [
        _note(source, e.node, "prefetch", "explicit prefetching cannot be switched off, so nothing shows its gain", hint)
        for e in events
        if e.kind == "prefetch" and not e.chosen
    ]
    for call in source.calls("fsdp:FullyShardedDataParallel"):
        for keyword in call.keywords:
            if keyword.arg == "forward_prefetch" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
                found.append(_note(source, keyword.value, "prefetch", "explicit prefetching cannot be switched off", hint))
    return found


def _precision(source: Source, shards: list[flow.Event]) -> list[Note]:
    found = []
    for call in source.calls("fsdp:MixedPrecisionPolicy", "fsdp:MixedPrecision"):
        given = {k.arg: source.name_of(k.value) for k in call.keywords} | dict(
            zip(("param_dtype", "reduce_dtype"), map(source.name_of, call.args), strict=False)
        )
        if given.get("param_dtype") in _LOW and given.get("reduce_dtype", given["param_dtype"]) in _LOW:
            message = "gradients are added in 16 bits, which loses small ones"
            found.append(_note(source, call, "mixed-precision", message, "pass reduce_dtype=torch.float32"))
    words = {k.arg for e in shards for k in e.node.keywords} | {
        n.value for n in ast.walk(source.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and len(n.value) < 40
    }
    if not words & {"mp_policy", "mixed_precision"} and not any(source.calls("torch.autocast", "torch.amp.autocast")):
        node = shards[0].node
        message = "all is computed and gathered in the parameters' own precision"
        hint = "pass mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if the model bears it"
        found.append(_note(source, node, "mixed-precision", message, hint))
    return found


def _memory(source: Source, node: ast.AST) -> list[Note]:
    names = {n.attr for n in ast.walk(source.tree) if isinstance(n, ast.Attribute)} | set(source.names)
    names |= {n.arg for n in ast.walk(source.tree) if isinstance(n, ast.keyword) and n.arg}
    names |= {n.value for n in ast.walk(source.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and "/proc/" in n.value}
    if any(measure in name for name in names for measure in _MEASURES):
        return []
    hint = "print torch.cuda.max_memory_allocated() per epoch; shoal.fsdp.estimate_memory(model, world_size) predicts it"
    return [_note(source, node, "memory", "nothing shows how much memory sharding saves", hint)]
