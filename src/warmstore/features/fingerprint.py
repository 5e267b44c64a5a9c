"""What a module's outputs depend on, as hashes: its weights, its code, its settings.

Weights are parameters and buffers, byte for byte. Code is the source of the module's own classes and of the functions
they call in the same program, without comments; where no source can be read, the bytecode. Settings are the plain
values that modules carry as attributes (a stride, an epsilon) and train or eval where the code looks at it.
"""

import ast
import dis
import enum
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from warmstore.records.arrays import to_numpy

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, enum.Enum)
_FOREIGN = ("torch", "numpy", "builtins", "typing", "collections", "functools", "math", "einops")


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
    return memoryview(np.ascontiguousarray(to_numpy(tensor)).reshape(-1).view(np.uint8))


def code(module: nn.Module) -> str:
    """xxh3-128 over the code of every class in the module tree that is not torch's own."""
    digest = xxhash.xxh3_128()
    seen: set[Any] = set()
    for name, child in module.named_modules():
        digest.update(f"{_stable(name)} {type(child).__module__}.{type(child).__qualname__};".encode())
        for cls in type(child).__mro__:
            if not _is_foreign(cls):
                _add_code(digest, cls, seen)
    return digest.hexdigest()


def settings(module: nn.Module) -> str:
    """xxh3-128 over the plain attributes of every module in the tree."""
    digest = xxhash.xxh3_128()
    for name, child in module.named_modules():
        changing = _assigned_in_methods(type(child))
        for attribute, value in sorted(vars(child).items()):
            if attribute in changing or attribute == "training" or attribute.startswith("_"):
                continue
            if _is_plain(value):
                digest.update(f"{_stable(name)}.{attribute}={value!r};".encode())
            elif isinstance(value, types.FunctionType):
                digest.update(f"{_stable(name)}.{attribute}=".encode())
                _add_code(digest, value, set())
    return digest.hexdigest()


def mode_sensitive(module: nn.Module) -> list[nn.Module]:
    """The modules of the tree whose code looks at `training`: dropout, batch norm, and whatever else does."""
    return [child for child in module.modules() if _looks_at_training(child)]


def random_in_training(child: nn.Module) -> bool:
    """Whether a mode-sensitive module changes its outputs, or itself, from call to call while it trains."""
    if isinstance(child, nn.modules.dropout._DropoutNd):
        return child.p > 0
    if isinstance(child, nn.modules.batchnorm._NormBase):
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


def _assigned_in_methods(cls: type) -> set[str]:
    # An attribute that the forward pass sets (a counter, a last shape) is state and no setting.
    return {
        instruction.argval
        for base in cls.__mro__
        if base not in (nn.Module, object)
        for function in vars(base).values()
        if isinstance(function, types.FunctionType) and function.__name__ != "__init__"
        for instruction in dis.get_instructions(function)
        if instruction.opname == "STORE_ATTR"
    }


def _add_code(digest: Any, thing: Any, seen: set[Any]) -> None:
    if thing in seen:
        return
    seen.add(thing)
    source = _source(thing)
    if source is not None:
        digest.update(source.encode())
    functions = list(_functions(thing))
    for function in functions:
        if source is None:
            _add_bytecode(digest, function.__code__)
        _add_used(digest, function, seen)


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    candidates = vars(thing).values() if isinstance(thing, type) else [thing]
    for value in candidates:
        value = getattr(value, "__func__", value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType):
            yield value


def _add_used(digest: Any, function: types.FunctionType, seen: set[Any]) -> None:
    """Functions, classes and plain constants of the same program that a function names."""
    names = set(function.__code__.co_names)
    stored = {i.argval for i in dis.get_instructions(function) if i.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name, value in sorted(used.items()):
        if name in stored or _is_foreign(value):
            continue
        if isinstance(value, types.FunctionType | type):
            _add_code(digest, value, seen)
        elif _is_plain(value):
            digest.update(f"{name}={value!r};".encode())


def _add_bytecode(digest: Any, code: types.CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_bytecode(digest, constant)
        else:
            digest.update(repr(constant).encode())


def _source(thing: Any) -> str | None:
    """Source without comments, formatting and docstrings; None where there is none, and for lambdas."""
    if getattr(thing, "__name__", "") == "<lambda>":
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _is_foreign(value: Any) -> bool:
    module = getattr(value, "__module__", None) if isinstance(value, types.FunctionType | type) else None
    return module is not None and module.partition(".")[0] in _FOREIGN


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_plain(one) for one in value)
    return isinstance(value, _PLAIN)


def _stable(name: str) -> str:
    # torch.compile wraps a module; its weights and code are the same.
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")
