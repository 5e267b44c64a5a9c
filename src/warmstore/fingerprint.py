"""What code and values are, as texts and hashes that differ where they would make a difference.

Code is the source of functions and classes and of what they call in the same program, without comments; where no source
can be read, the bytecode. Of installed packages it is what was installed. How far that reaches, and what is said of
objects that are no plain data, a `Reach` says.
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
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from warmstore.installed import installation_of
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

    def other(self, value: Any, depth: int, code: "Code | None") -> str:
        """A text for a value that `describe` has no words for; "" where nothing can be told of it."""
        return ""


PROGRAM = Reach()


def describe(value: Any, depth: int = 0, reach: Reach = PROGRAM, code: "Code | None" = None) -> str:
    """A text that differs where two values would make a difference, or what `reach` says of other objects.

    Plain values, tensors and arrays by their bytes, functions and classes by their code, and dicts, lists, tuples, sets
    and dataclasses of these. With `code`, functions and classes are added to that and named by their place in it.
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
            return repr([describe(part, depth + 1, reach, code) for part in (value.__func__, value.__self__)])
        value = value.__func__
    value = _inner(value, reach)
    if isinstance(value, types.FunctionType | type) and not reach.is_foreign(value):
        if code is not None:
            return code.name(value)
        alone = Code(reach)
        return alone.name(value) + alone.hexdigest()
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        reach.is_foreign(value)
        return name_of(value)
    if depth == _DEPTH:
        return reach.other(value, depth, code)
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    elif isinstance(value, types.SimpleNamespace):
        value = vars(value)
    elif dataclasses.is_dataclass(value) and not reach.thorough:
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return repr({key: describe(child, depth + 1, reach, code) for key, child in value.items() if _is_plain(key)})
    if isinstance(value, list | tuple):
        return repr([describe(child, depth + 1, reach, code) for child in value])
    if isinstance(value, set | frozenset):  # its own order differs in each process
        named = sorted(value, key=lambda child: getattr(child, "__qualname__", ""))
        return repr(sorted(describe(child, depth + 1, reach, code) for child in named))
    return reach.other(value, depth, code)


def tensor_bytes(tensor: Any) -> Any:
    """A tensor's values as a contiguous byte buffer on the CPU."""
    if tensor.is_quantized or str(tensor.layout) != "torch.strided":
        return str(tensor.cpu()).encode()
    return np.ascontiguousarray(to_numpy(tensor)).reshape(-1).view(np.uint8).data


class Code:
    """A hash over functions and classes, and over what they use in the same program: each once, in the order met."""

    def __init__(self, reach: Reach = PROGRAM) -> None:
        self._digest = xxhash.xxh3_128()
        self._reach = reach
        self._places: dict[Any, int] = {}
        self._waiting: deque[Any] = deque()
        self._described: dict[int, Any] = {}  # objects by id, which they keep while they are here

    def add_text(self, text: str) -> None:
        """Add anything else."""
        self._digest.update(text.encode(errors="surrogatepass"))

    def name(self, thing: types.FunctionType | type) -> str:
        """What stands for a function or class: its place in here, or what was installed."""
        installation = installation_of(_package(thing))
        if installation:
            return f"{name_of(thing)} of {installation};"
        if thing not in self._places:
            self._places[thing] = len(self._places)
            self._waiting.append(thing)
        return f"#{self._places[thing]};"

    def hexdigest(self) -> str:
        """The hash, of all that was added and of what that uses, as 32 hex digits."""
        while self._waiting:  # no recursion: programs are deeper than Python's stack
            self._add(self._waiting.popleft())
        return self._digest.hexdigest()

    def _add(self, thing: Any) -> None:
        if self._reach.thorough:
            self._add_wrappers(thing)
        source = _source(thing)
        if source is not None:
            self.add_text(source)
        elif isinstance(thing, type):
            self._describe({name: value for name, value in vars(thing).items() if _is_data(value) and name[:2] != "__"})
        for function in _functions(thing):
            if source is None:
                self._add_bytecode(function.__code__)
            if source is None or self._reach.thorough:
                self._describe([function.__defaults__, function.__kwdefaults__])
            self._add_used(function)

    def _describe(self, value: Any) -> None:
        self.add_text(describe(value, 0, self._reach, self))

    def _add_wrappers(self, thing: Any) -> None:
        # Reading a source goes straight to what is wrapped.
        while isinstance(thing, types.FunctionType) and hasattr(thing, "__wrapped__"):
            self._add_bytecode(thing.__code__)
            self._add_used(thing)
            thing = thing.__wrapped__

    def _add_bytecode(self, code: types.CodeType) -> None:
        self._digest.update(code.co_code)
        self.add_text(repr(code.co_names))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_bytecode(constant)
            else:
                self._describe(constant)

    def _add_used(self, function: types.FunctionType) -> None:
        for name, value in _used(function, self._reach):
            if isinstance(value, types.FunctionType | type):
                self.add_text(f"{name}={self.name(value)}")
            elif isinstance(value, types.ModuleType):
                self.add_text(f"{name}={installation_of(_package(value))};")
            elif _is_data(value):
                self.add_text(f"{name}={describe(value, 0, self._reach, self)};")
            elif self._reach.thorough and id(value) not in self._described:
                # An object that uses itself by a global name is described once.
                self._described[id(value)] = value
                self.add_text(f"{name}={describe(value, 0, self._reach, self)};")


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    candidates = vars(thing).values() if isinstance(thing, type) else [thing]
    for value in candidates:
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType):
            yield value


def _used(function: types.FunctionType, reach: Reach) -> Iterator[tuple[str, Any]]:
    """What a function names, directly or through a module of the program, sorted; not what is foreign."""
    codes = list(_nested(function.__code__))
    names = {name for code in codes for name in code.co_names}
    stored = {
        i.argval for code in codes for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "STORE_DEREF")
    }
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    if reach.thorough:
        used |= _imported(codes)
        stored |= _changed(function)
    for module in [value for value in used.values() if _is_own_module(value, reach)]:
        used |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name, value in sorted(used.items(), key=lambda item: item[0]):
        if name not in stored and not reach.is_foreign(value) and not _is_own_module(value, reach):
            yield name, _inner(value, reach)


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
    if _package(value) == "builtins":
        return vars(builtins).get(value.__name__) is value  # else it was made by exec, whose classes say so too
    return _package(value) in _FOREIGN


def _is_own_module(value: Any, reach: Reach) -> bool:
    return isinstance(value, types.ModuleType) and not reach.is_foreign(value) and not installation_of(_package(value))


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return (name or "").partition(".")[0]


def name_of(value: Any) -> str:
    """The full name of a function or class."""
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (type(value).__module__ == "torch" and type(value).__name__ == "dtype")


def _is_data(value: Any) -> bool:
    return isinstance(value, _DATA) or is_tensor(value) or _is_plain(value)
