"""Packages: a compiled function with its guards, as torch's ahead-of-time compilation makes it, safe to find again.

What torch saves and loads has two holes. It does not look whether the source it traced has changed; and it drops the
guards that compare identities ("this is still `torch.nn.functional.gelu`"), since an identity means nothing to another
process. Here a package carries both: a digest of the code of every function that was traced, and for every dropped
guard what the object was called. A package is used only where all of it is found again, and each call checks the
identities and torch's own guards. What cannot be described makes no package.
"""

from __future__ import annotations

import builtins
import inspect
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from warmstore.compiling.described import describe, find_function, function_digest
from warmstore.errors import BadArtifact, Incompatible

_BUILTINS = re.compile(r"G\['__builtins_dict__\w*'\]")
_GLOBAL = re.compile(r"G\['(\w+)'\]")
Sizes = tuple[tuple[int | None, ...], ...]

_MAGIC = b"warmstore package 2\n"


@dataclass(frozen=True)
class Package:
    """What is stored: the bytes torch saved, what was traced, and what dropped guards compared.

    Attributes:
        saved: What torch's `save_compiled_function` writes.
        sources: Module, qualified name and digest of every traced function that is neither torch's own nor the one that
            was compiled, which the key of a call is made of.
        identities: Expressions over `L`, the arguments by name, `G`, the globals, and `B`, the builtins, with what
            each was called.
        globals: Names of globals that guards look at.
        sizes: The shape of every tensor among the arguments; None for a size that may be another.
    """

    saved: bytes
    sources: tuple[tuple[str, str, str], ...]
    identities: tuple[tuple[str, str], ...]
    globals: tuple[str, ...]
    sizes: Sizes

    def to_bytes(self) -> bytes:
        """As it is stored; the same for equal packages."""
        head = json.dumps([self.sources, self.identities, self.globals, self.sizes]).encode()
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
        sizes = tuple(tuple(None if size is None else int(size) for size in shape) for shape in head[3])
        return cls(data[start + length :], sources, identities, tuple(map(str, head[2])), sizes)

    def check_sources(self) -> None:
        """Whether every function that was traced is here, with the same code.

        Raises:
            Incompatible: one is not.
        """
        for module, name, digest in self.sources:
            code, function = find_function(module, name)
            if code is None or function_digest(code, function) != digest:
                raise Incompatible(f"the source of {module}.{name} has changed since it was compiled")


def cover(general: Sizes, sizes: Sizes) -> bool:
    """Whether what was compiled for the first may do for the second."""
    return len(general) == len(sizes) and all(
        len(ours) == len(theirs) and all(a is None or a == b for a, b in zip(ours, theirs, strict=True))
        for ours, theirs in zip(general, sizes, strict=True)
    )


class Loaded:
    """A package in use. Calling it checks nothing; `fits` must have said yes for the same arguments.

    Raises:
        Incompatible: a source has changed, or an object is not what it was.
    """

    def __init__(self, package: Package, function: Any, live: dict[str, Any], first: dict[str, Any]) -> None:
        self.package = package
        self._artifacts = function._artifacts
        self._function = function
        self.call: Any = function.fn
        # Torch runs and checks in a copy of the globals, which has to follow what changes in the globals themselves.
        self._live, self._copy = live, function.fn.__globals__
        # What comes with the package stays: where it was made, torch has put things of the same names into the globals.
        named = {*package.globals, *self.call.__code__.co_names}
        self._names = [name for name in named if name in live and self._copy.get(name) is live[name]]
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


def make(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    sizes: Sizes,
) -> Package:
    """Compile a function, or a bound `forward`, for these arguments.

    Args:
        function: What is compiled.
        args: Positional arguments of the call.
        kwargs: Those by name.
        options: Those of `torch.compile`.
        sizes: The shapes of the tensors among the arguments, as `shapes` has them; None where any size should do.

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
        with _dynamic(args, kwargs, sizes):
            lazy: Any = torch.compile(function, **options)
            compiled = lazy.aot_compile((tuple(args), dict(kwargs)))
    finally:
        info.add_code = original
    sources = _sources(traced, getattr(function, "__func__", function).__code__, unknown)
    if unknown:
        raise Incompatible(f"nothing another process could find again: {', '.join(sorted(set(unknown)))}")
    saved = AOTCompiledFunction.serialize(compiled).serialized_data
    return Package(saved, sources, tuple(sorted(identities.items())), tuple(sorted(names)), sizes)


def tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors among the arguments of a call."""
    import torch

    return [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]


def shapes(args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    """Their shapes."""
    return tuple(tuple(map(int, one.shape)) for one in tensors(args, kwargs))


@contextmanager
def _dynamic(args: Sequence[Any], kwargs: dict[str, Any], sizes: Sizes) -> Iterator[None]:
    """While this lasts, sizes that are None are marked as dynamic."""
    from torch._dynamo import maybe_mark_dynamic

    marked = [
        (tensor, {name: set(value) if isinstance(value, set) else value for name, value in vars(tensor).items()})
        for tensor, shape in zip(tensors(args, kwargs), sizes, strict=True)
        if None in shape
    ]
    try:
        for tensor, shape in zip(tensors(args, kwargs), sizes, strict=True):
            maybe_mark_dynamic(tensor, [at for at, size in enumerate(shape) if size is None])
        yield
    finally:
        for tensor, before in marked:  # guards see marks, and the program's tensors have none
            vars(tensor).clear()
            vars(tensor).update(before)


def _sources(traced: Iterable[CodeType], root: CodeType, unknown: list[str]) -> tuple[tuple[str, str, str], ...]:
    torch = str(Path(str(sys.modules["torch"].__file__)).parent) + "/"
    found = []
    for code in traced:
        if code.co_filename.startswith(torch):
            continue  # of the same version wherever the package is used
        module = inspect.getmodule(code)
        name = module.__name__ if module is not None else ""
        known, function = find_function(name, code.co_qualname)
        digest = function_digest(code, function)
        if known is not code or digest is None:
            unknown.append(f"the code of {code.co_qualname} in {code.co_filename}")
        elif code is not root:
            found.append((name, code.co_qualname, digest))
    return tuple(sorted(found))
