"""What a module's outputs depend on, as hashes: its weights, its code, its settings.

Weights are parameters and buffers, byte for byte. Code is the source of the module's own classes and of the functions
they call in the same program, without comments; where no source can be read, the bytecode. Of installed packages it is
what was installed. Settings are the values that modules carry as attributes (a stride, a list of means, a tensor that
is no buffer) and train or eval where the code looks at it.
"""

import ast
import builtins
import dataclasses
import dis
import enum
import functools
import inspect
import sys
import textwrap
import threading
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from warmstore.features.installed import installation_of
from warmstore.records.arrays import to_numpy

_PLAIN = (bool, int, float, complex, str, bytes, slice, type(None), type(...), torch.dtype, enum.Enum, np.generic)
_DATA = (*_PLAIN, tuple, frozenset, list, dict, set, torch.Tensor, np.ndarray)
_FOREIGN = frozenset(("torch", "numpy", "einops")) | sys.stdlib_module_names
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"_is_torch_compile"}  # torch.compile leaves that on what it wraps
_MUTATORS = frozenset(
    ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)
_DEPTH = 8
_parsing = threading.Lock()  # Python 3.11's parser counts its depth over all threads, and fails when two parse at once


def weights(module: nn.Module) -> str:
    """xxh3-128 over every parameter and buffer: name, dtype, shape, bytes."""
    digest = xxhash.xxh3_128()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{_stable(name)} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> Any:
    """A tensor's values as a contiguous byte buffer on the CPU."""
    if tensor.is_quantized or tensor.layout != torch.strided:
        return str(tensor.cpu()).encode()
    return np.ascontiguousarray(to_numpy(tensor)).reshape(-1).view(np.uint8).data


def code(module: nn.Module) -> str:
    """xxh3-128 over the code of every class in the module tree that is not torch's own."""
    code = _Code()
    for name, child in _named_modules(module):
        cls = type(child)
        # A class of the program is its code, wherever it lies: the main module has another name in spawned processes.
        code.add_text(f"{name} {_name_of(cls) if _is_foreign(cls) else cls.__qualname__};")
        for base in cls.__mro__:
            if not _is_foreign(base):
                code.add_text(code.name(base))
        for hook in (*child._forward_pre_hooks.values(), *child._forward_hooks.values()):
            code.add_text(f"hook={describe(hook)};")
    return code.hexdigest()


def settings(module: nn.Module) -> str:
    """xxh3-128 over the attributes of every module in the tree that `describe` has words for."""
    digest = xxhash.xxh3_128()
    for name, child in _named_modules(module):
        changing = _changed_in_methods(type(child))
        for attribute, value in sorted(vars(child).items()):
            if attribute in changing or attribute in _OF_EVERY_MODULE:
                continue
            text = describe(value)
            if text:
                digest.update(f"{name}.{attribute}={text};".encode())
    return digest.hexdigest()


def describe(value: Any, depth: int = 0, code: "_Code | None" = None) -> str:
    """A text that differs where two values would make a difference, or "" for objects of which that cannot be told.

    Plain values, tensors and arrays by their bytes, functions and classes by their code, and dicts, lists, tuples, sets
    and dataclasses of these. With `code`, functions and classes are added to that and named by their place in it.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{xxhash.xxh3_128_hexdigest(tensor_bytes(value))}"
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        return f"{value.dtype}{value.shape}{xxhash.xxh3_128_hexdigest(content)}"
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType | type) and not _is_foreign(value):
        if code is not None:
            return code.name(value)
        alone = _Code()
        return alone.name(value) + alone.hexdigest()
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return _name_of(value)
    if depth == _DEPTH:
        return ""
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    elif isinstance(value, types.SimpleNamespace):
        value = vars(value)
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return repr({key: describe(child, depth + 1, code) for key, child in value.items() if isinstance(key, _PLAIN)})
    if isinstance(value, list | tuple):
        return repr([describe(child, depth + 1, code) for child in value])
    if isinstance(value, set | frozenset):  # its own order differs in each process
        named = sorted(value, key=lambda child: getattr(child, "__qualname__", ""))
        return repr(sorted(describe(child, depth + 1, code) for child in named))
    return ""


def mode_sensitive(module: nn.Module) -> list[nn.Module]:
    """The modules of the tree whose code looks at `training`: dropout, batch norm, and whatever else does."""
    return [child for child in module.modules() if _looks_at_training(child)]


def random_in_training(child: nn.Module) -> bool:
    """Whether a mode-sensitive module changes its outputs, or itself, from call to call while it trains."""
    if isinstance(child, nn.modules.dropout._DropoutNd):
        return child.p > 0
    if isinstance(child, nn.modules.batchnorm._NormBase | nn.RReLU):
        return True
    return any(_looks_random(cls) for cls in type(child).__mro__ if cls is not nn.Module and issubclass(cls, nn.Module))


def _looks_at_training(child: nn.Module) -> bool:
    if isinstance(child, nn.modules.dropout._DropoutNd):
        return child.p > 0
    return any(
        "training" in names
        for cls in type(child).__mro__
        if cls is not nn.Module and issubclass(cls, nn.Module)
        for names in _names_used(cls)
    )


def _looks_random(cls: type) -> bool:
    return any("dropout" in name.lower() for names in _names_used(cls) for name in names if "training" in names)


def _names_used(cls: type) -> Iterator[tuple[str, ...]]:
    for function in vars(cls).values():
        if isinstance(function, types.FunctionType) and function.__name__ not in ("__init__", "extra_repr"):
            yield function.__code__.co_names


def _changed_in_methods(cls: type) -> set[str]:
    # An attribute that the forward pass sets or adds to (a counter, a list of shapes) is state and no setting.
    changed = set()
    for base in cls.__mro__:
        for function in vars(base).values() if base not in (nn.Module, object) else ():
            if isinstance(function, types.FunctionType) and function.__name__ != "__init__":
                before = None
                for instruction in dis.get_instructions(function):
                    if instruction.opname == "STORE_ATTR":
                        changed.add(instruction.argval)
                    elif instruction.argval in _MUTATORS and before is not None and before.opname == "LOAD_ATTR":
                        changed.add(before.argval)
                    before = instruction
    return changed


class _Code:
    """A hash over functions and classes, and over what they use in the same program: each once, in the order met."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self._places: dict[Any, int] = {}
        self._waiting: deque[Any] = deque()

    def add_text(self, text: str) -> None:
        self._digest.update(text.encode())

    def name(self, thing: types.FunctionType | type) -> str:
        """What stands for a function or class: its place in here, or what was installed."""
        installation = installation_of(_package(thing))
        if installation:
            return f"{_name_of(thing)} of {installation};"
        if thing not in self._places:
            self._places[thing] = len(self._places)
            self._waiting.append(thing)
        return f"#{self._places[thing]};"

    def hexdigest(self) -> str:
        while self._waiting:  # no recursion: programs are deeper than Python's stack
            self._add(self._waiting.popleft())
        return self._digest.hexdigest()

    def _add(self, thing: Any) -> None:
        source = _source(thing)
        if source is not None:
            self.add_text(source)
        elif isinstance(thing, type):
            data = {name: value for name, value in vars(thing).items() if isinstance(value, _DATA) and name[:2] != "__"}
            self.add_text(describe(data, code=self))
        for function in _functions(thing):
            if source is None:
                _add_bytecode(self._digest, function.__code__)
                self.add_text(describe([function.__defaults__, function.__kwdefaults__], code=self))
            for name, value in _used(function):
                if isinstance(value, types.FunctionType | type):
                    self.add_text(f"{name}={self.name(value)}")
                elif isinstance(value, types.ModuleType):
                    self.add_text(f"{name}={installation_of(_package(value))};")
                elif isinstance(value, _DATA):
                    self.add_text(f"{name}={describe(value, code=self)};")


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    candidates = vars(thing).values() if isinstance(thing, type) else [thing]
    for value in candidates:
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType):
            yield value


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names, directly or through a module of the program, sorted; not what is torch's or Python's."""
    codes = list(_nested(function.__code__))
    names = {name for code in codes for name in code.co_names}
    stored = {
        i.argval for code in codes for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "STORE_DEREF")
    }
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [value for value in used.values() if _is_own_module(value)]:
        used |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name, value in sorted(used.items(), key=lambda item: item[0]):
        if name not in stored and not _is_foreign(value) and not _is_own_module(value):
            yield name, value


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _add_bytecode(digest: Any, code: types.CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_bytecode(digest, constant)
        else:
            digest.update(describe(constant).encode())


def _source(thing: Any) -> str | None:
    """Source without comments, formatting and docstrings; None where there is none, and for lambdas."""
    if getattr(thing, "__name__", "") == "<lambda>":
        return None
    try:
        with _parsing:
            tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _is_foreign(value: Any) -> bool:
    if not isinstance(value, types.FunctionType | types.ModuleType | type):
        return False
    if _package(value) == "builtins":
        return vars(builtins).get(value.__name__) is value  # else it was made by exec, whose classes say so too
    return _package(value) in _FOREIGN


def _is_own_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not _is_foreign(value) and not installation_of(_package(value))


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return (name or "").partition(".")[0]


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"


def _named_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # torch.compile wraps a module; what it computes is the same.
    for name, child in module.named_modules():
        if not type(child).__module__.startswith("torch._dynamo"):
            yield _stable(name), child


def _stable(name: str) -> str:
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")
