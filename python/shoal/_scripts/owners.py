"""Which expressions of a script are models that FSDP1 wraps, by the functions and classes that bind them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal._scripts.source import Function, Source

_CLASS = "fsdp:FullyShardedDataParallel"
_OTHERS = (".DistributedDataParallel", ".DataParallel")
MODEL, MIXED, OTHER, UNKNOWN = "model", "mixed", "other", "unknown"
_WRAPPED = ("module", "_fsdp_wrapped_module")
_MOST_ROUNDS = 8  # the longest chain of functions that pass a model on to each other

Place = tuple[ast.AST, str]  # a function, a class or the module, and the variable or attribute that it binds


class Owners:
    """Follows results of FSDP(..) through assignments, parameters and results of this file's functions."""

    def __init__(self, source: Source):
        self._source = source
        self._places: dict[ast.expr, Place | None] = {}
        self._names: dict[ast.AST, set[str]] = {}
        nodes = list(ast.walk(source.tree))
        self._calls = [n for n in nodes if isinstance(n, ast.Call)]
        self._assigns = list(self._assignments(nodes))
        self._returns = [n for n in nodes if isinstance(n, ast.Return) and n.value is not None]
        self._functions = {n.name: n for n in nodes if isinstance(n, Function) and not isinstance(source.parents[n], ast.ClassDef)}
        self._classes = {n.name: n for n in nodes if isinstance(n, ast.ClassDef)}
        self._models: dict[Place, ast.AST | None] = {}  # models, with the node that first binds each; None for a parameter
        self._mixed: set[Place] = set()
        self._builders: set[ast.AST] = set()  # functions that return a model
        self._seeds()
        for _ in range(_MOST_ROUNDS):
            before = len(self._models), len(self._builders)
            self._propagate()
            if before == (len(self._models), len(self._builders)):
                break
        self._find_mixed()

    def kind(self, node: ast.expr) -> str:
        """Returns "model" for a model of FSDP1, "mixed" where the same variable may be another object, "other", or "unknown"."""
        if isinstance(node, ast.Call):
            return MODEL if self._is_model(node) else UNKNOWN
        place = self._place(node)
        if place is None:
            return UNKNOWN
        if place in self._mixed:
            return MIXED
        if place in self._models:
            first = self._models[place]
            return MODEL if first is None or not self._precedes(node, first) else OTHER
        values = [value for target, value in self._assigns if self._place(target) == place]
        known = values and all(isinstance(v, ast.Call) and isinstance(v.func, ast.Name) and v.func.id in self._classes for v in values)
        return OTHER if known else UNKNOWN

    def outer_kind(self, node: ast.expr) -> str:
        """Returns the kind of an object; for the `.module` of an object, the kind of that object."""
        while isinstance(node, ast.Attribute) and node.attr in _WRAPPED:
            node = node.value
        return self.kind(node)

    def is_model(self, node: ast.expr) -> bool:
        """True for a model, and for the module inside it."""
        return self.outer_kind(node) == MODEL

    def _assignments(self, nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield target, node.value
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                yield node.target, node.value

    def _place(self, node: ast.expr) -> Place | None:
        """Returns what binds an expression: the function or module of a variable, the class of an attribute of `self`."""
        if node not in self._places:
            self._places[node] = self._find_place(node)
        place = self._places[node]
        return (self._base_with(*place), place[1]) if place and isinstance(place[0], ast.ClassDef) else place

    def _find_place(self, node: ast.expr) -> Place | None:
        source = self._source
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return None
        scope = source.scope_of(root)
        while scope is not source.tree and root.id not in self._bound(scope):
            scope = source.scope_of(scope)
        if root is not node and isinstance(source.parents.get(scope), ast.ClassDef) and scope.args.args[:1]:
            first = scope.args.args[0].arg
            if first == root.id:
                return source.parents[scope], source.code(node).removeprefix(first)
        return scope, source.code(node)

    def _base_with(self, kind: ast.ClassDef, code: str) -> ast.ClassDef:
        """Returns the class that makes the attribute ``code`` of `self` a model: ``kind``, or a base of it in this file; else ``kind``."""
        seen = []
        while kind not in seen:
            if (kind, code) in self._models:
                return kind
            seen.append(kind)
            kind = next((self._classes[b.id] for b in kind.bases if isinstance(b, ast.Name) and b.id in self._classes), kind)
        return seen[0]

    def _bound(self, function: ast.AST) -> set[str]:
        if function in self._names:
            return self._names[function]
        names = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        stores = (n for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
        shared = {name for n in ast.walk(function) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
        self._names[function] = names | {n.id for n in stores if self._source.scope_of(n) is function} - shared
        return self._names[function]

    def _is_model(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            if self._source.name_of(node.func) == _CLASS:
                return True
            function = self._callee(node)
            return function is not None and function in self._builders
        if isinstance(node, ast.IfExp):
            return self._is_model(node.body) or self._is_model(node.orelse)
        place = self._place(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        return place in self._models

    def _seeds(self) -> None:
        for node in ast.walk(self._source.tree):
            if isinstance(node, Function):
                for argument in ast.walk(node.args):
                    if isinstance(argument, ast.arg) and self._names_class(argument.annotation):
                        self._models[(node, argument.arg)] = None
        for call in self._calls:
            name = self._source.name_of(call.func)
            given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("module", "model"))]
            if name.startswith(_CLASS + ".") and given and isinstance(given[0], (ast.Name, ast.Attribute)):
                place = self._place(given[0])
                if place is not None:
                    self._models.setdefault(place, None)

    def _names_class(self, annotation: ast.expr | None) -> bool:
        return annotation is not None and any(self._source.name_of(n) == _CLASS for n in ast.walk(annotation))

    def _propagate(self) -> None:
        for target, value in self._assigns:
            place = self._place(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
            if place is not None and self._is_model(value):
                self._models.setdefault(place, target)
        for node in self._returns:
            if self._is_model(node.value):
                self._builders.add(self._source.scope_of(node))
        for call in self._calls:
            function = self._callee(call)
            for name, value in self._passed(call, function) if function is not None else ():
                if self._is_model(value):
                    self._models.setdefault((function, name), None)

    def _callee(self, call: ast.Call) -> ast.AST | None:
        """Returns the function of this file that a call runs, the __init__ of a class, or a method of `self`."""
        name, method = call.func, "__init__"
        if isinstance(name, ast.Name):
            if name.id in self._functions:
                return self._functions[name.id]
            kind = self._classes.get(name.id)
        elif isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name):
            scope = self._source.scope_of(call)
            kind, method = self._source.parents.get(scope), name.attr
            if not (isinstance(kind, ast.ClassDef) and scope.args.args[:1] and scope.args.args[0].arg == name.value.id):
                return None
        else:
            return None
        found = (n for n in getattr(kind, "body", ()) if isinstance(n, Function) and n.name == method)
        return next(found, None)

    def _passed(self, call: ast.Call, function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        static = any(self._source.code(d) == "staticmethod" for d in function.decorator_list)
        if isinstance(self._source.parents[function], ast.ClassDef) and not static:
            names = names[1:]
        yield from zip(names, call.args, strict=False)
        yield from ((k.arg, k.value) for k in call.keywords if k.arg in names)

    def _find_mixed(self) -> None:
        """Finds variables that are models in one place, and something else in another."""
        for target, value in self._assigns:
            place = self._place(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
            if place in self._models and isinstance(value, ast.IfExp) and not (self._is_model(value.body) and self._is_model(value.orelse)):
                self._mixed.add(place)
            if place not in self._models or self._is_model(value):
                continue
            ddp = isinstance(value, ast.Call) and self._source.name_of(value.func).endswith(_OTHERS)
            first = self._models[place]
            later = first is not None and not self._precedes(target, first) and self._source.code(target) not in self._source.code(value)
            if ddp or (later and not self._is_none(value)):
                self._mixed.add(place)
        for _ in range(_MOST_ROUNDS):
            before = len(self._mixed)
            for call in self._calls:
                function = self._callee(call)
                for name, value in self._passed(call, function) if function is not None else ():
                    place = (function, name)
                    if place in self._models and self.kind(value) != MODEL and not self._names_parameter_class(place):
                        self._mixed.add(place)
            for target, value in self._assigns:
                place = self._place(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
                if place in self._models and isinstance(value, (ast.Name, ast.Attribute)) and self.kind(value) == MIXED:
                    self._mixed.add(place)
            if before == len(self._mixed):
                break

    def _names_parameter_class(self, place: Place) -> bool:
        function, name = place
        return any(isinstance(a, ast.arg) and a.arg == name and self._names_class(a.annotation) for a in ast.walk(function.args))

    def _is_none(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and node.value is None

    def _precedes(self, node: ast.AST, first: ast.AST) -> bool:
        """True if ``node`` is a use that runs before ``first`` makes the model, in the same function and not in a loop around both."""
        source = self._source
        if source.scope_of(node) is not source.scope_of(first) or (node.lineno, node.col_offset) >= (first.lineno, first.col_offset):
            return False
        loops = (ast.For, ast.AsyncFor, ast.While)
        around = set(source.within(first, loops))
        return source.statement_of(node) is not source.statement_of(first) and not any(n in around for n in source.within(node, loops))
