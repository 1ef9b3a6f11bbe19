"""Translates FSDP1's state dicts into calls of torch.distributed.checkpoint.state_dict."""

from __future__ import annotations

import ast
from collections.abc import Callable

from shoal._scripts.owners import MIXED, UNKNOWN, Owners
from shoal._scripts.source import Function
from shoal._scripts.work import STATE_DICT, Untranslatable, Work

_CLASS = "fsdp:FullyShardedDataParallel"
_CONTEXT = f"{_CLASS}.state_dict_type"
_WHOLE = "full_state_dict=True"
_GETTERS = {"optim_state_dict": None, "full_optim_state_dict": [_WHOLE], "sharded_optim_state_dict": []}


def translate(work: Work, models: set[str], owners: Owners) -> None:
    """Replaces contexts of `state_dict_type`, calls of `state_dict` and `load_state_dict` on wrapped models, and the methods for states of
    optimizers. ``models``: the expressions that are a wrapped model somewhere in the script."""
    source = work.source
    found = [n for n in ast.walk(source.tree) if isinstance(n, (ast.With, ast.AsyncWith))]
    contexts = [n for n in found if any(_is_context(work, item) for item in n.items)]
    for context in sorted(contexts, key=lambda n: -n.col_offset):
        try:
            _context(work, context)
        except Untranslatable as reason:
            work.block(reason)
    for call in [n for n in ast.walk(source.tree) if isinstance(n, ast.Call)]:
        try:
            if not work.edits.covers(call):
                _call(work, call, owners.is_model, [_WHOLE]) or _unsure(work, call, models, owners)
        except Untranslatable as reason:
            work.block(reason)


def _unsure(work: Work, call: ast.Call, models: set[str], owners: Owners) -> None:
    """Notes a state dict of a variable that is a model of FSDP in some places, or may be one."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in ("state_dict", "load_state_dict")):
        return
    kind, code = owners.outer_kind(call.func.value), work.source.code(call.func.value)
    if kind == MIXED or (kind == UNKNOWN and code.removesuffix(".module") in models):
        work.note(
            call,
            "state-dict",
            f"{code} may be a model of FSDP, or another object: this line stays",
            f"for a model of FSDP call get_model_state_dict or set_model_state_dict of {STATE_DICT}",
            "by hand",
        )


def _is_context(work: Work, item: ast.withitem) -> bool:
    return isinstance(item.context_expr, ast.Call) and work.source.name_of(item.context_expr.func) == _CONTEXT


def _context(work: Work, context: ast.With) -> None:
    source = work.source
    call = context.items[0].context_expr
    if len(context.items) > 1 or not source.alone(context):
        raise Untranslatable(context, "state-dict", "state_dict_type among other contexts", "give it a with statement of its own")
    given = dict(zip(("module", "state_dict_type", "state_dict_config", "optim_state_dict_config"), call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords}
    options = _options(work, call, given)
    model = source.code(given["module"]) if "module" in given else ""
    work.shift = len(source.indent(context.body[0]) or "") - len(source.indent(context)) if source.indent(context.body[0]) else 0
    inner = [n for n in ast.walk(context) if isinstance(n, ast.Call) and n is not call and not work.edits.covers(n)]
    found = [_call(work, c, lambda n: source.code(n) in (model, f"{model}.module"), options) for c in inner]
    work.shift = 0
    if not any(found):
        raise Untranslatable(
            context,
            "state-dict",
            "no state dict is read or written inside this block itself",
            f"call get_model_state_dict or set_model_state_dict of {STATE_DICT} where it happens, with StateDictOptions",
        )
    for node in given.values():
        work.consume(node)
    _guard(work, context)
    _unwrap(work, context)


def _options(work: Work, call: ast.Call, given: dict[str, ast.expr]) -> list[str]:
    if "state_dict_type" not in given:
        raise Untranslatable(call, "state-dict", "this context has no type", "pass a StateDictType")
    kind = work.source.name_of(work.value(given["state_dict_type"]))
    if kind.startswith(f"{_CLASS}.StateDictType."):
        work.note(call, "no-such-name", "FSDP.StateDictType does not exist", "taken as torch.distributed.fsdp.StateDictType")
    kind = kind.rpartition(".")[2]
    if kind not in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        raise Untranslatable(
            call, "state-dict", f"{kind or 'this type'} has no counterpart", "use SHARDED_STATE_DICT, whose values are this rank's rows"
        )
    config = work.value(given["state_dict_config"]) if "state_dict_config" in given else None
    flags = {}
    if isinstance(config, ast.Call):
        flags = dict(zip(("offload_to_cpu", "rank0_only"), config.args, strict=False)) | {k.arg: k.value for k in config.keywords}
    elif config is not None and not (isinstance(config, ast.Constant) and config.value is None):
        raise Untranslatable(config, "state-dict", "this configuration is not understood", "pass a call of FullStateDictConfig")
    on = {name for name, node in flags.items() if not (isinstance(node, ast.Constant) and not node.value)}
    if kind == "SHARDED_STATE_DICT":
        if "rank0_only" in flags:
            work.note(config, "no-such-argument", "ShardedStateDictConfig has no rank0_only", "left out: each rank has its own rows")
        return ["cpu_offload=True"] if "offload_to_cpu" in on else []
    if len(on & {"offload_to_cpu", "rank0_only"}) == 1:
        work.note(
            config, "rank-zero-only", "with cpu_offload=True only rank 0 gets the values", "call it so where other ranks read them, too"
        )
    return [_WHOLE, *(["cpu_offload=True"] if on & {"offload_to_cpu", "rank0_only"} else [])]


def _guard(work: Work, node: ast.stmt) -> None:
    """Notes a collective that rank 0 alone would enter."""
    for test in work.source.within(node, ast.If):
        code = work.source.code(test.test)
        if "rank" in code and "0" in code and node not in ast.walk(ast.Module(test.orelse, [])):
            work.note(
                node,
                "rank-zero-collective",
                f"all ranks have to take part in this, and `if {code}:` lets only one in: it waits for the others without end",
                "move it out of the condition; write the file inside",
                "by hand",
            )
            return


def _unwrap(work: Work, context: ast.With) -> None:
    """Takes the with statement away from around its body."""
    source = work.source
    first, outer = context.body[0], source.indent(context)
    begin = source.span(context)[0]
    inner = source.indent(first)
    if inner is None:
        work.edits.replace((begin, source.span(first)[0]), "")
        return
    comments = work.comments_in(context.items[0].context_expr)
    work.edits.replace((source.line_start(context.lineno), source.line_start(context.body[0].lineno)), _kept(work, context, comments))
    strings = [n for n in ast.walk(context) if isinstance(n, (ast.Constant, ast.JoinedStr)) and n.end_lineno > n.lineno]
    for line in range(first.lineno, context.end_lineno + 1):
        start = source.line_start(line)
        text = any(s.lineno < line <= s.end_lineno for s in strings)
        if source.text.startswith(inner, start) and not text and not work.edits.covers_position(start):
            work.edits.replace((start, start + len(inner) - len(outer)), "")


def _kept(work: Work, context: ast.With, comments: list[str]) -> str:
    """Returns the comments between the with statement and its body, at its indentation."""
    begin = work.source.span(context.items[0].context_expr)[1]
    end = work.source.line_start(context.body[0].lineno)
    comments = [*comments, *(text for at, text in work.source.comments if begin <= at < end)]
    return "".join(f"{work.source.indent(context)}{c}{work.source.newline}" for c in comments)


def _call(work: Work, call: ast.Call, is_model: Callable[[ast.expr], bool], options: list[str]) -> bool:
    """Replaces a call that gets or loads a state dict. Returns True if it was one."""
    source, name = work.source, work.source.name_of(call.func)
    if name.startswith(_CLASS + "."):
        return _method(work, call, name.rpartition(".")[2], options)
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in ("state_dict", "load_state_dict")):
        return False
    if not is_model(call.func.value):
        return False
    model = work.edits.code(call.func.value)
    if call.func.attr == "load_state_dict":
        if len(call.args) != 1 or call.keywords:
            raise Untranslatable(call, "state-dict", "further arguments of load_state_dict are not translated", "leave them out")
        whole = [o for o in options if o == _WHOLE]
        _set(work, call, "set_model_state_dict", [model, work.edits.code(call.args[0])], whole)
        return True
    if call.args or call.keywords:
        work.note(
            call,
            "no-such-argument",
            "state_dict has no arguments for its type: that is chosen by FSDP.state_dict_type",
            "taken as a whole state dict in rank 0's memory",
        )
        options = [_WHOLE, "cpu_offload=True"]
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            work.consume(argument)
    _guard(work, source.statement_of(call))
    _set(work, call, "get_model_state_dict", [model], options)
    return True


def _set(work: Work, call: ast.AST, function: str, words: list[str], options: list[str]) -> None:
    if options:
        words = [*words, f"options={work.need(STATE_DICT, 'StateDictOptions')}({', '.join(options)})"]
    work.replace_call(call, work.need(STATE_DICT, function), words)


def _method(work: Work, call: ast.Call, method: str, options: list[str]) -> bool:
    if method in _GETTERS:
        given = dict(zip(("model", "optim"), call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
        if set(given) == {"model", "optim"}:
            chosen = _GETTERS[method]
            words = [work.edits.code(given["model"]), work.edits.code(given["optim"])]
            _guard(work, work.source.statement_of(call))
            _set(work, call, "get_optimizer_state_dict", words, options if chosen is None else chosen)
            return True
    elif method == "optim_state_dict_to_load":
        return _load_optimizer(work, call, options)
    return False


def _load_optimizer(work: Work, call: ast.Call, options: list[str]) -> bool:
    """Replaces both `x = FSDP.optim_state_dict_to_load(..)` and the `optimizer.load_state_dict(x)` behind it, also where one call contains
    the other."""
    source = work.source
    given = dict(zip(("model", "optim", "optim_state_dict"), call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    trouble = Untranslatable(
        call,
        "optimizer-state",
        "no optimizer.load_state_dict of this value follows in the same block",
        f"call set_optimizer_state_dict of {STATE_DICT} in place of both",
    )
    if set(given) != {"model", "optim", "optim_state_dict"}:
        raise trouble
    words = [work.edits.code(given[name]) for name in ("model", "optim", "optim_state_dict")]
    options = [o for o in options if o == _WHOLE]
    outer, statement = source.parents[call], source.statement_of(call)
    if isinstance(outer, ast.Call) and outer.args == [call] and source.code(outer.func) == f"{words[1]}.load_state_dict":
        _set(work, outer, "set_optimizer_state_dict", words, options)
        return True
    if not (isinstance(statement, ast.Assign) and statement.value is call and isinstance(statement.targets[0], ast.Name)):
        raise trouble
    scope = source.scope_of(call)
    wanted = f"{words[1]}.load_state_dict({statement.targets[0].id})"
    block = source.block_of(statement)
    load = next((s for s in block[block.index(statement) :] if source.code(s) == wanted), None)
    reads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == statement.targets[0].id and isinstance(n.ctx, ast.Load)]
    if load is None or len(reads) != 1 or not isinstance(scope, (*Function.__args__, ast.Module)):
        raise trouble
    _set(work, call, "set_optimizer_state_dict", words, options)
    work.edits.replace(source.span(statement), work.edits.code(call))
    work.remove(load)
    return True
