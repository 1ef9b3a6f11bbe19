"""The Python part of ``shoal job submit``, run as ``python -m shoal._submitting``. ``yaml FILE`` prints the file as JSON. ``pack FOLDER
INTO [EXCLUDED..]`` packs a folder (or copies a .zip) and prints the package's name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from shoal._runtime_env import environment, shipping
from shoal.exceptions import ShoalError


def _as_json(file: str) -> str:
    try:
        import yaml
    except ImportError:
        sys.exit(f"{file} is not JSON, and reading it as YAML needs PyYAML: pip install pyyaml")
    try:
        with open(file) as text:
            read = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        sys.exit(f"{file}, line {at.line + 1}, column {at.column + 1}: {error.problem or error.context}" if at else f"{file}: {error}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        sys.exit(f"{file}: {error}")
    if not isinstance(read, dict):
        sys.exit(f"{file} is no runtime_env: that is a mapping of names (env_vars, working_dir, ..), not {type(read).__name__}")
    return json.dumps(read)


def _package(given: str, into: str, excludes: list[str]) -> str:
    with open(into, "w+b") as file:
        if given.endswith(".zip"):
            with open(given, "rb") as source:
                shutil.copyfileobj(source, file)
            return shipping.digest_of(file)
        return shipping.pack(environment.chosen(Path(given), excludes, "working_dir"), file)


def main() -> None:
    what, *words = sys.argv[1:]
    try:
        print(_as_json(*words) if what == "yaml" else _package(words[0], words[1], words[2:]))
    except (ShoalError, OSError, TypeError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
