"""Imports the installed package with the Python that runs this: each module for which the environment has what it needs.

Modules that need torch cannot be imported here. In all files, theirs included, each name imported from Python's own library is looked up.
"""

import ast
import importlib.util
import pkgutil
import sys
from pathlib import Path

import shoal

NEWER = {"tomllib"}  # modules of Pythons later than the oldest supported one
OWN = set(sys.stdlib_module_names) | NEWER


def stdlib_names(file: Path):
    """The names that a file imports from Python's library, as (module, name or None)."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.module, alias.name) for alias in node.names)


def exists(module: str, name: str | None) -> bool:
    try:
        found = importlib.import_module(module)
        return name is None or hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None
    except ImportError:
        return False


package = Path(shoal.__file__).parent
absent = {
    f"{file.relative_to(package)}: {module}{'.' + name if name else ''}"
    for file in package.rglob("*.py")
    for module, name in stdlib_names(file)
    if module.partition(".")[0] in OWN and not exists(module, name)
}
if absent:
    sys.exit(f"Python {sys.version.split()[0]} lacks what the package imports: {sorted(absent)}")

imported, extras = 0, set()
for module in pkgutil.walk_packages(shoal.__path__, "shoal.", onerror=lambda name: None):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        imported += 1
    except ModuleNotFoundError as error:
        extras.add(error.name.partition(".")[0])
if extras & (OWN | {"shoal"}) or imported < 100:
    sys.exit(f"{imported} modules of the package can be imported; these were not found: {sorted(extras)}")
print(f"{imported} modules imported, the others need {sorted(extras)}")
