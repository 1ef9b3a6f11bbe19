"""``shoal migrate``: translates a script of FSDP1 into one of FSDP2, and a script of FSDP2 into one of Shoal."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass

from shoal._scripts import check, constructor, imports, methods, mistakes, states, values
from shoal._scripts.owners import Owners
from shoal._scripts.source import Note, Source
from shoal._scripts.work import Untranslatable, Work
from shoal.exceptions import InvalidArgument

_FSDP2 = {"shoal": "shoal.fsdp", "fsdp2": "torch.distributed.fsdp"}


@dataclass(frozen=True)
class Migration:
    source: Source
    text: str  # the script afterwards
    result: str  # the module that it uses then: "shoal.fsdp", "torch.distributed.fsdp", "shoal.fsdp1", or "" if nothing was translated
    notes: list[Note]

    def diff(self) -> str:
        lines = [re.findall(r"[^\n]*\n|[^\n]+", text) for text in (self.source.text, self.text)]
        found = difflib.unified_diff(*lines, f"a/{self.source.path.lstrip('/')}", f"b/{self.source.path.lstrip('/')}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)


def migrate(source: Source, to: str = "shoal") -> Migration:
    """Translates a script ``to`` "shoal", "fsdp2" (of torch) or "fsdp1" (of Shoal: only imports change). A use of FSDP1 that FSDP2 cannot
    express keeps FSDP1's class: then only imports change, and a note says why."""
    if to == "fsdp1":
        text = imports.keep_fsdp1(source)
        return Migration(source, text, "shoal.fsdp1" if text != source.text else "", mistakes.find(source, check.sharded_models(source)))
    work = Work(source)
    uses_fsdp1 = any(imports.is_fsdp1(source.name_of(n)) for n in ast.walk(source.tree) if isinstance(n, (ast.Name, ast.Attribute)))
    models = methods.wrapped_models(work)
    wrong = mistakes.find(source, models | check.sharded_models(source)) + check.optimizers_before(source)
    if uses_fsdp1:
        _translate(work, models)
        if work.blockers:
            return _keep(source, to, work, wrong)
    _qualified(work)
    try:
        text = imports.rewrite(source, work.edits.apply(), work.needs, list(work.helpers.values()), _FSDP2[to])
        compile(text, source.path, "exec")
    except (InvalidArgument, SyntaxError, ValueError) as error:
        work.blockers.append(_no_program(source, error))
        return _keep(source, to, work, wrong)
    return Migration(source, text, _FSDP2[to] if text != source.text else "", _sorted([*work.notes, *wrong]))


def _translate(work: Work, models: set[str]) -> None:
    values.translate_constructors(work)
    inner_first = list(work.source.calls(constructor.CLASS))
    inner_first.sort(key=lambda c: -sum(1 for _ in work.source.within(c, ast.AST)))
    for call in inner_first:
        try:
            constructor.translate(work, call)
        except Untranslatable as reason:
            work.block(reason)
    owners = Owners(work.source)
    methods.translate(work, models, owners)
    states.translate(work, models, owners)
    work.drop_consumed()
    methods.report_leftovers(work)


def _no_program(source: Source, error: Exception) -> Note:
    """Returns a note that the translation is not valid Python, which is a fault of this module. Its line is the first use of FSDP."""
    uses = (n.lineno for n in ast.walk(source.tree) if isinstance(n, (ast.Name, ast.Attribute)) and source.name_of(n).startswith("fsdp:"))
    line = min(uses, default=1)
    return Note(
        line,
        "no-program",
        "by hand",
        source.line(line),
        f"the translation is no program: {str(error).rpartition('is no Python program: ')[2].splitlines()[0]}",
        "write this call on simpler lines, each argument a variable",
    )


def _keep(source: Source, to: str, work: Work, wrong: list[Note]) -> Migration:
    text = imports.keep_fsdp1(source) if to == "shoal" else source.text
    return Migration(source, text, "shoal.fsdp1" if to == "shoal" else "", _sorted([*work.blockers, *wrong]))


def _qualified(work: Work) -> None:
    """Replaces qualified names of FSDP2, such as torch.distributed.fsdp.fully_shard, by plain names with an import."""
    for node in ast.walk(work.source.tree):
        if isinstance(node, ast.Attribute):
            name = work.source.name_of(node).removeprefix("fsdp:")
            if name in imports.FSDP2_NAMES and not work.edits.covers(node):
                work.edits.replace(work.source.span(node), work.fsdp(name))


def _sorted(notes: list[Note]) -> list[Note]:
    return sorted(dict.fromkeys(notes), key=lambda n: (n.line, n.rule))
