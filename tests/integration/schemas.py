"""docs/schemas, for the output of commands with --json."""

import copy
import json
from pathlib import Path

import jsonschema
import referencing

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def strict(schema):
    """The schema with all objects closed that list their keys and say nothing about others."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: value if key in ("const", "enum", "required") else strict(value) for key, value in schema.items()}
    if out.get("type") == "object" and "properties" in out:
        out.setdefault("additionalProperties", False)
    return out


REGISTRY = referencing.Registry().with_resources(
    [(schema["$id"], referencing.Resource.from_contents(strict(copy.deepcopy(schema)))) for schema in SCHEMAS.values()]
)


def check(name, said):
    validator = jsonschema.Draft202012Validator(strict(SCHEMAS[name]), registry=REGISTRY)
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(said)]
    assert not problems, (problems, said)
    return said
