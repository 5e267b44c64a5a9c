"""Packages: a compiled function with its guards, as torch's ahead-of-time compilation makes it, safe to find again.

What torch saves and loads has two holes. It does not look whether the source it traced has changed; and it drops the
guards that compare identities ("this is still `torch.nn.functional.gelu`"), since an identity means nothing to another
process. Here a package carries both: a digest of the code of every function that was traced, and for every dropped
guard what the object was called. A package is used only where all of it is found again, and each call checks the
identities and torch's own guards. What cannot be described makes no package.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from warmstore.errors import BadArtifact, Incompatible

_BUILTINS = re.compile(r"G\['__builtins_dict__\w*'\]")
_GLOBAL = re.compile(r"G\['(\w+)'\]")
_MAGIC = b"warmstore package 1\n"


@dataclass(frozen=True)
class Package:
    """What is stored: the bytes torch saved, what was traced, and what dropped guards compared.

    Attributes:
        saved: What torch's `save_compiled_function` writes.
        sources: Module, qualified name and digest of the code of every traced function that is not torch's own.
        identities: Expressions over `L`, the arguments by name, `G`, the globals, and `B`, the builtins, with what
            each was called.
        globals: Names of globals that guards look at.
    """

    saved: bytes
    sources: tuple[tuple[str, str, str], ...]
    identities: tuple[tuple[str, str], ...]
    globals: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """As it is stored; the same for equal packages."""
        head = json.dumps([self.sources, self.identities, self.globals]).encode()
        return _MAGIC + struct.pack("<Q", len(head)) + head + self.saved

    @classmethod
    def from_bytes(cls, data: bytes) -> Package:
        """The opposite of `to_bytes`.

        Raises:
            BadArtifact: these bytes are no package.
        """
        if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + 8:
            raise BadArtifact("not a package of a compiled function")
        start = len(_MAGIC) + 8
        (length,) = struct.unpack_from("<Q", data, len(_MAGIC))
        head = json.loads(data[start : start + length])
        sources = tuple((str(a), str(b), str(c)) for a, b, c in head[0])
        identities = tuple((str(a), str(b)) for a, b in head[1])
        return cls(data[start + length :], sources, identities, tuple(map(str, head[2])))

    def check_sources(self) -> None:
        """Whether every function that was traced is here, with the same code.

        Raises:
            Incompatible: one is not.
        """
        for module, name, digest in self.sources:
            code = find_code(module, name)
            if code is None or code_digest(code) != digest:
                raise Incompatible(f"the source of {module}.{name} has changed since it was compiled")


class Loaded:
    """A package in use. Calling it checks nothing; `fits` must have said yes for the same arguments.

    Raises:
        Incompatible: a source has changed, or an object is not what it was.
    """

    def __init__(self, package: Package, function: Any, live: dict[str, Any], first: dict[str, Any]) -> None:
        self._artifacts = function._artifacts
        self._function = function
        self.call: Any = function.fn
        # Torch runs and checks in a copy of the globals, which has to follow what changes in the globals themselves.
        self._live, self._copy = live, function.fn.__globals__
        self._names = [name for name in {*package.globals, *self.call.__code__.co_names} if name in live]
        globals_ = self._copy
        objects = []
        for expression, token in package.identities:
            value = eval(expression, {"G": globals_, "B": vars(builtins), "L": first})
            if describe(value) != token:
                raise Incompatible(f"{expression} is no longer {token}")
            objects.append(value)
        tests = " and ".join(f"({name}) is O[{at}]" for at, (name, _) in enumerate(package.identities)) or "True"
        self._same: Callable[[dict[str, Any]], bool] = eval(
            f"lambda L: {tests}", {"G": globals_, "B": vars(builtins), "O": objects}
        )

    def fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the guards hold for these arguments."""
        try:
            for name in self._names:
                self._copy[name] = self._live[name]
            values = self._function.prepare_f_locals(*args, **kwargs)
            return bool(self._same(values)) and bool(self._artifacts.guard_manager.check(values))
        except Exception:  # a global or an attribute that a guard reads is gone
            return False


def load(package: Package, function: FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> Loaded:
    """Make a package callable, for a function whose first call has these arguments.

    Raises:
        Incompatible: it was made of other sources, or with other objects.
    """
    import torch

    package.check_sources()
    compiled: Any = torch.compiler.load_compiled_function(BytesIO(package.saved), f_globals=function.__globals__)
    return Loaded(package, compiled, function.__globals__, compiled.prepare_f_locals(*args, **kwargs))


def make(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], options: dict[str, Any]) -> Package:
    """Compile a function, or a bound `forward`, for these arguments.

    Raises:
        Incompatible: it was compiled, but something about it cannot be described for another process.
        Exception: whatever torch raises for what it cannot compile in one graph.
    """
    import torch
    from torch._dynamo.aot_compile import AOTCompiledFunction
    from torch._dynamo.guards import CheckFunctionManager
    from torch._dynamo.package import SourceInfo

    unsupported = frozenset(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
    identities: dict[str, str] = {}
    unknown: list[str] = []
    traced: set[CodeType] = set()
    names: set[str] = set()

    def keep(guards: Sequence[Any]) -> list[bool]:
        kept = [
            guard.guard_type not in unsupported and unsupported.isdisjoint(guard.derived_guard_types)
            for guard in guards
        ]
        for guard, is_kept in zip(guards, kept, strict=True):
            names.update(_GLOBAL.findall(guard.orig_guard.name))
            if not is_kept:
                token = describe(guard.value) if guard.has_value else None
                if token is None:
                    unknown.append(f"{guard.guard_type} of {guard.orig_guard.name}")
                else:
                    identities[_BUILTINS.sub("B", guard.orig_guard.name)] = token
        return kept

    info: Any = SourceInfo
    original = info.add_code

    def add_code(self: Any, code: CodeType) -> None:
        traced.add(code)
        original(self, code)

    options = {**options, "fullgraph": True, "options": {**(options.get("options") or {}), "guard_filter_fn": keep}}
    info.add_code = add_code
    try:
        lazy: Any = torch.compile(function, **options)
        compiled = lazy.aot_compile((tuple(args), dict(kwargs)))
    finally:
        info.add_code = original
    sources = _sources(traced, unknown)
    if unknown:
        raise Incompatible(f"nothing another process could find again: {', '.join(sorted(set(unknown)))}")
    saved = AOTCompiledFunction.serialize(compiled).serialized_data
    return Package(saved, sources, tuple(sorted(identities.items())), tuple(sorted(names)))


def _sources(traced: Iterable[CodeType], unknown: list[str]) -> tuple[tuple[str, str, str], ...]:
    torch = str(Path(str(sys.modules["torch"].__file__)).parent) + "/"
    found = []
    for code in traced:
        if code.co_filename.startswith(torch):
            continue  # of the same version wherever the package is used
        module = inspect.getmodule(code)
        name = module.__name__ if module is not None else ""
        if find_code(name, code.co_qualname) is not code:
            unknown.append(f"the code of {code.co_qualname} in {code.co_filename}")
        found.append((name, code.co_qualname, code_digest(code)))
    return tuple(sorted(found))


def find_code(module: str, qualname: str) -> CodeType | None:
    """The code of a function by its module and qualified name, also of one defined within another."""
    value: Any = sys.modules.get(module)
    code: CodeType | None = None
    for part in qualname.split("."):
        if part == "<locals>":
            continue
        if code is not None:
            inner = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part]
            if len(inner) != 1:
                return None
            code = inner[0]
            continue
        value = inspect.getattr_static(value, part, None)
        value = getattr(value, "__func__", value)
        value = getattr(value, "fget", value)
        code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    return code


def code_digest(code: CodeType) -> str:
    """The same for functions that do the same: where they stand and what comments say is left out."""
    return hashlib.sha256(repr(_content(code)).encode()).hexdigest()


def _content(value: object) -> object:
    if isinstance(value, CodeType):
        return (
            value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_flags,
            value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_exceptiontable,
            [_content(one) for one in value.co_consts],
        )  # fmt: skip
    if isinstance(value, frozenset):
        return ("set", sorted(repr(_content(one)) for one in value))
    if isinstance(value, tuple):
        return tuple(_content(one) for one in value)
    return (type(value).__name__, repr(value))


def describe(value: object) -> str | None:
    """What an object is called, if it can be found under that name in every process; functions with their code."""
    if isinstance(value, ModuleType):
        return f"module {value.__name__}" if sys.modules.get(value.__name__) is value else None
    if value is None or value is NotImplemented or isinstance(value, bool | type(Ellipsis)):
        return f"constant {value!r}"
    if isinstance(value, MethodType):
        owner = describe(value.__self__)
        return None if owner is None else f"method {value.__func__.__qualname__} of {owner}"
    if not isinstance(value, FunctionType | BuiltinFunctionType | type) and not callable(value):
        return None
    module = getattr(value, "__module__", None) or "torch"
    for name in (getattr(value, "__qualname__", ""), getattr(value, "__name__", "")):  # torch.sin has only its name
        found: Any = sys.modules.get(module)
        for part in str(name).split("."):
            found = getattr(found, part, None)
        if found is value:
            code = getattr(value, "__code__", None)
            return f"object {module}:{name} {code_digest(code) if isinstance(code, CodeType) else ''}".rstrip()
    return None
