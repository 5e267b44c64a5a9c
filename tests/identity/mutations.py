"""Changed programs: each constant, operator, name, option, base and decorator of a module in turn.

Every mutation is one that a person could have written, and none makes numbers so much larger that a run could not end
or not fit: nothing turns into a power, a shift to the left or a product of sizes.
"""

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

NOT_PROGRAM = frozenset({"examples"})  # makes arguments, which are no part of what is computed

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
    ast.UAdd: ast.USub,
}
_BUILTINS = {
    "min": "max",
    "max": "min",
    "sum": "max",
    "any": "all",
    "all": "any",
    "int": "float",
    "float": "int",
    "abs": "float",
    "list": "tuple",
    "tuple": "list",
    "sorted": "list",
    "set": "list",
    "frozenset": "list",
    "len": "sum",
    "map": "filter",
    "zip": "map",
    "enumerate": "zip",
    "isinstance": "issubclass",
    "round": "int",
    "dict": "list",
    "str": "repr",
    "range": "reversed",
}
_LIBRARY = {"floor": "ceil", "maximum": "minimum", "minimum": "maximum", "sin": "cos", "cos": "sin", "lower": "upper"}


@dataclass(frozen=True)
class Mutation:
    """One change of one module: what it is in words, and the source after it.

    scope: the line of the innermost function around it, 0 where it runs with the import.
    """

    module: str
    kind: str
    line: int
    words: str
    scope: int
    source: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} {self.kind}: {self.words}"


def mutations(module: str, source: str, keep: Callable[[int], bool] = lambda number: True) -> Iterator[Mutation]:
    """All mutations of a source that `ast.unparse` has written; `keep` picks them by their number."""
    tree = ast.parse(source)
    for number, edit in enumerate(_Edits(tree).found):
        if not keep(number):
            continue
        before, after = _short(edit.node), edit.apply()
        changed = ast.unparse(tree) + "\n"
        if changed != source:
            yield Mutation(module, edit.kind, edit.line, f"{before} -> {_short(after)}", edit.scope, changed)
        edit.undo()


def _short(node: Any) -> str:
    words = "nothing" if node is None else ast.unparse(node) if isinstance(node, ast.AST) else str(node)
    return words.splitlines()[0][:60] if words else type(node).__name__.lower()


class _Edit:
    """A field of a node, and what stands there instead."""

    def __init__(self, kind: str, node: ast.AST, scope: int, line: int, values: dict[str, Any]) -> None:
        self.kind, self.node, self.scope, self.line, self._values = kind, node, scope, line, values
        self._before: dict[str, Any] = {}

    def apply(self) -> ast.AST:
        for field, value in self._values.items():
            self._before[field] = getattr(self.node, field)
            setattr(self.node, field, value)
        return self.node

    def undo(self) -> None:
        for field, value in self._before.items():
            setattr(self.node, field, value)


class _Edits(ast.NodeVisitor):
    """Walks a module with its scopes, and collects what can be changed."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[_Edit] = []
        self._scope = 0
        self._line = 0
        self._locals: list[list[str]] = []
        self._kinds = _kinds_of_globals(tree)
        self._attributes = _attributes_by_base(tree)
        for statement in tree.body:
            self.visit(statement)

    def _add(self, kind: str, node: ast.AST, **values: Any) -> None:
        self.found.append(_Edit(kind, node, self._scope, getattr(node, "lineno", self._line), values))

    def visit(self, node: ast.AST) -> None:
        self._line = getattr(node, "lineno", self._line)
        super().visit(node)

    def _visit_all(self, nodes: Any) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _body(self, statements: list[ast.stmt]) -> None:
        for at, statement in enumerate(statements):
            if at == 0 and _is_docstring(statement):
                continue
            self.visit(statement)

    def visit_Import(self, node: ast.Import) -> None:
        """Other modules are other programs."""

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in NOT_PROGRAM and not self._scope:
            return
        for at, decorator in enumerate(node.decorator_list):
            self._add("decorator", node, decorator_list=_without(node.decorator_list, at))
            self.visit(decorator)
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        self._inside(first, _names_bound(node), lambda: self._body(node.body))

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        self._inside(node.lineno, _parameters(node.args), lambda: self.visit(node.body))

    def _inside(self, scope: int, names: list[str], visit: Callable[[], None]) -> None:
        outer, self._scope = self._scope, scope
        self._locals.append(names)
        visit()
        self._locals.pop()
        self._scope = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for field in ("bases", "keywords", "decorator_list"):
            for at, inner in enumerate(getattr(node, field)):
                self._add(field.rstrip("s"), node, **{field: _without(getattr(node, field), at)})
                self.visit(inner)
        body = node.body
        for at in range(len(body) - 1):
            if isinstance(body[at], (ast.Assign, ast.AnnAssign)) and type(body[at]) is type(body[at + 1]):
                self._add("order", node, body=_swapped(body, at))
        self._body(body)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if self._scope:
            self._add("statement", node, value=ast.Constant(None))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = _other_constant(node.value)
        if value is not node.value:
            self._add("constant", node, value=value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for at, part in enumerate(node.values):
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)
            else:
                self._add("constant", node, values=_without(node.values, at))

    def visit_BinOp(self, node: Any) -> None:
        other = _OPERATORS.get(type(node.op))
        if other is not None:
            self._add("operator", node, op=other())
        self.generic_visit(node)

    visit_AugAssign = visit_BoolOp = visit_BinOp  # noqa: N815

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("operator", node, operand=ast.UnaryOp(ast.Not(), node.operand))
        elif type(node.op) in _OPERATORS:
            self._add("operator", node, op=_OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            self._add("operator", node, ops=[*node.ops[:at], _OPERATORS[type(operator)](), *node.ops[at + 1 :]])
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add("operator", node, body=node.orelse, orelse=node.body)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for at in range(len(node.keywords)):
            self._add("keyword", node, keywords=_without(node.keywords, at))
        if len(node.args) > 1 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
            self._add("order", node, args=_swapped(node.args, 0))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for at in range(len(node.keys) - 1):
            self._add("order", node, keys=_swapped(node.keys, at), values=_swapped(node.values, at))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            other = self._other_name(node.id)
            if other:
                self._add("name", node, id=other)

    def _other_name(self, name: str) -> str:
        for names in reversed(self._locals):
            if name in names:
                return _next(name, [other for other in names if other not in ("self", "cls", "mcs")])
        if name in self._kinds:
            kind = self._kinds[name]
            return _next(name, [other for other in self._kinds if self._kinds[other] == kind])
        return _BUILTINS.get(name, "") if hasattr(builtins, name) else ""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            other = _LIBRARY.get(node.attr) or _next(node.attr, self._attributes[ast.dump(node.value)])
            if other:
                self._add("attribute", node, attr=other)
        self.generic_visit(node)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _without(items: list[Any], at: int) -> list[Any]:
    return [*items[:at], *items[at + 1 :]]


def _swapped(items: list[Any], at: int) -> list[Any]:
    return [*items[:at], items[at + 1], items[at], *items[at + 2 :]]


def _next(name: str, names: list[str]) -> str:
    """The one after `name` among `names`, in a circle; "" where there is no other."""
    if name not in names or len(names) < 2:
        return names[0] if names and names[0] != name else ""
    return names[(names.index(name) + 1) % len(names)]


def _other_constant(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if value is None:
        return 0
    if isinstance(value, str):
        return chr(ord(value) + 1) if len(value) == 1 else value + "_"
    if isinstance(value, bytes):
        return value + b"_"
    return value


def _parameters(arguments: ast.arguments) -> list[str]:
    given = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [one.arg for one in given if one is not None]


def _names_bound(function: ast.FunctionDef) -> list[str]:
    """Parameters and variables of a function, in the order in which they are bound."""
    names = dict.fromkeys(_parameters(function.args))
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = None
            continue
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        pending += ast.iter_child_nodes(node)
    return list(names)


def _kinds_of_globals(tree: ast.Module) -> dict[str, str]:
    """Functions, classes and variables of a module: each can stand for others of its kind."""
    kinds: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name not in NOT_PROGRAM:
            kinds[statement.name] = "function"
        elif isinstance(statement, ast.ClassDef):
            kinds[statement.name] = "class"
        elif isinstance(statement, ast.Assign):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    kinds[node.id] = "variable"
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                kinds[alias.asname or alias.name] = f"import from {statement.module}"
    return kinds


def _attributes_by_base(tree: ast.Module) -> dict[str, list[str]]:
    """Attributes that the module reads of each base, a name or a longer expression, in order."""
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            attributes = found.setdefault(ast.dump(node.value), {})
            if isinstance(node.ctx, ast.Load):
                attributes[node.attr] = None
    return {base: sorted(names) for base, names in found.items()}
