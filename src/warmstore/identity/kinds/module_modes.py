"""The modules of torch whose train/eval mode counts: those whose mode some code may read.

A method that reads `self.training` reads the mode of its own module. Other code that names `training` may read the mode
of any module: a helper function, a hook, a method that reads `self.inner.training` or `getattr(self, "training")`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from enum import IntEnum
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from warmstore.identity.instructions import instructions
from warmstore.identity.object_state import content_of
from warmstore.identity.origin import PYTHON, origin_of_class
from warmstore.identity.walk import Walk

_MODE = "training"
_WRAPPERS = (
    staticmethod, classmethod, property, MethodType, functools.partial, functools.partialmethod,
    functools.cached_property, functools._lru_cache_wrapper,
)  # fmt: skip
_INNER = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
"""The attributes of wrappers that hold the functions inside."""

_SILENT = ("__init__", "extra_repr")
_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


class Reads(IntEnum):
    """The modes that code reads: none, that of its first parameter alone, or that of any module."""

    NONE, OWN, ANY = 0, 1, 2


class ModeReaders:
    """The code that reads modes, among all that a finished walk has followed.

    functions: Functions of the program that are no methods of modules and read modes.
    """

    def __init__(self, walk: Walk) -> None:
        self._methods: dict[type, list[tuple[FunctionType, Reads]]] = {}
        for _, module in walk.modules:
            self._methods_of(type(module))
        methods = {id(method) for found in self._methods.values() for method, _ in found}
        others = [each for each in walk.functions if id(each) not in methods and each.__name__ not in _SILENT]
        self.functions = [function for function in others if reads_of(function)]
        libraries = (each for function in walk.library_functions for each in with_helpers(function))
        self._reads_any = (
            bool(self.functions)
            or any(reads == Reads.ANY for found in self._methods.values() for _, reads in found)
            or any(map(reads_of, libraries))
            or repr(_MODE) in walk.facts.values()  # a name by which code may read the mode
        )

    def reads(self, module: nn.Module) -> bool:
        """Whether some code may read the mode of a module."""
        if self._reads_any:
            return True
        if isinstance(module, nn.modules.dropout._DropoutNd):
            return module.p > 0
        return any(reads for _, reads in self._methods_of(type(module)))

    def methods(self, module: nn.Module) -> list[FunctionType]:
        """The methods of a module that read modes."""
        return [method for method, reads in self._methods_of(type(module)) if reads]

    def _methods_of(self, cls: type) -> list[tuple[FunctionType, Reads]]:
        if cls not in self._methods:
            self._methods[cls] = list(_methods_of(cls))
        return self._methods[cls]


def record_modes(walk: Walk, *, of_all: bool = False) -> None:
    """Record the modes of the modules that a walk has met.

    Args:
        of_all: Whether the modes of all modules count, because code may read them that the walk does not follow.
    """
    readers = ModeReaders(walk)
    for place, module in walk.modules:
        if of_all or readers.reads(module):
            mode = "training" if module.training else "evaluation"
            walk.fact(place, f"{walk.facts.get(place, '')} in {mode}".lstrip())


def names_in(code: CodeType) -> tuple[str, ...]:
    """The names that code uses, nested code included."""
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return (*code.co_names, *(name for inner in nested for name in names_in(inner)))


def reads_of(function: FunctionType) -> Reads:
    """The modes that a function reads."""
    return _reads_of(function.__code__)


@functools.lru_cache(maxsize=1 << 14)
def _reads_of(code: CodeType) -> Reads:
    if not _may_name_mode(code):
        return Reads.NONE
    stored = {value for name, value in instructions(code) if name in ("STORE_FAST", "STORE_DEREF")}
    first = code.co_varnames[0] if code.co_argcount and code.co_varnames[0] not in stored else None
    return max(_reads(code, first), default=Reads.NONE)


def _may_name_mode(code: CodeType) -> bool:
    """Whether `training` is a name or a constant of code. It saves the reading of most code."""
    return _MODE in code.co_names or any(
        _may_name_mode(constant) if isinstance(constant, CodeType) else _names_mode(constant)
        for constant in code.co_consts
    )


def _names_mode(constant: object) -> bool:
    return constant == _MODE or (isinstance(constant, tuple | frozenset) and _MODE in constant)


def _reads(code: CodeType, first: str | None) -> Iterator[Reads]:
    """The reads of code. `first` is the variable with the first argument of the outermost function."""
    found = list(instructions(code))
    for at, (name, value) in enumerate(found):
        if value == _MODE and name in _READS:
            of_name, of_value = found[at - 1]
            is_own = first is not None and of_value == first and of_name.startswith(("LOAD_FAST", "LOAD_DEREF"))
            yield Reads.OWN if is_own else Reads.ANY
        elif (
            name == "LOAD_CONST" and _names_mode(value) and not (at + 1 < len(found) and found[at + 1][0] == "CALL_KW")
        ):
            yield Reads.ANY  # `getattr(self, "training")`. Names of keywords are no reads
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _reads(constant, first if first in constant.co_freevars else None)


def _methods_of(cls: type) -> Iterator[tuple[FunctionType, Reads]]:
    """The functions that methods of a class run, and the modes that these read."""
    for base in cls.__mro__:
        origin = origin_of_class(base)
        if base is nn.Module or origin.kind == PYTHON:
            continue
        for name, member in vars(base).items():
            if name in _SILENT:
                continue
            for function in _functions_in(member):
                is_defined = function.__qualname__ == f"{base.__qualname__}.{function.__name__}"
                is_method = function is member or (is_defined and not isinstance(member, staticmethod))
                yield function, _reads_in(function, base, is_method=is_method)
                if not origin.is_program:
                    yield from ((helper, _reads_in(helper, base, is_method=False)) for helper in _helpers(function))


def _reads_in(function: FunctionType, cls: type, *, is_method: bool) -> Reads:
    reads = reads_of(function)
    if _package(cls) == "torch":
        return min(reads, Reads.OWN)  # its modules read those of others only where these read them, too
    return reads if is_method or not reads else Reads.ANY


def _package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """A function and those that it wraps: in its closure, or in the attributes of a property or wrapper."""
    seen: set[int] = set()
    work = [value]
    while work:
        each = work.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            yield each
            work += [*map(content_of, each.__closure__ or ()), each.__dict__.get("__wrapped__")]
        elif isinstance(each, _WRAPPERS):
            work += [getattr(each, name, None) for name in _INNER]


def with_helpers(function: FunctionType) -> Iterator[FunctionType]:
    """A function, those that it wraps, and those of its own package that these name."""
    for each in _functions_in(function):
        yield each
        yield from _helpers(each)


def _helpers(function: FunctionType) -> Iterator[FunctionType]:
    """The functions that a function of an installed package names in its own package. The walk does not follow them."""
    package = _package(function)
    if package == "torch":
        return
    for name in names_in(function.__code__):
        helper = function.__globals__.get(name)
        if isinstance(helper, FunctionType) and _package(helper) == package:
            yield helper
