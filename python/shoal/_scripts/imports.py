"""The imports of a translated script: names that are no longer used go, new ones come, FSDP2's come from Shoal."""

from __future__ import annotations

import ast
import re

from shoal._scripts.methods import FSDP1_NAMES
from shoal._scripts.source import Edits, Source, canonical, family_of

# FSDP2's names that shoal.fsdp has.
FSDP2_NAMES = {
    "CPUOffloadPolicy",
    "DataParallelMeshDims",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
    "share_comm_ctx",
}
_FSDP1_MODULES = {
    "torch.distributed.fsdp": "shoal.fsdp1",
    "torch.distributed.fsdp.api": "shoal.fsdp1.api",
    "torch.distributed.fsdp.wrap": "shoal.fsdp1.wrap",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "shoal.fsdp1.fully_sharded_data_parallel",
    "torch.distributed.fsdp.sharded_grad_scaler": "shoal.fsdp1.sharded_grad_scaler",
}


def used_names(tree: ast.AST) -> set[str]:
    """Names in the code, and the words of short strings, which may stand for types or exported names."""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    exported = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return found | {word for text in exported if len(text) < 200 for word in re.findall(r"\w+", text)}


def rewrite(old: Source, text: str, needs: dict[str, set[str]], helpers: list[str], fsdp: str) -> str:
    """Changes the imports of ``text``, the translated body of ``old``. FSDP2's names come from the module ``fsdp``."""
    new = Source(old.path, text)
    edits = Edits(new)
    unused = used_names(old.tree) - used_names(new.tree)
    needs = {module: set(names) for module, names in needs.items()}
    wanted = needs.pop("fsdp", set())
    place: ast.stmt | None = None
    for node in [n for n in ast.walk(new.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]:
        family = isinstance(node, ast.ImportFrom) and not node.level and family_of(node.module or "")
        kept, moved, changed = [], [], False
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            if bound in unused and bound not in needs.get("", ()):
                changed = True
            elif family and alias.name in FSDP2_NAMES and node.module != fsdp:
                changed = True
                moved.append(alias)
            else:
                kept.append(alias)
        top = node in new.tree.body
        if top:
            wanted |= {_text(alias) for alias in moved}
            moved = []
        if family and top and place is None:
            place = node
        if changed:
            _shrink(new, edits, node, kept, moved, fsdp)
    _add(new, edits, place, wanted, needs, helpers, fsdp)
    return edits.apply()


def _text(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _shrink(
    source: Source, edits: Edits, node: ast.Import | ast.ImportFrom, kept: list[ast.alias], moved: list[ast.alias], fsdp: str
) -> None:
    """Leaves ``kept`` in an import, and adds an import of ``moved`` from the module ``fsdp`` behind it. Both stay in the block of the old
    one, because a condition may be around it."""
    parts = [(node.module if isinstance(node, ast.ImportFrom) else None, kept), (fsdp, moved)]
    texts = [
        f"from {module} import {', '.join(map(_text, names))}" if module else f"import {', '.join(map(_text, names))}"
        for module, names in parts
        if names
    ]
    if texts:
        indent = source.indent(node)
        edits.replace(source.span(node), (f"{source.newline}{indent}" if indent is not None else "; ").join(texts))
    else:
        edits.remove(node)


def _add(source: Source, edits: Edits, place: ast.stmt | None, wanted: set[str], needs: dict[str, set[str]], helpers, fsdp: str) -> None:
    lines = [f"import {module}" for module in sorted(needs.pop("", set())) if not _imports(source, "", module)]
    last = _last_import(source)
    for module, names in [*sorted(needs.items()), (fsdp, wanted)]:
        names = {name for name in names if not _imports(source, module, name)}
        if names:
            lines.append(_from(module, names, source.newline))
    plain = [line for line in lines if line.startswith("import ")]
    lines = [line for line in lines if line not in plain]
    newline = source.newline
    if plain:
        first = _first_import(source)
        begin = source.line_start(first.lineno) if first else source.line_start(_top(source))
        edits.replace((begin, begin), "".join(line + newline for line in plain))
    if lines:
        at = source.line_start(place.lineno) if place else source.line_start((last.end_lineno if last else _top(source) - 1) + 1)
        edits.replace((at, at), "".join(line + newline for line in lines))
    if helpers:
        end = source.line_start((last.end_lineno if last else _top(source) - 1) + 1)
        rest = source.text[end:]
        blank = len(re.match(r"(?:[ \t]*(?:\r\n|\r|\n))*", rest)[0].splitlines())
        text = "".join(f"\n\n{helper}" for helper in helpers) + "\n" * max(0, 2 - blank)
        edits.replace((end, end), text.replace("\n", newline))


def _imports(source: Source, module: str, name: str) -> bool:
    """True if the module's own statements import a name, or "name as other"."""
    first, _, other = name.partition(" as ")
    return source.top_names.get(other or first) == (f"{module}.{first}" if module else first)


def _from(module: str, names: set[str], newline: str) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= 120:
        return line
    return f"from {module} import (" + "".join(f"{newline}    {name}," for name in sorted(names)) + f"{newline})"


def _top(source: Source) -> int:
    """Returns the line of the first statement behind the docstring."""
    body = source.tree.body
    docstring = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    after = body[1:] if docstring else body
    return after[0].lineno if after else (body[0].end_lineno + 1 if body else 1)


def _has_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom)) or (
        isinstance(node, (ast.Try, ast.If)) and isinstance(node.body[0], (ast.Import, ast.ImportFrom))
    )


def _first_import(source: Source) -> ast.stmt | None:
    found = (n for n in source.tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) and getattr(n, "module", "") != "__future__")
    return next(found, None)


def _last_import(source: Source) -> ast.stmt | None:
    found = None
    for node in source.tree.body:
        if _has_import(node):
            found = node
        elif isinstance(node, (*(ast.FunctionDef, ast.AsyncFunctionDef), ast.ClassDef)):
            break
    return found


def keep_fsdp1(source: Source) -> str:
    """Takes FSDP1's names from shoal.fsdp1, and changes nothing else."""
    edits = Edits(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module in _FSDP1_MODULES:
            theirs = [a for a in node.names if a.name in FSDP1_NAMES or a.name in ("CheckpointImpl", "checkpoint_wrapper")]
            if len(theirs) == len(node.names):
                begin = source.span(node)[0] + source.code(node).index(node.module, 5)
                edits.replace((begin, begin + len(node.module)), _FSDP1_MODULES[node.module])
            elif theirs:
                rest = [a for a in node.names if a not in theirs]
                texts = [
                    f"from {module} import " + ", ".join(map(_text, names))
                    for module, names in ((node.module, rest), (_FSDP1_MODULES[node.module], theirs))
                ]
                indent = source.indent(node)
                edits.replace(source.span(node), (f"{source.newline}{indent}" if indent is not None else "; ").join(texts))
        elif isinstance(node, ast.Import) and any(a.name in _FSDP1_MODULES and a.asname for a in node.names):
            names = [f"{_FSDP1_MODULES.get(a.name, a.name)} as {a.asname}" if a.asname else a.name for a in node.names]
            edits.replace(source.span(node), f"import {', '.join(names)}")
    return edits.apply()


def is_fsdp1(dotted: str) -> bool:
    name = canonical(dotted)
    return name.startswith("fsdp:") and name[5:].split(".")[0] in FSDP1_NAMES
