"""Translates methods of a model of FSDP1 into FSDP2's words."""

from __future__ import annotations

import ast

from shoal._scripts.work import Untranslatable, Work

_CLASS = "fsdp:FullyShardedDataParallel"
_NO_SYNC = '''@contextlib.contextmanager
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
_TYPES = {_CLASS: "FSDPModule", "fsdp:MixedPrecision": "MixedPrecisionPolicy"}
# Names of FSDP1 without a translation of their own, by what to do.
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


def translate(work: Work, models: set[str]) -> None:
    source = work.source
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            _method(work, node, models)
        elif isinstance(node, ast.Attribute) and node.attr in ("module", "_fsdp_wrapped_module") and source.code(node.value) in models:
            work.edits.replace((source.span(node.value)[1], source.span(node)[1]), "")  # FSDP2 wraps nothing
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
        work.need("", "torch")
        work.edits.replace(source.span(call.func), "torch.amp.GradScaler")
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


def _method(work: Work, call: ast.Call, models: set[str]) -> None:
    source, function = work.source, call.func
    imported = source.name_of(function)
    model = source.code(function.value)
    if function.attr == "clip_grad_norm_" and not imported and not any("parameters()" in source.code(a) for a in call.args):
        work.need("", "torch")
        arguments = source.text[source.span(function)[1] + 1 : source.span(call)[1]].lstrip()
        work.edits.replace(
            (source.span(call)[0], source.span(call)[1]), f"torch.nn.utils.clip_grad_norm_({model}.parameters(), {arguments}"
        )
    elif function.attr == "no_sync" and model not in models and any(n.endswith(".DistributedDataParallel") for n in source.names.values()):
        work.note(call, "no-sync", f"{model} is taken as a model of DDP", "if it is one of FSDP, call set_requires_gradient_sync")
    elif function.attr == "no_sync" and not imported:
        helper = next((h for h, text in work.helpers.items() if "set_requires_gradient_sync" in text), None) or source.unused_name(
            "no_sync"
        )
        work.helpers[helper] = _NO_SYNC.format(name=helper)
        work.need("", "contextlib")
        work.edits.replace(source.span(call), f"{helper}({model})")
    elif function.attr in ("register_comm_hook", "check_is_root", "_is_root") and model in models:
        hint = _BY_HAND.get(function.attr, _LEFT)
        work.block(Untranslatable(call, "method", f"FSDP2 has no {function.attr}", hint))


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
