"""Translates FSDP1's configurations of precision and offload into FSDP2's policies."""

from __future__ import annotations

import ast
from collections.abc import Callable

from shoal._scripts.work import Untranslatable, Work, keywords_text, operand

_FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)
_LOST = {
    "buffer_dtype": "buffers keep their dtype in FSDP2: if the forward needs it, cast them with module.to or in the forward",
    "keep_low_precision_grads": "gradients of FSDP2 have the dtype of the parameters",
    "_module_classes_to_ignore": "call fully_shard on these modules without mp_policy, before their parents",
    "cast_forward_inputs": "FSDP2 casts the inputs of every unit: MixedPrecisionPolicy(cast_forward_inputs=False) turns that off",
}


def translate_constructors(work: Work) -> None:
    """Replaces the calls of MixedPrecision, wherever they stand. Those of CPUOffload are replaced where a constructor takes them."""
    for call in work.source.calls("fsdp:MixedPrecision"):
        try:
            _mixed_precision(work, call)
        except Untranslatable as reason:
            work.block(reason)


def _mixed_precision(work: Work, call: ast.Call) -> None:
    if any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
        raise Untranslatable(call, "starred", "MixedPrecision(**..) is not understood", "name the arguments")
    given = dict(zip(_FIELDS, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    kept = []
    for name, node in given.items():
        if name in ("param_dtype", "reduce_dtype"):
            kept.append((name, work.edits.code(node)))
        elif name == "cast_root_forward_inputs":
            if not (isinstance(node, ast.Constant) and node.value is True):
                kept.append(("cast_forward_inputs", work.edits.code(node)))
        elif name == "cast_forward_inputs" and isinstance(node, ast.Constant) and node.value is True:
            continue
        elif name in _LOST:
            work.note(node, "mixed-precision", f"FSDP2 has no {name}", _LOST[name])
        else:
            raise Untranslatable(node, "argument", f"MixedPrecision has no {name}", "leave it out")
    if "BatchNorm" in work.source.text:
        work.note(
            call,
            "batch-norm",
            "FSDP1 keeps batch norms in fp32; FSDP2 casts their parameters",
            "call fully_shard on the batch norms without mp_policy, before their parents",
        )
    work.replace_call(call, work.fsdp("MixedPrecisionPolicy"), keywords_text(kept))


def precision_policy(work: Work, node: ast.expr) -> list[tuple[str, str]]:
    text = _choice(work, node, "MixedPrecisionPolicy", lambda n: _precision(work, n))
    return [("mp_policy", text)] if text is not None else []


def _precision(work: Work, node: ast.expr) -> str:
    code = work.edits.code(node)
    value = work.value(node)
    if isinstance(value, ast.Call) and work.source.name_of(value.func) == "fsdp:MixedPrecision":
        return code
    return f"{operand(code)} or {work.fsdp('MixedPrecisionPolicy')}()"  # a variable may be None


def offload_policy(work: Work, node: ast.expr) -> list[tuple[str, str]]:
    text = _choice(work, node, "OffloadPolicy", lambda n: _offload(work, n))
    return [("offload_policy", text)] if text is not None else []


def _offload(work: Work, node: ast.expr) -> str | None:
    value = work.value(node)
    if isinstance(value, ast.IfExp) and value is not node:
        text = _choice(work, value, "OffloadPolicy", lambda n: _offload(work, n))
        work.consume(node)
        return text
    if not (isinstance(value, ast.Call) and work.source.name_of(value.func) == "fsdp:CPUOffload"):
        raise Untranslatable(
            node, "cpu-offload", f"cpu_offload={work.source.code(node)} is not understood", "pass offload_policy=CPUOffloadPolicy()"
        )
    given = dict(zip(("offload_params",), value.args, strict=False)) | {k.arg: k.value for k in value.keywords}
    if "offload_gradients" in given:
        work.note(value, "no-such-argument", "CPUOffload has no offload_gradients", "left out: gradients go where the parameters are")
        del given["offload_gradients"]
    if set(given) - {"offload_params"}:
        raise Untranslatable(value, "argument", "CPUOffload has only offload_params", "leave the others out")
    work.consume(node)
    chosen = given.get("offload_params")
    if chosen is None or (isinstance(chosen, ast.Constant) and not chosen.value):
        return None
    offload = f"{work.fsdp('CPUOffloadPolicy')}()"
    if isinstance(chosen, ast.Constant):
        return offload
    return f"{offload} if {operand(work.edits.code(chosen))} else {work.fsdp('OffloadPolicy')}()"


def _choice(work: Work, node: ast.expr, default: str, leaf: Callable[[ast.expr], str | None]) -> str | None:
    """Translates an expression; of a conditional expression, both values. Returns None if the argument is to be left out."""
    if isinstance(node, ast.IfExp):
        parts = [_choice(work, n, default, leaf) or f"{work.fsdp(default)}()" for n in (node.body, node.orelse)]
        return f"{operand(parts[0])} if {operand(work.edits.code(node.test))} else {operand(parts[1])}"
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    return leaf(node)
