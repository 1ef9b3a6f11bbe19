"""The order in which a script shards modules and builds optimizers, found without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal._scripts.source import Function, Source

SHARDS = ("fsdp:fully_shard", "fsdp:FullyShardedDataParallel")
_PREFETCHES = ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch")
_MOST_CALLS = 12  # the most calls inside each other that are followed
_NO_OPTIMIZER = ("lr_scheduler", "clip_grad", "swa_utils")


@dataclass(frozen=True)
class Event:
    kind: str  # "shard", "optimizer", "prefetch"
    node: ast.Call
    subject: str  # the module's name; a longer name, with "." or "[" behind this one, is a module inside
    chosen: bool  # a switch of the program decides whether it happens
    parents_first: bool = False  # a loop over module.modules(), which begins with the parents
    entry: int = 0  # events in different entries, such as functions that other programs call, have no order


@dataclass
class _Frame:
    number: int
    subjects: dict[str, str] = field(default_factory=dict)  # by the code of a variable
    loop_names: set[str] = field(default_factory=set)
    parents_first: set[str] = field(default_factory=set)
    returns: str = ""


def events(source: Source) -> list[Event]:
    """Returns the events of the module's body, then of functions that nothing here calls: other programs, or mp.spawn, do."""
    walk = _Walk(source)
    walk.body(source.tree.body, _Frame(0), False)
    called = {walk.callee(n) for n in ast.walk(source.tree) if isinstance(n, ast.Call)}
    functions = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    for function in [*(f for f in functions if f not in called), *functions]:
        if function not in walk.seen:
            walk.entry += 1
            walk.call(function, [], {}, False)
    return walk.found


def inside(inner: str, outer: str) -> bool:
    return inner.startswith((outer + ".", outer + "["))


def _first_name(function: ast.AST) -> str:
    return next((a.arg for a in (*function.args.posonlyargs, *function.args.args)), "")


class _Walk:
    def __init__(self, source: Source):
        self.source = source
        functions = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
        self.functions = {n.name: n for n in functions if not isinstance(source.parents[n], ast.ClassDef)}
        self.classes = {n.name: n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)}
        self.entry = 0
        self.attributes: dict[str, str] = {}  # the modules in attributes of `self` after the last call() of this class
        self.seen: set[ast.AST] = set()
        self.found: list[Event] = []
        self._frames = 0
        self._stack: list[ast.AST] = []

    def callee(self, call: ast.Call) -> ast.AST | None:
        """Returns the function of this file that a call runs, also a method of `self`."""
        if isinstance(call.func, ast.Name):
            return self.functions.get(call.func.id)
        if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)):
            return None
        scope = self.source.scope_of(call)
        kind, seen = self.source.parents.get(scope), []
        if not isinstance(kind, ast.ClassDef) or _first_name(scope) != call.func.value.id:
            return None
        while kind is not None and kind not in seen:
            seen.append(kind)
            for node in kind.body:
                if isinstance(node, Function) and node.name == call.func.attr:
                    return node
            kind = next((self.classes[b.id] for b in kind.bases if isinstance(b, ast.Name) and b.id in self.classes), None)
        return None

    def method(self, function: ast.AST, arguments: list[str], keywords: dict[str, str], frame: _Frame, chosen: bool) -> str:
        """Walks through a method of `self`. It sees the attributes of `self` that the caller knows, and changes them for the caller."""
        own = {name: subject for name, subject in frame.subjects.items() if name.startswith("self.")}
        static = any(self.source.code(d) == "staticmethod" for d in function.decorator_list)
        first = [] if static else [frame.subjects.get("self", "")]
        returned = self.call(function, [*first, *arguments], keywords | own, chosen)
        frame.subjects |= self.attributes
        return returned

    def call(self, function: ast.AST, arguments: list[str], keywords: dict[str, str], chosen: bool) -> str:
        """Walks through a function's body. Returns the module that it returns, or ""."""
        self.attributes = {}
        if function in self._stack or len(self._stack) >= _MOST_CALLS:
            return ""
        self.seen.add(function)
        self._frames += 1
        frame = _Frame(self._frames)
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        frame.subjects = dict(zip(names, arguments, strict=False)) | keywords
        kind = self.source.parents[function]
        if isinstance(kind, ast.ClassDef) and _first_name(function) == "self" and not frame.subjects.get("self"):
            frame.subjects["self"] = f"{kind.name}:self"
        self._stack.append(function)
        self.body(function.body, frame, chosen)
        self._stack.pop()
        self.attributes = {name: subject for name, subject in frame.subjects.items() if name.startswith("self.")}
        return frame.returns

    def body(self, statements: list[ast.stmt], frame: _Frame, chosen: bool) -> None:
        for statement in statements:
            self._statement(statement, frame, chosen)

    def _statement(self, node: ast.stmt, frame: _Frame, chosen: bool) -> None:
        if isinstance(node, (*Function.__args__, ast.ClassDef)):
            if isinstance(node, ast.ClassDef):
                self.body([n for n in node.body if not isinstance(n, Function)], frame, chosen)
            return
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node, frame, chosen)
            return
        if isinstance(node, ast.If):
            self._expression(node.test, frame, chosen)
            names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
            switch = chosen or ("__name__" not in names and not names & frame.loop_names)
            self.body(node.body, frame, switch)
            self.body(node.orelse, frame, switch)
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            subject = self._expression(node.value, frame, chosen)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, (ast.Name, ast.Attribute)):
                    frame.subjects[self.source.code(target)] = subject or f"{frame.number}:{node.lineno}:{target.col_offset}"
            return
        if isinstance(node, ast.Return) and node.value is not None:
            frame.returns = self._expression(node.value, frame, chosen)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child, frame, chosen)
            elif isinstance(child, ast.ExceptHandler):
                self.body(child.body, frame, chosen)
            elif isinstance(child, ast.withitem):
                self._expression(child.context_expr, frame, chosen)
            elif isinstance(child, ast.expr):
                self._expression(child, frame, chosen)

    def _loop(self, node: ast.For, frame: _Frame, chosen: bool) -> None:
        self._expression(node.iter, frame, chosen)
        names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        before = frame.loop_names
        frame.loop_names = before | names
        if isinstance(node.target, ast.Name) and isinstance(node.iter, (ast.Tuple, ast.List)):
            for element in node.iter.elts:
                frame.subjects[node.target.id] = self._subject(element, frame)
                self.body(node.body, frame, chosen)
        else:
            whole = self._iterated(node.iter, frame)
            for name in names:
                frame.subjects[name] = f"{whole}[{name}]" if whole else f"{frame.number}:{node.lineno}:{name}"
            code = self.source.code(node.iter)
            if code.endswith((".modules()", ".named_modules()")):
                frame.parents_first |= names
            self.body(node.body, frame, chosen)
        self.body(node.orelse, frame, chosen)
        frame.loop_names = before

    def _iterated(self, node: ast.expr, frame: _Frame) -> str:
        """Returns the module that an iterable goes through, such as `model` of `reversed(list(model.modules()))`."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            node = node.args[-1] if self.source.code(node.func) not in ("enumerate", "zip") else node.args[0]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        return self._subject(node, frame)

    def _subject(self, node: ast.expr, frame: _Frame) -> str:
        """Returns the module that an expression is, or "" if that cannot be said."""
        known = frame.subjects.get(self.source.code(node))
        if known:
            return known
        if isinstance(node, ast.Name):
            return f"{frame.number if node.id in frame.subjects else 0}:{node.id}"
        if isinstance(node, ast.Attribute):
            inner = self._subject(node.value, frame)
            return f"{inner}.{node.attr}" if inner else ""
        if isinstance(node, ast.Subscript):
            inner = self._subject(node.value, frame)
            return f"{inner}[{self.source.code(node.slice)}]" if inner else ""
        return ""

    def _expression(self, node: ast.expr, frame: _Frame, chosen: bool) -> str:
        """Finds the events of an expression, those inside it first. Returns its module."""
        if not isinstance(node, ast.Call):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._expression(child, frame, chosen)
                elif isinstance(child, ast.comprehension):
                    self._expression(child.iter, frame, chosen)
            return self._subject(node, frame)
        if isinstance(node.func, ast.Attribute):
            self._expression(node.func.value, frame, chosen)
        arguments = [self._expression(a, frame, chosen) for a in node.args]
        keywords = {k.arg: self._expression(k.value, frame, chosen) for k in node.keywords if k.arg}
        return self._event(node, arguments, keywords, frame, chosen)

    def _event(self, node: ast.Call, arguments: list[str], keywords: dict[str, str], frame: _Frame, chosen: bool) -> str:
        name = self.source.name_of(node.func)
        place = f"{frame.number}:{node.lineno}:{node.col_offset}"
        if name in SHARDS:
            subject = (arguments[0] if arguments else keywords.get("module", "")) or place
            first = bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id in frame.parents_first
            self.found.append(Event("shard", node, subject, chosen, first, self.entry))
            return subject
        if name.startswith(("torch.optim.", "shoal.optim.")) and not any(part in name for part in _NO_OPTIMIZER):
            self.found += [Event("optimizer", node, s, chosen, entry=self.entry) for s in self._owners(node, frame)]
            return ""
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PREFETCHES:
            self.found.append(Event("prefetch", node, self._subject(node.func.value, frame), chosen, entry=self.entry))
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda", "cpu", "train", "eval"):
            return self._subject(node.func.value, frame)
        function = self.callee(node)
        if function is None:
            return ""
        if isinstance(node.func, ast.Attribute):
            return self.method(function, arguments, keywords, frame, chosen)
        return self.call(function, arguments, keywords, chosen)

    def _owners(self, node: ast.Call, frame: _Frame) -> Iterator[str]:
        """Yields the modules whose parameters an optimizer gets."""
        for argument in [*node.args[:1], *(k.value for k in node.keywords if k.arg == "params")]:
            for inner in ast.walk(argument):
                if isinstance(inner, ast.Attribute) and inner.attr in ("parameters", "named_parameters"):
                    yield self._subject(inner.value, frame)
