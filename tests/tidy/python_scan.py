"""Sizes of Python classes and functions, and the imports among the modules of a package."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tidy.cpp_scan import Class, Function, Scan

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def children(node: ast.AST) -> Iterator[ast.AST]:
    for block in ("body", "handlers", "cases", "orelse", "finalbody"):
        yield from getattr(node, block, ())


def statements(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All statements below a node, at any depth, each with True if a function contains it."""
    inside = inside or isinstance(node, FUNCTIONS)
    for child in children(node):
        yield child, inside
        yield from statements(child, inside)


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions to which a statement assigns."""
    found = [*getattr(node, "targets", ()), *(item.optional_vars for item in getattr(node, "items", ())), getattr(node, "target", None)]
    while found:
        target = found.pop()
        found += getattr(target, "elts", ())
        if target is not None and not isinstance(node, ast.Delete):
            yield target


def fields(node: ast.ClassDef) -> set[str]:
    """Names with an annotation in the class's body, and attributes that its methods assign to `self`."""
    names = {child.target.id for child in node.body if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)}
    for child, _ in statements(node):
        for target in targets(child):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                names.add(target.attr)
    return names


def scan(tree: ast.Module) -> Scan:
    found = Scan()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in children(node):
            name = prefix
            if isinstance(child, ast.ClassDef):
                name = f"{prefix}{child.name}."
                methods = sum(isinstance(member, FUNCTIONS) for member in child.body)
                found.classes.append(Class(name[:-1], child.lineno, methods, len(fields(child))))
            elif isinstance(child, FUNCTIONS):
                name = f"{prefix}{child.name}."
                found.functions.append(Function(name[:-1], child.lineno, child.end_lineno - child.lineno + 1))
            visit(child, name)

    visit(tree, "")
    return found


def module_name(path: str) -> str:
    """The module of a file: "shoal.fsdp" for python/shoal/fsdp/__init__.py."""
    return path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(node: ast.AST, path: str, modules: set[str]) -> set[str]:
    """Those of `modules` that an import statement in the file `path` loads by name."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & modules
    if not isinstance(node, ast.ImportFrom):
        return set()
    base = node.module or ""
    if node.level:
        parts = module_name(path).split(".")
        parts = parts[: len(parts) - node.level + path.endswith("/__init__.py")]
        base = ".".join([*parts, base] if base else parts)
    return {name if name in modules else base for name in (f"{base}.{alias.name}" for alias in node.names)} & modules


def imports(tree: ast.Module, path: str, modules: set[str]) -> Iterator[tuple[str, bool, int]]:
    """The imports of other modules in a file: name, True inside a function, line. An import for type checkers is one, and so is the name of
    a module in a function that looks modules up by their names. The package itself is always there."""
    for node, inside in statements(tree):
        for name in sorted(imported(node, path, modules) - {module_name(path)}):
            yield name, inside, node.lineno
    for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)):
        if any(isinstance(node, ast.Attribute) and ast.unparse(node) in _LOOKUPS for node in ast.walk(function)):
            for node in ast.walk(function):
                if isinstance(node, ast.Constant) and "." in str(node.value) and node.value in modules - {module_name(path)}:
                    yield node.value, False, node.lineno


_LOOKUPS = ("sys.modules", "importlib.import_module", "importlib.util.find_spec")


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one module, each sorted (Tarjan, SIAM J. Comput. 1(2), 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        path.append(module)
        for other in sorted(edges.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in path:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = path[path.index(module) :]
            del path[-len(component) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in sorted(edges):
        if module not in index:
            visit(module)
    return sorted(found)
