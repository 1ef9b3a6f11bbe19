"""``shoal migrate`` and ``shoal check``: read training scripts, without importing them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from shoal._core.command import print_error, run_command
from shoal._printable import printable_lines, say
from shoal._scripts.check import RULES, check, shards_anything
from shoal._scripts.migrate import migrate
from shoal._scripts.source import Note, Source
from shoal.exceptions import InvalidArgument, ShoalError

_OK, _FOUND, _USAGE = 0, 1, 2


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    try:
        return options.run(options)
    except ShoalError as error:
        print_error(error, options.json)
        return _USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shoal", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    rewriting = verbs.add_parser("migrate")
    rewriting.add_argument("script")
    rewriting.add_argument("--to", choices=("shoal", "fsdp2", "fsdp1"), default="shoal")
    rewriting.add_argument("--write", action="store_true")
    checking = verbs.add_parser("check")
    checking.add_argument("script")
    checking.add_argument("--ignore", action="append", default=[], choices=RULES)
    for verb, run in ((rewriting, _migrate), (checking, _check)):
        verb.add_argument("--json", action="store_true")
        verb.set_defaults(run=run)
    return parser


def _migrate(options: argparse.Namespace) -> int:
    """Prints the diff; returns 1 if something is left to do by hand."""
    migration = migrate(Source.read(options.script), options.to)
    changed = migration.text != migration.source.text
    if options.write and changed:
        _write(Path(options.script), migration.text.encode(migration.source.encoding))
    if options.json:
        facts = {"script": options.script, "result": migration.result, "changed": changed, "written": options.write and changed}
        print(json.dumps({"schema": "shoal.migrate/1", **facts, "diff": migration.diff(), "notes": [asdict(n) for n in migration.notes]}))
    else:
        diff = migration.diff()
        sys.stdout.reconfigure(encoding=migration.source.encoding, newline="")
        print(printable_lines(diff) if sys.stdout.isatty() else diff, end="", flush=True)  # a file gets what `patch` can apply
        for note in migration.notes:
            say(_text(options.script, note))
        say(f"shoal migrate: {_summary(options, migration.result, changed)}")
    return _FOUND if any(n.level == "by hand" for n in migration.notes) else _OK


def _summary(options: argparse.Namespace, result: str, changed: bool) -> str:
    if not changed:
        return f"{options.script} stays as it is"
    state = "is changed" if options.write else "would be changed; --write does it"
    kept = "; FSDP1's class stays, on Shoal's engine" if result == "shoal.fsdp1" and options.to == "shoal" else ""
    return f"{options.script} {state}. It then uses {result}{kept}"


def _check(options: argparse.Namespace) -> int:
    source = Source.read(options.script)
    found = [n for n in check(source) if n.rule not in options.ignore]
    if options.json:
        facts = {"script": options.script, "shards": shards_anything(source), "rules": RULES}
        print(json.dumps({"schema": "shoal.check/1", **facts, "findings": [asdict(n) for n in found]}))
        return _FOUND if found else _OK
    for note in found:
        say(_text(options.script, note), sys.stdout)
    if not shards_anything(source):
        say(f"shoal check: {options.script} calls neither fully_shard nor FSDP, so there is nothing to check")
    else:
        say(f"shoal check: {len(found)} findings in {options.script}")
    return _FOUND if found else _OK


def _text(script: str, note: Note) -> str:
    level = "" if note.level == "practice" else f" ({note.level})"
    return f"{script}:{note.line}: {note.rule}{level}: {note.message}\n    {note.code}\n    do: {note.hint}"


def _write(path: Path, data: bytes) -> None:
    """Replaces a file atomically, with the same permissions. A symbolic link stays, and the file behind it is replaced."""
    path = path.resolve()
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
            new.write(data)
        os.chmod(new.name, path.stat().st_mode & 0o7777)
        os.replace(new.name, path)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}", hint="the file is as it was") from None


if __name__ == "__main__":
    run_command(main)
