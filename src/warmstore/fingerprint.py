"""What code and values are, as texts and hashes that differ where they would make a difference.

Code is the source of functions and classes and of what they call in the same program, without comments; where no source
can be read, the bytecode. How far that reaches, and what is said of objects that are no plain data, a `Reach` says.
"""

import ast
import builtins
import dataclasses
import dis
import enum
import functools
import importlib
import inspect
import sys
import textwrap
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from warmstore.records.arrays import is_tensor, to_numpy

_PLAIN = (bool, int, float, complex, str, bytes, slice, type(None), type(...), enum.Enum, np.generic)
_DATA = (*_PLAIN, tuple, frozenset, list, dict, set, np.ndarray)
_FOREIGN = frozenset(("torch", "numpy", "einops")) | sys.stdlib_module_names
_DEPTH = 8
_MUTATORS = frozenset(
    ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)
_parsing = threading.Lock()  # Python 3.11's parser counts its depth over all threads, and fails when two parse at once


class Reach:
    """How far a fingerprint reaches: into the program's own code, and into values that are plain data.

    thorough: also into what functions import when they run, what decorators put around them, the values of their
    defaults and the objects that methods are bound to; but not into lists and dicts that functions themselves change.
    """

    thorough = False

    def is_foreign(self, value: Any) -> bool:
        """Whether a function, class or module belongs to a library and not to the program."""
        return is_foreign(value)

    def other(self, value: Any, depth: int) -> str:
        """A text for a value that `describe` has no words for; "" where nothing can be told of it."""
        return ""


PROGRAM = Reach()


def describe(value: Any, depth: int = 0, reach: Reach = PROGRAM) -> str:
    """A text that differs where two values would make a difference, or what `reach` says of other objects.

    Plain values, tensors and arrays by their bytes, functions and classes by their code, and dicts, lists, tuples, sets
    and dataclasses of these.
    """
    if _is_plain(value):
        return repr(value)
    if is_tensor(value):
        return f"{value.dtype}{tuple(value.shape)}{xxhash.xxh3_128_hexdigest(tensor_bytes(value))}"
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        return f"{value.dtype}{value.shape}{xxhash.xxh3_128_hexdigest(content)}"
    if isinstance(value, types.MethodType):
        if reach.thorough and depth < _DEPTH:
            return repr([describe(part, depth + 1, reach) for part in (value.__func__, value.__self__)])
        value = value.__func__
    value = _inner(value, reach)
    if isinstance(value, types.FunctionType | type) and not reach.is_foreign(value):
        digest = xxhash.xxh3_128()
        add_code(digest, value, set(), reach)
        return digest.hexdigest()
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        reach.is_foreign(value)
        return name_of(value)
    if depth == _DEPTH:
        return reach.other(value, depth)
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    elif isinstance(value, types.SimpleNamespace):
        value = vars(value)
    elif dataclasses.is_dataclass(value) and not reach.thorough:
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return repr({key: describe(child, depth + 1, reach) for key, child in value.items() if _is_plain(key)})
    if isinstance(value, list | tuple):
        return repr([describe(child, depth + 1, reach) for child in value])
    if isinstance(value, set | frozenset):
        # Its own order differs in each process.
        return repr(sorted(describe(child, depth + 1, reach) for child in value))
    return reach.other(value, depth)


def tensor_bytes(tensor: Any) -> Any:
    """A tensor's values as a contiguous byte buffer on the CPU."""
    if tensor.is_quantized or str(tensor.layout) != "torch.strided":
        return str(tensor.cpu()).encode()
    return np.ascontiguousarray(to_numpy(tensor)).reshape(-1).view(np.uint8).data


def add_code(digest: Any, thing: Any, seen: set[Any], reach: Reach = PROGRAM) -> None:
    """Add the code of a function or class, and of what it uses, to a hash.

    Args:
        seen: what was added before; it grows.
    """
    if thing in seen:
        return
    seen.add(thing)
    if reach.thorough:
        _add_wrappers(digest, thing, seen, reach)
    source = _source(thing)
    if source is not None:
        digest.update(source.encode())
    elif isinstance(thing, type):
        data = {name: value for name, value in vars(thing).items() if _is_data(value) and name[:2] != "__"}
        digest.update(describe(data, 0, reach).encode())
    functions = list(_functions(thing))
    for function in functions:
        if source is None:
            _add_bytecode(digest, function.__code__, reach)
        if source is None or reach.thorough:
            digest.update(describe([function.__defaults__, function.__kwdefaults__], 0, reach).encode())
        _add_used(digest, function, seen, reach)


def _add_wrappers(digest: Any, thing: Any, seen: set[Any], reach: Reach) -> None:
    # Reading a source goes straight to what is wrapped.
    while isinstance(thing, types.FunctionType) and hasattr(thing, "__wrapped__"):
        _add_bytecode(digest, thing.__code__, reach)
        _add_used(digest, thing, seen, reach)
        thing = thing.__wrapped__


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    candidates = vars(thing).values() if isinstance(thing, type) else [thing]
    for value in candidates:
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType):
            yield value


def _add_used(digest: Any, function: types.FunctionType, seen: set[Any], reach: Reach) -> None:
    """Functions, classes and constants of the same program that a function names, directly or through a module."""
    codes = list(_nested(function.__code__))
    names = {name for code in codes for name in code.co_names}
    stored = {
        i.argval for code in codes for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "STORE_DEREF")
    }
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    if reach.thorough:
        used |= _imported(codes)
        stored |= _changed(function)
    for module in [
        value for value in used.values() if isinstance(value, types.ModuleType) and not reach.is_foreign(value)
    ]:
        used |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name, value in sorted(used.items()):
        if name in stored or reach.is_foreign(value) or isinstance(value, types.ModuleType):
            continue
        value = _inner(value, reach)
        if isinstance(value, types.FunctionType | type):
            add_code(digest, value, seen, reach)
        elif _is_data(value) or (reach.thorough and not _is_seen(value, seen)):
            digest.update(f"{name}={describe(value, 0, reach)};".encode())


def _changed(function: types.FunctionType) -> set[str]:
    """Names of lists, dicts and sets that a function adds to: what it remembers is no setting."""
    tree = _tree(function)
    if tree is None:
        return set()
    changed = set()
    for node in ast.walk(tree):
        target = node.value if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            target = node.func.value
        if isinstance(target, ast.Name):
            changed.add(target.id)
    return changed


def _inner(value: Any, reach: Reach) -> Any:
    """What is inside of what caches a function's results, and the like."""
    if reach.thorough and not isinstance(value, types.FunctionType) and callable(value):
        return getattr(value, "__wrapped__", value)
    return value


def _is_seen(value: Any, seen: set[Any]) -> bool:
    # An object that uses itself by a global name is described once.
    if ("id", id(value)) in seen:
        return True
    seen.add(("id", id(value)))
    return False


def _imported(codes: list[types.CodeType]) -> dict[str, Any]:
    """The modules that a function imports when it runs."""
    found = {}
    for code in codes:
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                try:
                    found[instruction.argval] = importlib.import_module(instruction.argval)
                except ImportError:
                    continue  # relative, or not there: running the function will say so
    return found


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _add_bytecode(digest: Any, code: types.CodeType, reach: Reach) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_bytecode(digest, constant, reach)
        else:
            digest.update(describe(constant, 0, reach).encode())


def _source(thing: Any) -> str | None:
    """Source without comments, formatting and docstrings; None where there is none, and for lambdas."""
    tree = None if getattr(thing, "__name__", "") == "<lambda>" else _tree(thing)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _tree(thing: Any) -> ast.AST | None:
    try:
        with _parsing:
            return ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return None


def is_foreign(value: Any) -> bool:
    """Whether a function, class or module is Python's, torch's or NumPy's."""
    if not isinstance(value, types.FunctionType | types.ModuleType | type):
        return False
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if name == "builtins":
        return vars(builtins).get(value.__name__) is value  # else it was made by exec, whose classes say so too
    return (name or "").partition(".")[0] in _FOREIGN


def name_of(value: Any) -> str:
    """The full name of a function or class."""
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (type(value).__module__ == "torch" and type(value).__name__ == "dtype")


def _is_data(value: Any) -> bool:
    return isinstance(value, _DATA) or is_tensor(value) or _is_plain(value)
