"""Translates FSDP1's auto-wrap policies into loops over the modules that become units."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from shoal._scripts.work import Untranslatable, Work

_SIZE = ("fsdp:size_based_auto_wrap_policy", "fsdp:default_auto_wrap_policy")
_CLASSES = "fsdp:transformer_auto_wrap_policy"
_LAMBDA = "fsdp:lambda_auto_wrap_policy"
_DEFAULT_SIZE = {_SIZE[0]: "int(1e8)", _SIZE[1]: "100_000"}

_UNITS_BY_SIZE = '''def {name}(model, min_num_params):
    """Returns the modules that FSDP1's size_based_auto_wrap_policy chooses, innermost first."""
    units = []

    def visit(module):
        """Returns how many parameters the units in this module have."""
        numel = sum(p.numel() for p in module.parameters())
        if numel < min_num_params or isinstance(module, {torch}.nn.MultiheadAttention):
            return 0
        inside = sum(visit(child) for child in module.children())
        if module is model or numel - inside < min_num_params or isinstance(module, ({torch}.nn.ModuleList, {torch}.nn.ModuleDict)):
            return inside
        units.append(module)
        return numel

    visit(model)
    return units
'''


@dataclass(frozen=True)
class Policy:
    """The choice of the modules that become units. ``function``: code of a function that returns a model's units, innermost first. For a
    loop over the units, ``call(model)`` is code for all of them, or ``condition(module)`` is code that tests one module."""

    function: str
    call: Callable[[str], str] | None = None
    condition: Callable[[str], str] | None = None

    def loop(self, model: str, unit: str) -> list[str]:
        """Returns the lines before the body of a loop over the units."""
        if self.condition is None:
            return [f"for {unit} in {self.call(model)}:"]
        return [
            f"for {unit} in reversed(list({model}.modules())):  # innermost first",
            f"    if {unit} is not {model} and {self.condition(unit)}:",
        ]


def translate(work: Work, node: ast.expr) -> Policy | None:
    """Returns the policy that an expression means, None for none. Raises Untranslatable."""
    given = work.value(node)
    if isinstance(given, ast.Constant) and given.value is None:
        return None
    call = given if isinstance(given, ast.Call) else None
    name = work.source.name_of(call.func if call else given)
    arguments = list(call.args) if call else []
    keywords = {k.arg: k.value for k in call.keywords} if call else {}
    if name == "functools.partial":
        name = work.source.name_of(arguments.pop(0)) if arguments else ""
    elif call and name in (_CLASSES, _LAMBDA, *_SIZE):
        work.note(call, "policy-is-called", f"{name[5:]} is called here, and its result is no policy", "functools.partial was meant")
    policy = _policy(work, name, arguments, keywords, given)
    if policy is None:
        raise Untranslatable(
            node,
            "auto-wrap-policy",
            f"{work.source.code(node)}: this policy is not understood",
            "call fully_shard on each module that it selects, innermost first, then on the model",
        )
    work.consume(node)
    return policy


def _policy(work: Work, name: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr], given: ast.expr) -> Policy | None:
    if name in _SIZE and not arguments and set(keywords) <= {"min_num_params"}:
        if name == _SIZE[1]:
            work.note(given, "former-name", "default_auto_wrap_policy is no name of torch.distributed.fsdp", "taken as 100,000 parameters")
        size = work.edits.code(keywords["min_num_params"]) if keywords else _DEFAULT_SIZE[name]
        helper = next((h for h in work.helpers if h.startswith("units_by_size")), None) or work.source.unused_name("units_by_size")
        work.helpers[helper] = _UNITS_BY_SIZE.format(name=helper, torch=work.need("", "torch"))
        return Policy(f"functools.partial({helper}, min_num_params={size})", lambda model: f"{helper}({model}, min_num_params={size})")
    classes = keywords.get("transformer_layer_cls") if name == _CLASSES else None
    if name == "fsdp:ModuleWrapPolicy" and len(arguments) + len(keywords) == 1:
        classes = arguments[0] if arguments else keywords.get("module_classes")
    if classes is not None:
        kinds = _classes(work, classes)
        return _by_condition(lambda unit: f"isinstance({unit}, {kinds})")
    if name == _LAMBDA and set(keywords) == {"lambda_fn"}:
        function = work.edits.code(keywords["lambda_fn"])
        function = f"({function})" if isinstance(keywords["lambda_fn"], ast.Lambda) else function
        return _by_condition(lambda unit: f"{function}({unit})")
    return None


def _by_condition(condition: Callable[[str], str]) -> Policy:
    return Policy(f"lambda model: [m for m in reversed(list(model.modules())) if {condition('m')}]", condition=condition)


def _classes(work: Work, node: ast.expr) -> str:
    given = node
    while isinstance(given, ast.Name) and (assign := work.source.binding(given)) and _one_use(work, assign):
        given = assign.value
    literal = isinstance(given, (ast.Set, ast.List, ast.Tuple)) and given.elts
    if literal and not any(isinstance(e, ast.Starred) for e in given.elts):
        work.consume(node)
        names = [work.edits.code(e) for e in given.elts]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"tuple({work.edits.code(node)})"


def _one_use(work: Work, assign: ast.Assign) -> bool:
    """True if a variable is read once: nothing then changes its value in between."""
    name, scope = assign.targets[0].id, work.source.scope_of(assign)
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(scope)) == 1
