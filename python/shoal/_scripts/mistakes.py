"""Finds the mistakes of PyTorch's documents and of widely copied programs in any script."""

from __future__ import annotations

import ast

from shoal._scripts.source import Note, Source, family_of

_BY_HAND = "by hand"


def find(source: Source, models: set[str]) -> list[Note]:
    """Returns the mistakes; ``models`` are expressions for sharded models."""
    found: list[Note] = []

    def note(node: ast.AST, rule: str, message: str, hint: str, level: str = _BY_HAND) -> None:
        found.append(Note(node.lineno, rule, level, source.line(node.lineno), message, hint))

    classes = {n.name: n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            _call(source, node, models, classes, note)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            if source.name_of(node.value.func) == "torch.distributed.broadcast_object_list":
                note(node, "broadcast-result", "broadcast_object_list returns None", "read the list that was passed to it")
        elif isinstance(node, ast.ImportFrom) and family_of(node.module or "") and any(a.name == "*" for a in node.names):
            note(node, "star-import", f"names that {node.module} exports to * are not recognized", "import them by their names")
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.distributed._tensor.placement_specs":
            note(node, "no-such-name", f"there is no module {node.module}", "from torch.distributed.tensor import Shard, Replicate")
        elif isinstance(node, ast.Attribute) and node.attr == "_sharded":
            note(
                node, "no-such-name", "parameters have no _sharded", "isinstance(p, DTensor), or print(shoal.fsdp.describe_sharding(model))"
            )
        elif isinstance(node, ast.Attribute) and node.attr == "apply_activation_checkpointing_wrapper":
            note(node, "former-name", "this name was renamed", "use apply_activation_checkpointing")
    return found


def _call(source: Source, call: ast.Call, models: set[str], classes: dict[str, ast.ClassDef], note) -> None:
    name = source.name_of(call.func)
    if name in ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler") and any(k.arg == "device_type" for k in call.keywords):
        note(call, "no-such-argument", "GradScaler has no device_type", 'pass device="cuda"')
    if name.endswith(".DistributedDataParallel") and call.args and source.code(call.args[0]) in models:
        note(call, "ddp-around-shards", "DDP needs whole parameters on every rank", "leave DDP out: sharding already reduces gradients")
    if not isinstance(call.func, ast.Attribute):
        return
    owner, method = source.code(call.func.value), call.func.attr
    if owner in models and method == "forward":
        note(call, "forward-call", "model.forward(..) skips the hooks that gather parameters", f"call {owner}(..)")
    if owner in models and method == "reset_parameters":
        class_name = _class_of(source, call.func.value)
        if class_name in classes and not any(getattr(f, "name", "") == method for f in classes[class_name].body):
            note(
                call,
                "reset-parameters",
                f"{class_name} has no reset_parameters, although the guide calls it",
                "define it, or call reset_parameters of each submodule that has it",
            )


def _class_of(source: Source, node: ast.expr) -> str:
    """Returns the name of the class whose call gave a variable its first value, or ""."""
    if not isinstance(node, ast.Name):
        return ""
    for assign in ast.walk(source.scope_of(node)):
        if not (isinstance(assign, ast.Assign) and isinstance(assign.value, ast.Call) and isinstance(assign.value.func, ast.Name)):
            continue
        if any(isinstance(t, ast.Name) and t.id == node.id for t in assign.targets):
            return assign.value.func.id
    return ""
