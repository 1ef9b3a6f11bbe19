"""Translates calls of FullyShardedDataParallel(..) into calls of fully_shard."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from shoal._scripts import policies
from shoal._scripts.values import offload_policy, precision_policy
from shoal._scripts.work import STATE_DICT, Untranslatable, Work, keywords_text, right_side, statement_text

CLASS = "fsdp:FullyShardedDataParallel"
_SIGNATURE = (
    "module",
    "process_group",
    "sharding_strategy",
    "cpu_offload",
    "auto_wrap_policy",
    "backward_prefetch",
    "mixed_precision",
    "ignored_modules",
    "param_init_fn",
    "device_id",
    "sync_module_states",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "ignored_states",
    "device_mesh",
)
_BY_HAND = {
    "process_group": "pass mesh=DeviceMesh.from_group(GROUP, DEVICE_TYPE) to each call of fully_shard",
    "NO_SHARD": "replace it by torch.nn.parallel.DistributedDataParallel, or shard: FSDP2 has no NO_SHARD",
    "HYBRID_SHARD": 'pass mesh=init_device_mesh(TYPE, (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard")) to each call',
}
_BY_HAND["_HYBRID_SHARD_ZERO2"] = _BY_HAND["HYBRID_SHARD"] + " with reshard_after_forward=False"


@dataclass
class Sharding:
    """The translation of one constructor call: the arguments of fully_shard, and the statements around its call."""

    model: str = ""
    keywords: list[tuple[str, str]] = field(default_factory=list)
    starred: list[str] = field(default_factory=list)  # the texts of "**options"
    policy: policies.Policy | None = None
    before: list[str] = field(default_factory=list)  # statements, in which {model} stands for the model's name
    after: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        return [*keywords_text(self.keywords), *self.starred]


def translate(work: Work, call: ast.Call) -> None:
    """Replaces a call of FullyShardedDataParallel(..) by its translation. Raises Untranslatable."""
    sharding = _read(work, call)
    function = work.fsdp("fully_shard")
    statement = work.source.statement_of(call)
    indent, newline = work.source.indent(statement), work.source.newline
    comments = work.comments_in(call)
    if not (sharding.policy or sharding.before or sharding.after):
        if comments and indent is not None:
            begin = work.source.span(statement)[0]
            work.edits.replace((begin, begin), "".join(f"{c}{newline}{indent}" for c in comments))
        work.replace_call(call, function, [sharding.model, *sharding.words()])
        return
    lines = [*comments, *_lines(work, call, statement, sharding)]
    work.edits.replace(work.source.span(statement), f"{newline}{indent}".join(lines))


def _lines(work: Work, call: ast.Call, statement: ast.stmt, sharding: Sharding) -> list[str]:
    """Returns the statements that replace ``statement``, without their common indentation."""
    source, function = work.source, work.fsdp("fully_shard")
    target = None
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is call:
        target = statement.target
    returns = isinstance(statement, ast.Return) and statement.value is call
    if not (isinstance(target, (ast.Name, ast.Attribute)) or returns) or not source.alone(statement):
        raise Untranslatable(
            call,
            "nested-call",
            "this call needs several statements, and stands inside another one",
            "assign its result to a variable first",
        )
    model = source.code(target) if target else source.unused_name("model")
    lines = [] if sharding.model == model else [f"{model} = {right_side(sharding.model)}"]
    lines += [line.format(model=model) for line in sharding.before]
    words = sharding.words()
    if sharding.policy:
        if words and not sharding.starred:
            options = source.unused_name("fsdp_kwargs")
            entries = [f'"{name}": {text}' for name, text in sharding.keywords]
            lines.append(f"{options} = {{{', '.join(entries)}}}")
            words = [f"**{options}"]
        unit = source.unused_name("unit")
        loop = sharding.policy.loop(model, unit)
        lines += [*loop, f"{'    ' * len(loop)}{function}({', '.join([unit, *words])})"]
    whole = statement_text(function, [model, *words], source.indent(statement), source.newline)
    lines += [*([whole] if sharding.after or not returns else []), *(line.format(model=model) for line in sharding.after)]
    return [*lines, *([f"return {whole if not sharding.after else model}"] if returns else [])]


def _read(work: Work, call: ast.Call) -> Sharding:
    given: dict[str, ast.expr] = {}
    for name, node in zip(_SIGNATURE, call.args, strict=False):
        if isinstance(node, ast.Starred):
            raise Untranslatable(node, "starred", f"{work.source.code(node)}: positions are not understood", "name the arguments")
        given[name] = node
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    if "module" not in given:
        raise Untranslatable(call, "no-module", "this call has no module", "pass the module first")
    sharding = Sharding(model=work.edits.code(given.pop("module")))
    for keyword in call.keywords:
        if keyword.arg is None:
            _starred(work, keyword.value, sharding)
    sync, init = given.get("sync_module_states"), given.get("param_init_fn")
    if sync and init and not _is(sync, False) and not _is(init, None):
        raise Untranslatable(
            sync,
            "argument",
            "sync_module_states together with param_init_fn has no counterpart: one rank has values, the others build theirs from nothing",
            f"after that call set_model_state_dict of {STATE_DICT} with StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)",
        )
    for name, node in given.items():
        _argument(work, name, node, sharding, given)
    return sharding


def _argument(work: Work, name: str, node: ast.expr, sharding: Sharding, given: dict[str, ast.expr]) -> None:
    if name in ("auto_wrap_policy", "fsdp_auto_wrap_policy"):
        if name != "auto_wrap_policy":
            work.note(node, "former-name", "the argument fsdp_auto_wrap_policy was renamed", "taken as auto_wrap_policy")
        sharding.policy = policies.translate(work, node)
    elif name == "sync_module_states":
        if not _is(node, False):
            torch = work.need("", "torch")
            tensor = work.source.unused_name("tensor")
            loop = [
                f"for {tensor} in [*{{model}}.parameters(), *{{model}}.buffers()]:  # all ranks begin with the values of rank 0",
                f"    {torch}.distributed.broadcast({tensor}.detach(), src=0)",
            ]
            sharding.before += loop if _is(node, True) else _if(right_side(work.edits.code(node)), loop)
            work.note(
                node,
                "sync-module-states",
                "FSDP2 does not broadcast parameters; the new loop does",
                "with nccl move the model to the rank's device before the loop",
            )
    elif name == "param_init_fn":
        if not _is(node, None):
            sharding.after += _init_loop(work, node)
            work.note(
                node,
                "param-init",
                "FSDP2 has no param_init_fn: it now runs after sharding, on DTensors of each rank's rows",
                "for parameters on meta it has to call module.to_empty(device=..., recurse=False), then a reset that its class has",
            )
    else:
        sharding.keywords += value_of(work, name, node, given)


def _init_loop(work: Work, node: ast.expr) -> list[str]:
    module, code = work.source.unused_name("module"), work.edits.code(node)
    loop = [f"for {module} in {{model}}.modules():"]
    value = work.value(node)
    if isinstance(value, ast.Name) and value.id in work.source.function_names:
        return [*loop, f"    {_braces(code)}({module})"]
    init = work.source.unused_name("init")
    assign = f"{init} = {_braces(right_side(code))}"
    loop += [f"    {init}({module})"]
    return [assign, *(loop if isinstance(value, ast.Lambda) else _if(f"{init} is not None", loop))]


def _if(condition: str, lines: list[str]) -> list[str]:
    return [f"if {_braces(condition)}:", *(f"    {line}" for line in lines)]


def _starred(work: Work, node: ast.expr, sharding: Sharding) -> None:
    """Translates the dictionary that ``**options`` unpacks, where it is filled."""
    trouble = Untranslatable(
        node, "starred", f"**{work.source.code(node)} is not understood", "fill one dictionary with literal keys in this function"
    )
    assign = work.source.binding(node) if isinstance(node, ast.Name) else None
    if assign is None or not isinstance(assign.value, ast.Dict) or None in assign.value.keys:
        raise trouble
    entries: list[tuple[str, str]] = []
    for key, value in zip(assign.value.keys, assign.value.values, strict=True):
        entries += _entry(work, key, value, trouble, sharding)
    scope = work.source.scope_of(node)
    uses = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Load) and n is not node]
    for use in uses:
        item = work.source.parents[use]
        store = work.source.parents.get(item)
        if not (isinstance(item, ast.Subscript) and isinstance(store, ast.Assign) and store.targets == [item]):
            raise trouble
        new = _entry(work, item.slice, store.value, trouble, sharding)
        if new:
            ((name, text),) = new
            work.edits.replace(work.source.span(store), f'{node.id}["{name}"] = {text}')
        else:
            work.remove(store)
    work.edits.replace(work.source.span(assign.value), "{" + ", ".join(f'"{name}": {text}' for name, text in entries) + "}")
    sharding.starred.append(f"**{node.id}")


def _entry(work: Work, key: ast.expr, value: ast.expr, trouble: Untranslatable, sharding: Sharding) -> list[tuple[str, str]]:
    if not isinstance(key, ast.Constant) or key.value not in _SIGNATURE[1:] or key.value in ("sync_module_states", "param_init_fn"):
        raise trouble
    if key.value != "auto_wrap_policy":
        return value_of(work, key.value, value, {})
    policy = policies.translate(work, value)
    options = trouble.node.id
    sharding.before = [f'{options}_units = {options}.pop("auto_wrap_policy", lambda model: [])']
    sharding.policy = policies.Policy(f"{options}_units", lambda model: f"{options}_units({model})")
    if policy is None:
        return []
    function = policy.function
    if function.startswith("functools."):
        function = work.need("", "functools") + function.removeprefix("functools")
    return [("auto_wrap_policy", function)]


def value_of(work: Work, name: str, node: ast.expr, given: dict[str, ast.expr]) -> list[tuple[str, str]]:
    """Returns the arguments of fully_shard that replace FSDP1's argument ``name``. Raises Untranslatable."""
    code = work.edits.code(node)
    if name == "sharding_strategy":
        return _strategy(work, node, given)
    if name == "cpu_offload":
        return offload_policy(work, node)
    if name == "mixed_precision":
        return precision_policy(work, node)
    if name == "device_mesh":
        return [("mesh", code)] if not _is(node, None) else []
    if name in ("ignored_modules", "ignored_states"):
        if _is(node, None):
            return []
        if name == "ignored_modules":
            return [("ignored_params", f"{{p for module in {code} for p in module.parameters()}}")]
        torch = work.need("", "torch")
        return [("ignored_params", f"{{p for s in {code} for p in (s.parameters() if isinstance(s, {torch}.nn.Module) else [s])}}")]
    if name == "process_group" and _is(node, None):
        return []
    if name not in _SIGNATURE or name == "process_group":
        known = "no argument of FSDP1's class" if name not in _SIGNATURE else "not translated"
        if name == "flatten_parameters":
            work.note(node, "no-such-argument", "flatten_parameters was FairScale's", "left out: FSDP2 never flattens parameters")
            return []
        raise Untranslatable(node, "argument", f"{name}= is {known}", _BY_HAND.get(name, "leave it out"))
    _drop(work, name, node)
    return []


def _drop(work: Work, name: str, node: ast.expr) -> None:
    """Notes what an argument that FSDP2 lacks meant, unless that is how FSDP2 works anyway."""
    if name == "backward_prefetch" and work.source.name_of(node) != "fsdp:BackwardPrefetch.BACKWARD_PRE":
        work.note(
            node, "backward-prefetch", "FSDP2 always prefetches one unit in backward", "set_modules_to_backward_prefetch changes which"
        )
    if name == "forward_prefetch" and not _is(node, False):
        work.note(node, "forward-prefetch", "FSDP2 prefetches implicitly", "set_modules_to_forward_prefetch names units to gather earlier")
    if name == "limit_all_gathers" and not _is(node, True):
        work.note(node, "limit-all-gathers", "FSDP2 always limits its gathers", "nothing, unless memory was no concern")
    cpu = "cpu" in work.source.code(node) or "cpu" in ast.dump(work.value(node))
    if name == "device_id" and not cpu and ".set_device(" not in work.source.text:
        work.note(
            node,
            "device-id",
            "fully_shard moves parameters to the process's current device, which device_id= does not choose any more",
            "call torch.cuda.set_device(local_rank) before init_process_group",
        )


def _strategy(work: Work, node: ast.expr, given: dict[str, ast.expr]) -> list[tuple[str, str]]:
    value = work.value(node)
    work.consume(node)
    name = value.value if isinstance(value, ast.Constant) else work.source.name_of(value).removeprefix("fsdp:ShardingStrategy.")
    if name is None or name == "FULL_SHARD":
        return []
    if name == "SHARD_GRAD_OP":
        return [("reshard_after_forward", "False")]
    if name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2") and "device_mesh" in given:
        return [("reshard_after_forward", "False")] if name != "HYBRID_SHARD" else []
    hint = _BY_HAND.get(name, "pass reshard_after_forward=True (FULL_SHARD) or False (SHARD_GRAD_OP)")
    raise Untranslatable(node, "sharding-strategy", f"sharding_strategy={work.source.code(node)} is not translated", hint)


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
