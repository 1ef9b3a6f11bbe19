"""``shoal checkpoint``: lists, verifies, converts and compares checkpoints."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import Any

from shoal._core.command import print_error, run_command
from shoal._printable import printable
from shoal.checkpoint._export import MAX_SHARD_BYTES, export
from shoal.checkpoint._inspect import diff, verify
from shoal.checkpoint._keeping import Checkpoints
from shoal.checkpoint._manifest import Manifest, Tensor
from shoal.checkpoint._other.formats import open_checkpoint
from shoal.exceptions import InvalidArgument, ShoalError

_OK, _FAILED, _USAGE = 0, 1, 2
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    try:
        return options.run(options)
    except ShoalError as error:
        print_error(error, options.json)
        return _USAGE if isinstance(error, InvalidArgument) else _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shoal checkpoint", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for run, paths in ((_ls, ["path"]), (_verify, ["path"]), (_export, ["source", "target"]), (_diff, ["first", "second"])):
        verb = verbs.add_parser(run.__name__.lstrip("_"), help=run.__doc__)
        for path in paths:
            verb.add_argument(path)
        verb.add_argument("--json", action="store_true")
        verb.set_defaults(run=run)
        if run is _export:
            verb.add_argument("--format", default="hf", choices=("hf", "dcp", "shoal"))
            verb.add_argument("--prefix", default="")
            verb.add_argument("--max-shard-size", default=str(MAX_SHARD_BYTES))
    return parser


def _ls(options: argparse.Namespace) -> int:
    """the tensors of a checkpoint, or the checkpoints of a run"""
    steps = Checkpoints(options.path).steps()
    if steps:
        return _ls_steps(options, steps)
    _, manifest = open_checkpoint(options.path)
    rows = [_row(name, t) for name, t in manifest.all_tensors()]
    total = sum(r["bytes"] for r in rows)
    if options.json:
        facts = {"format": manifest.format, "world_size": manifest.world_size, "optimizer": manifest.optimizer, "state": manifest.state}
        _print_json("ls", **facts, **manifest.info, bytes=total, tensors=rows)
        return _OK
    _print_table([["tensor", "dtype", "shape", "sharding", "pieces", "bytes"], *([str(v) for v in r.values()] for r in rows)])
    _print(f"{len(rows)} tensors, {total:,} bytes, {manifest.format}{_origin(manifest)}")
    return _OK


def _origin(manifest: Manifest) -> str:
    facts = [f"saved by {manifest.world_size} ranks"] if manifest.world_size > 1 else []
    facts += [manifest.optimizer] if manifest.optimizer else []
    facts += [f"state: {', '.join(manifest.state)}"] if manifest.state else []
    return "".join(f"; {f}" for f in facts)


def _row(name: str, t: Tensor) -> dict[str, Any]:
    return {"name": name, "dtype": t.dtype, "shape": list(t.shape), "sharding": t.sharding, "pieces": len(t.pieces), "bytes": t.num_bytes}


def _ls_steps(options: argparse.Namespace, steps: list[int]) -> int:
    rows = []
    for step in steps:
        manifest = open_checkpoint(Checkpoints(options.path).path(step))[1]
        size = sum(f.num_bytes for f in manifest.files.values())
        rows.append({"step": step, "bytes": size, "world_size": manifest.world_size, "metrics": manifest.info.get("metrics", {})})
    if options.json:
        _print_json("ls", steps=rows)
        return _OK
    metrics = [" ".join(f"{k}={v:g}" for k, v in r["metrics"].items()) for r in rows]
    _print_table(
        [
            ["step", "bytes", "ranks", "metrics"],
            *([str(r["step"]), f"{r['bytes']:,}", str(r["world_size"]), m] for r, m in zip(rows, metrics, strict=True)),
        ]
    )
    return _OK


def _verify(options: argparse.Namespace) -> int:
    """reads every byte and compares it with its hash"""
    found = verify(options.path)
    if options.json:
        _print_json("verify", **asdict(found), sound=not found.problems)
    elif found.problems:
        for problem in found.problems:
            _print(problem)
    else:
        how = "every byte has its hash" if found.hashed else "no byte is missing (this format has no hashes)"
        _print(f"{options.path} is sound: {found.num_tensors} tensors, {found.num_bytes:,} bytes; {how}.")
    return _FAILED if found.problems else _OK


def _export(options: argparse.Namespace) -> int:
    """converts a checkpoint to Hugging Face's safetensors (hf), torch.distributed.checkpoint (dcp) or one rank (shoal)"""
    size = _bytes(options.max_shard_size)
    left_out = export(options.source, options.target, options.format, prefix=options.prefix, max_shard_bytes=size)
    if options.json:
        _print_json("export", target=options.target, format=options.format, left_out=left_out)
    else:
        _print(f"{options.target} holds {options.source} as {options.format}.")
        if left_out:
            _print(f"Loads of {options.target} lack {' and '.join(left_out)} of {options.source}.")
    return _OK


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([A-Za-z]*)", text)
    number, unit = (match[1], match[2].upper()) if match else ("0", "")
    if unit not in _UNITS or not int(number):
        raise InvalidArgument(f"--max-shard-size {text} is no size", hint="such as 5GB or 500MiB")
    return int(number) * _UNITS[unit]


def _diff(options: argparse.Namespace) -> int:
    """the tensors and values in which two checkpoints differ; exit code 1 if any"""
    found = diff(options.first, options.second)
    if options.json:
        _print_json("diff", differences=[asdict(d) for d in found])
    for d in [] if options.json else found:
        if d.largest is not None:
            _print(f"{d.name}: elements differ by up to {d.largest:g}")
        elif d.what in ("extra", "missing"):
            _print(f"{d.name}: only in {options.first if d.what == 'extra' else options.second}")
        else:
            _print(f"{d.name}: {d.what} {d.first} there, {d.second} here")
    if not found and not options.json:
        print("no difference")
    return _FAILED if found else _OK


def _print_json(verb: str, **facts: Any) -> None:
    print(json.dumps({"schema": f"shoal.checkpoint.{verb}/1", **facts}))


def _print(line: str) -> None:
    print(printable(line))


def _print_table(rows: list[list[str]]) -> None:
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    run_command(main)
