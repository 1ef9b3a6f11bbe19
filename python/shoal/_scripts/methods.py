"""Translates methods of a model of FSDP1 into FSDP2's words."""

from __future__ import annotations

import ast
import re

from shoal._scripts import owners as kinds
from shoal._scripts.owners import Owners
from shoal._scripts.source import Function
from shoal._scripts.work import Untranslatable, Work

_CLASS = "fsdp:FullyShardedDataParallel"
_NO_SYNC = '''@{contextlib}.contextmanager
def {name}(model):
    """Backward passes inside add up whole gradients on each rank, without communication."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
'''
_BY_HAND = {
    "summon_full_params": "read whole values by get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), or "
    "one by parameter.full_tensor(); write rows with operators on the parameters",
    "register_comm_hook": "set reduce_dtype, or set_all_reduce_hook and set_custom_reduce_scatter on the units",
    "set_state_dict_type": "call get_model_state_dict and set_model_state_dict of torch.distributed.checkpoint.state_dict instead",
    "LOCAL_STATE_DICT": "use sharded state dicts",
}
# Methods of FSDP1's class that FSDP2's has not.
_METHODS = {
    "_is_root",
    "check_is_root",
    "clip_grad_norm_",
    "flatten_sharded_optim_state_dict",
    "fsdp_modules",
    "full_optim_state_dict",
    "get_state_dict_type",
    "no_sync",
    "optim_state_dict",
    "optim_state_dict_to_load",
    "register_comm_hook",
    "rekey_optim_state_dict",
    "scatter_full_optim_state_dict",
    "set_state_dict_type",
    "shard_full_optim_state_dict",
    "sharded_optim_state_dict",
    "state_dict_type",
    "summon_full_params",
}
_ONLY_MODELS_HAVE = {"clip_grad_norm_", "summon_full_params"}  # the other _METHODS are also names of DDP's methods or of options
_TYPES = {_CLASS: "FSDPModule", "fsdp:MixedPrecision": "MixedPrecisionPolicy"}
# The advice for a name of FSDP1 that is not in _BY_HAND.
_LEFT = "write it with FSDP2's methods, or keep FSDP1's class: shoal migrate --to fsdp1"


def wrapped_models(work: Work) -> set[str]:
    """Returns the expressions to which results of FSDP(..) are assigned."""
    found = set()
    for call in work.source.calls(_CLASS):
        statement = work.source.statement_of(call)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is call:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {work.source.code(t) for t in targets if isinstance(t, (ast.Name, ast.Attribute))}
    return found


def translate(work: Work, models: set[str], owners: Owners) -> None:
    source = work.source
    for node in reversed(list(ast.walk(source.tree))):  # the inner ones first
        try:
            if isinstance(node, ast.Call):
                _by_text(work, node, models, owners)
            if not isinstance(node, ast.Attribute) or source.name_of(node):
                continue
            call = source.parents[node]
            if node.attr in ("module", "_fsdp_wrapped_module"):
                _unwrap(work, node, models, owners)
            elif isinstance(call, ast.Call) and call.func is node and node.attr in ("clip_grad_norm_", "no_sync"):
                _method(work, call, owners)
            elif node.attr in _METHODS and isinstance(node.ctx, ast.Load):
                _lacking(work, node, node.value, node.attr, models, owners)
        except Untranslatable as reason:
            work.block(reason)
    for call in source.calls(f"{_CLASS}.fsdp_modules"):
        _modules(work, call)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            _isinstance(work, node)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for part in ast.walk(annotation) if isinstance(annotation, ast.expr) else []:
                if source.name_of(part) in _TYPES:
                    work.edits.replace(source.span(part), work.fsdp(_TYPES[source.name_of(part)]))
    for call in source.calls("fsdp:ShardedGradScaler"):
        work.edits.replace(source.span(call.func), f"{work.need('', 'torch')}.amp.GradScaler")
        if any(k.arg == "process_group" for k in call.keywords) or len(call.args) > 6:
            work.block(Untranslatable(call, "argument", "GradScaler has no process_group", "leave it out: a mesh decides the ranks"))
    for node in ast.walk(source.tree):
        if source.name_of(node).endswith(".apply_activation_checkpointing_wrapper"):
            work.note(node, "former-name", "this name was renamed", "import apply_activation_checkpointing", "by hand")


def _modules(work: Work, call: ast.Call) -> None:
    if len(call.args) == 1 and not call.keywords:
        model = work.edits.code(call.args[0])
        work.edits.replace(work.source.span(call), f"[m for m in {model}.modules() if isinstance(m, {work.fsdp('FSDPModule')})]")


def _isinstance(work: Work, call: ast.Call) -> None:
    if len(call.args) == 2:
        for kind in [call.args[1], *(call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [])]:
            if work.source.name_of(kind) == _CLASS:
                work.edits.replace(work.source.span(kind), work.fsdp("FSDPModule"))


def _unwrap(work: Work, node: ast.Attribute, models: set[str], owners: Owners) -> None:
    source, kind = work.source, owners.kind(node.value)
    if owners.is_model(node.value):
        work.edits.replace((source.span(node.value)[1], source.span(node)[1]), "")  # removes `.module`, because FSDP2 wraps nothing
    elif kind == kinds.MIXED or (kind == kinds.UNKNOWN and source.code(node.value) in models):
        _unsure(work, node, "wrapped-module", f"leave out .{node.attr} where the model is one of FSDP: FSDP2 wraps nothing")


def _lacking(work: Work, node: ast.expr, owner: ast.expr, name: str, models: set[str], owners: Owners) -> None:
    kind, code = owners.kind(owner), work.source.code(node)
    likely = (name in _ONLY_MODELS_HAVE or work.source.code(owner) in models) and not _defined(work, name)
    if kind in (kinds.MODEL, kinds.MIXED) or (kind == kinds.UNKNOWN and likely):
        raise Untranslatable(node, "method", f"{code}: FSDP2 has no {name}", _BY_HAND.get(name, _LEFT))


def _by_text(work: Work, call: ast.Call, models: set[str], owners: Owners) -> None:
    """Finds getattr(model, "no_sync"), and the like."""
    if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr") and len(call.args) > 1:
        name = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
        if name in _METHODS and owners.kind(call.args[0]) in (kinds.MODEL, kinds.MIXED):
            _lacking(work, call, call.args[0], name, models, owners)


def _defined(work: Work, method: str) -> bool:
    return any(isinstance(n, Function) and n.name == method for n in ast.walk(work.source.tree))


def _unsure(work: Work, node: ast.AST, rule: str, hint: str, level: str = "by hand") -> None:
    code = work.source.code(node.value if isinstance(node, ast.Attribute) else node.func.value)
    work.note(node, rule, f"{code} may be a model of FSDP, or another object: this line stays", hint, level)


def _method(work: Work, call: ast.Call, owners: Owners) -> None:
    source, function = work.source, call.func
    kind, model = owners.kind(function.value), work.edits.code(function.value)
    if owners.is_model(function.value):
        kind = kinds.MODEL
    if kind == kinds.OTHER or (kind == kinds.UNKNOWN and _defined(work, function.attr)):
        return
    if function.attr == "clip_grad_norm_":
        if any("parameters()" in source.code(a) for a in call.args):
            return
        if kind != kinds.MODEL:
            _unsure(work, call, "clip-grad-norm", f"for FSDP call torch.nn.utils.clip_grad_norm_({model}.parameters(), ..)")
            return
        begin, end = source.span(function)
        behind = re.compile(r"[\s\\]*\(\s*").match(source.text, end)
        if behind is None:
            raise Untranslatable(call, "method", "this call of clip_grad_norm_ has parentheses or comments", "leave them out")
        torch = work.need("", "torch")
        work.edits.replace((begin, behind.end()), f"{torch}.nn.utils.clip_grad_norm_({model}.parameters(), ")
    elif not call.args and not call.keywords:  # with arguments it is a no_sync of another library
        if kind != kinds.MODEL:
            ddp = kind == kinds.UNKNOWN and any(n.endswith(".DistributedDataParallel") for n in source.names.values())
            level = "check" if ddp else "by hand"
            _unsure(work, call, "no-sync", "if it is one of FSDP, call set_requires_gradient_sync; other objects keep no_sync", level)
            return
        helper = next((h for h, text in work.helpers.items() if "set_requires_gradient_sync" in text), None)
        helper = helper or source.unused_name("no_sync")
        work.helpers[helper] = _NO_SYNC.format(name=helper, contextlib=work.need("", "contextlib"))
        work.edits.replace(source.span(call), f"{helper}({model})")
    elif kind == kinds.MODEL:
        raise Untranslatable(call, "method", "no_sync of FSDP1 has no arguments", "leave them out")


def report_leftovers(work: Work) -> None:
    """Finds uses of FSDP1's names that no change has taken away: they keep FSDP1's class."""
    source = work.source
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or isinstance(source.parents.get(node), ast.Attribute):
            continue
        name = source.name_of(node)
        if name.startswith("fsdp:") and name[5:].split(".")[0] in FSDP1_NAMES and not work.edits.covers(node):
            last = name.rpartition(".")[2]
            message = f"{name[5:]} has no translation here"
            if all(b.line != node.lineno for b in work.blockers):
                work.block(Untranslatable(node, "fsdp1-name", message, _BY_HAND.get(last, _LEFT)))


FSDP1_NAMES = {
    "BackwardPrefetch",
    "CPUOffload",
    "CustomPolicy",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "FullyShardedDataParallel",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "ModuleWrapPolicy",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "ShardedGradScaler",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "always_wrap_policy",
    "default_auto_wrap_policy",
    "enable_wrap",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "wrap",
}
