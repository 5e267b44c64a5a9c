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
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.installed import installation_of
from warmstore.records.arrays import is_tensor, to_numpy
from warmstore.source_code import callables_of, functions_of, nested, parse, source_of, tree_of

_PLAIN = (bool, int, float, complex, str, bytes, slice, type(None), type(...), enum.Enum, np.generic)
_DATA = (*_PLAIN, tuple, frozenset, list, dict, set, np.ndarray)
_FOREIGN = frozenset(("torch", "numpy", "einops")) | sys.stdlib_module_names
_GENERATORS = (random.Random, np.random.RandomState)
_PYTHON = str(Path(ast.__file__).parent)
_DEPTH = 8
_MUTATORS = frozenset(
    ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)


class Reach:
    """How far a fingerprint reaches: into the program's own code, and into values that are plain data.

    thorough: also into what functions import when they run, what decorators put around them, the values of their
    defaults and the objects that methods are bound to; but not into lists and dicts that functions themselves change.
    """

    thorough = False

    def is_foreign(self, value: Any) -> bool:
        """Whether a function, class or module belongs to a library and not to the program."""
        return is_foreign(value)

    def mapped(self, array: np.ndarray[Any, Any]) -> str:
        """A text for an array that is a file and need not be read; "" for any other."""
        return ""

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
        return reach.mapped(value) or f"{value.dtype}{value.shape}{_content(value, depth, reach, code)}"
    if isinstance(value, types.MethodType):
        if reach.thorough and depth < _DEPTH and not isinstance(value.__self__, _GENERATORS):
            return repr([describe(part, depth + 1, reach, code) for part in (value.__func__, value.__self__)])
        value = value.__func__
    if isinstance(value, types.BuiltinMethodType) and _is_bound(value) and depth < _DEPTH:
        return repr([value.__name__, describe(value.__self__, depth + 1, reach, code)])
    value = _inner(value, reach)
    if isinstance(value, types.FunctionType | type) and not reach.is_foreign(value):
        if code is not None:
            return code.name(value)
        alone = Code(reach)
        return alone.name(value) + alone.hexdigest()
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        reach.is_foreign(value)
        return name_of(value)
    if depth >= _DEPTH:
        return reach.other(value, depth, code)
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    elif isinstance(value, types.SimpleNamespace):
        value = vars(value)
    elif dataclasses.is_dataclass(value) and not reach.thorough:
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return repr([[describe(one, depth + 1, reach, code) for one in item] for item in value.items()])
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


def _is_bound(method: types.BuiltinMethodType) -> bool:
    """Whether a method written in C is that of an object which makes a difference: no module, nor a generator."""
    owner = method.__self__
    nothing = isinstance(owner, (types.ModuleType, type, *_GENERATORS))
    return not nothing and owner is not None and type(owner).__name__ != "PyCapsule"


def _content(array: np.ndarray[Any, Any], depth: int, reach: Reach, code: "Code | None") -> str:
    if array.dtype.hasobject:
        return xxhash.xxh3_128_hexdigest(
            describe(array.tolist(), depth + 1, reach, code).encode("utf-8", "surrogatepass")
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    return xxhash.xxh3_128_hexdigest(flat.view(np.uint8).data if flat.itemsize else b"")


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
            for wrapper in callables_of(thing):
                self._add_wrappers(wrapper)
        source = source_of(thing)
        if source is not None:
            self.add_text(source)
        if isinstance(thing, type):
            self._add_class(thing, source)
        for function in functions_of(thing):
            if isinstance(thing, type) and not function.__qualname__.startswith(f"{thing.__qualname__}."):
                self.add_text(self.name(function))  # it was defined elsewhere
            if source is None:
                self._add_bytecode(function.__code__)
            if source is None or self._reach.thorough:
                self._describe([function.__defaults__, function.__kwdefaults__])
            self._add_used(function)

    def _add_class(self, cls: type, source: str | None) -> None:
        for base in cls.__bases__:
            if not self._reach.is_foreign(base):
                self.add_text(self.name(base))
        values = {name: value for name, value in vars(cls).items() if name[:2] != "__" and self._is_setting(value)}
        if source is None:
            self._describe(values)
        elif self._reach.thorough:  # the source says by which name a value came, and not what it was
            changed = _changed_attributes(source)
            self._describe({name: value for name, value in values.items() if name not in changed})

    def _is_setting(self, value: Any) -> bool:
        """Whether an attribute of a class is data, or a class or an object of the program."""
        if _is_data(value) or not self._reach.thorough:
            return _is_data(value)
        if isinstance(value, types.FunctionType | types.MemberDescriptorType | types.GetSetDescriptorType):
            return False
        kind = value if isinstance(value, type) else type(value)
        return isinstance(value, functools.partial) or not self._reach.is_foreign(kind)

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


def _used(function: types.FunctionType, reach: Reach) -> Iterator[tuple[str, Any]]:
    """What a function names, directly or through a module of the program, sorted; not what is foreign."""
    codes = list(nested(function.__code__))
    names = {name for code in codes for name in code.co_names}
    stored = {
        i.argval for code in codes for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "STORE_DEREF")
    }
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    if reach.thorough:
        used |= _imported(codes, str(function.__globals__.get("__package__") or ""))
        stored |= _changed(function)
    modules = [value for value in used.values() if _is_own_module(value, reach)]
    for module in modules:
        found = {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
        modules += [one for name, one in found.items() if name not in used and _is_own_module(one, reach)]
        used |= found
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
    tree = tree_of(function)
    return set() if tree is None else {target.id for target in _added_to(tree) if isinstance(target, ast.Name)}


def _changed_attributes(source: str) -> set[str]:
    """Names of attributes that the methods of a class set or add to."""
    tree = parse(source)
    changed = {target.attr for target in _added_to(tree) if isinstance(target, ast.Attribute)}
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return changed | {node.attr for node in stored if not isinstance(node.ctx, ast.Load)}


def _added_to(tree: ast.AST) -> Iterator[ast.AST]:
    """What code puts items into."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            yield node.func.value


def _inner(value: Any, reach: Reach) -> Any:
    """What is inside of what caches a function's results, and the like, of Python's own or a library's."""
    if reach.thorough and callable(value) and not isinstance(value, types.FunctionType | type | functools.partial):
        return getattr(value, "__wrapped__", value) if reach.is_foreign(type(value)) else value
    return value


def _imported(codes: list[types.CodeType], package: str) -> dict[str, Any]:
    """The modules that a function of a package imports when it runs."""
    found: dict[str, Any] = {}
    for code in codes:
        before: deque[Any] = deque(maxlen=2)  # what an import takes: how many packages up, and which names
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                level, names = before
                module = _module("." * level + instruction.argval, package)
                missing = [name for name in names or () if module and not hasattr(module, name)]
                for one in (module, *(_module(f".{name}", module.__name__) for name in missing)):
                    found |= {one.__name__: one} if one else {}
            if instruction.opname != "EXTENDED_ARG":
                before.append(instruction.argval)
    return found


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name, package)
    except Exception:  # imports run code of all kinds; where there is no such module, running the function will say so
        return None


def is_foreign(value: Any) -> bool:
    """Whether a function, class or module is Python's, torch's or NumPy's."""
    if not isinstance(value, types.FunctionType | types.ModuleType | type):
        return False
    if _package(value) == "builtins":
        return vars(builtins).get(value.__name__) is value  # else it was made by exec, whose classes say so too
    package = _package(value)
    return package in _FOREIGN and not _is_shadowed(package)


def _is_shadowed(package: str) -> bool:
    """Whether a module of the program has taken the name of one of Python's own."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return package in sys.stdlib_module_names and file is not None and not file.startswith(_PYTHON)


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
