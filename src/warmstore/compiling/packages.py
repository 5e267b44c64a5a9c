"""Packages: a compiled function with its guards, as torch's ahead-of-time compilation makes it, safe to find again.

What torch saves and loads has two holes. It does not look whether the source it traced has changed; and it drops the
guards that compare identities ("this is still `torch.nn.functional.gelu`"), since an identity means nothing to another
process. Here a package carries both: a digest of the code of every function that was traced, and for every dropped
guard what the object was called. A package is used only where all of it is found again, and each call checks the
identities and torch's own guards. What cannot be described makes no package.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import json
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from warmstore.compiling.described import describe, find_function, function_digest
from warmstore.compiling.operators import python_operators
from warmstore.compiling.sketches import BY_NAME, class_digest, class_of, sketch
from warmstore.errors import BadArtifact, Incompatible
from warmstore.type_names import find_type, type_name

_BUILTINS = re.compile(r"G\['__builtins_dict__\w*'\]")
_GLOBAL = re.compile(r"G\['(\w+)'\]")
_MAKING = threading.RLock()  # what is traced is told to whoever asked last
Sizes = tuple[tuple[int | None, ...], ...]

_MAGIC = b"warmstore package 3\n"


@dataclass(frozen=True)
class Package:
    """What is stored: the bytes torch saved, what was traced, and what dropped guards compared.

    Attributes:
        saved: What torch's `save_compiled_function` writes.
        sources: Module, qualified name and digest of every traced function that is neither torch's own nor the one that
            was compiled, which the key of a call is made of.
        identities: Expressions over `L`, the arguments by name, `G`, the globals, and `B`, the builtins, with what
            each was called.
        classes: Module, qualified name and digest of every class that was met.
        values: Expressions as in `identities` whose values guards compare with, and that lead over a name; with a
            sketch of each.
        globals: Names of globals that guards look at.
        sizes: The shape of every tensor among the arguments; None for a size that may be another.
        mutates: Whether tensors are changed in place.
    """

    saved: bytes
    sources: tuple[tuple[str, str, str], ...]
    identities: tuple[tuple[str, str], ...]
    classes: tuple[tuple[str, str, str], ...]
    values: tuple[tuple[str, str], ...]
    globals: tuple[str, ...]
    sizes: Sizes
    mutates: bool

    def to_bytes(self) -> bytes:
        """As it is stored; the same for equal packages."""
        said = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "saved"}
        head = json.dumps(said, sort_keys=True).encode()
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
        sizes = tuple(tuple(None if size is None else int(size) for size in shape) for shape in head["sizes"])
        return cls(
            data[start + length :],
            sources=tuple((str(a), str(b), str(c)) for a, b, c in head["sources"]),
            identities=tuple((str(a), str(b)) for a, b in head["identities"]),
            classes=tuple((str(a), str(b), str(c)) for a, b, c in head["classes"]),
            values=tuple((str(a), str(b)) for a, b in head["values"]),
            globals=tuple(map(str, head["globals"])),
            sizes=sizes,
            mutates=bool(head["mutates"]),
        )

    def traced(self) -> list[FunctionType]:
        """The functions that were traced, but for those that are defined within others.

        Raises:
            Incompatible: one is not here, or its code is another, or a class that was met is.
        """
        found = []
        for module, name, digest in self.sources:
            code, function = find_function(module, name)
            if code is None or function_digest(code, function) != digest:
                raise Incompatible(f"the source of {module}.{name} has changed since it was compiled")
            if function is not None:
                found.append(function)
        for module, name, digest in self.classes:
            kind = find_type(module, name)
            if kind is None or class_digest(kind) != digest:
                raise Incompatible(f"the class {module}.{name} has changed since it was compiled")
        return found


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

    def __init__(
        self,
        package: Package,
        compiled: Any,
        function: FunctionType,
        traced: Iterable[FunctionType],
        first: dict[str, Any],
    ) -> None:
        from warmstore.compiling.calls import shares_memory

        self.package = package
        self._shares_memory = shares_memory
        self._artifacts = compiled._artifacts
        self._compiled = compiled
        self._function = function
        self._defaults = _defaults(function)
        # Code may be replaced in place, as notebooks do when a file was edited.
        self._codes = [(one, one.__code__) for one in (function, *traced)]
        self.call: Any = compiled.fn
        # Torch runs and checks in a copy of the globals, which has to follow what changes in the globals themselves.
        self._live, self._copy = function.__globals__, compiled.fn.__globals__
        live = self._live
        # What comes with the package stays: where it was made, torch has put things of the same names into the globals.
        named = {*package.globals, *self.call.__code__.co_names}
        self._names = [name for name in named if name in live and self._copy.get(name) is live[name]]
        globals_ = self._copy
        objects = []
        scope = {"G": globals_, "B": vars(builtins), "L": first}
        for expression, token in package.identities:
            value = eval(expression, scope)
            if describe(value) != token:
                raise Incompatible(f"{expression} is no longer {token}")
            objects.append(value)
        for expression, token in package.values:
            if sketch(eval(expression, scope)) != token:
                raise Incompatible(f"{expression} is no longer {token}")
        tests = " and ".join(f"({name}) is O[{at}]" for at, (name, _) in enumerate(package.identities)) or "True"
        self._same: Callable[[dict[str, Any]], bool] = eval(
            f"lambda L: {tests}", {"G": globals_, "B": vars(builtins), "O": objects}
        )

    def fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the guards hold for these arguments."""
        try:
            if any(one.__code__ is not code for one, code in self._codes):
                return False
            if any(now is not before for now, before in zip(_defaults(self._function), self._defaults, strict=True)):
                return False
            for name in self._names:
                self._copy[name] = self._live[name]
            if self.package.mutates and self._shares_memory(tensors(args, kwargs)):
                return False  # no saved guard looks at that
            values = self._compiled.prepare_f_locals(*args, **kwargs)
            return bool(self._same(values)) and bool(self._artifacts.guard_manager.check(values))
        except Exception:  # a global or an attribute that a guard reads is gone
            return False


def load(package: Package, function: FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> Loaded:
    """Make a package callable, for a function whose first call has these arguments.

    Raises:
        Incompatible: it was made of other sources, or with other objects.
    """
    import torch

    traced = package.traced()
    compiled: Any = torch.compiler.load_compiled_function(BytesIO(package.saved), f_globals=function.__globals__)
    _share_closure(compiled, function)
    return Loaded(package, compiled, function, traced, compiled.prepare_f_locals(*args, **kwargs))


def _share_closure(compiled: Any, function: FunctionType) -> None:
    """Have what was loaded see the variables around the function, and not copies of what they were."""
    environment = compiled._artifacts.runtime_env
    if not environment.closure:
        return
    names = compiled._artifacts.original_code.co_freevars  # local variables may have been renamed since
    cells = dict(zip(names, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in environment.bytecode.co_freevars)
    compiled._artifacts.runtime_env = replace(environment, closure=closure)
    old = compiled.fn
    compiled.fn = FunctionType(old.__code__, old.__globals__, old.__name__, old.__defaults__, closure)
    compiled.fn.__kwdefaults__ = old.__kwdefaults__


def _defaults(function: FunctionType) -> tuple[object, ...]:
    return (*(function.__defaults__ or ()), None, *(function.__kwdefaults__ or {}).values())


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
    from torch._functorch._aot_autograd import autograd_cache

    from warmstore.compiling.calls import shares_memory

    unsupported = frozenset(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
    identities: dict[str, str] = {}
    unknown: list[str] = []
    traced: set[CodeType] = set()
    names: set[str] = set()

    plain: Any = getattr(function, "__func__", function)
    module = getattr(function, "__self__", None)
    scope = {"G": plain.__globals__, "B": vars(builtins), "L": _locals(plain, function, args, kwargs)}
    kinds = {type(one) for one in module.modules()} if isinstance(module, torch.nn.Module) else set()
    values: dict[str, str] = {}

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
            if guard.has_value and (kind := class_of(guard.value)) is not None:
                kinds.add(kind)
            if is_kept and guard.has_value and _leads_over_a_name(guard.orig_guard.originating_source, scope):
                expression = _BUILTINS.sub("B", guard.orig_guard.name)
                token = sketch(guard.value)
                if token is None or token != _sketch_of(expression, scope):
                    unknown.append(f"{guard.guard_type} of {expression}")
                else:
                    values[expression] = token
        return kept

    info: Any = SourceInfo
    original = info.add_code

    def add_code(self: Any, code: CodeType) -> None:
        traced.add(code)
        original(self, code)

    keys: Any = autograd_cache
    key_of_graph = keys.autograd_cache_key
    operators: list[str] = []

    def key_and_look(graph: Any, *rest: Any, **more: Any) -> Any:
        operators.extend(python_operators(getattr(graph, "gm", graph)))
        return key_of_graph(graph, *rest, **more)

    told = {name: value for name, value in options.items() if name not in ("mode", "options")}
    of_mode = torch._inductor.list_mode_options(options.get("mode") or "default")
    told["options"] = {**of_mode, **(options.get("options") or {}), "guard_filter_fn": keep}
    with _MAKING:
        info.add_code, keys.autograd_cache_key = add_code, key_and_look
        try:
            with _dynamic(args, kwargs, sizes):
                lazy: Any = torch.compile(function, **{**told, "fullgraph": True})
                compiled = lazy.aot_compile((tuple(args), dict(kwargs)))
        finally:
            info.add_code, keys.autograd_cache_key = original, key_of_graph
    if operators:
        raise Incompatible(f"what {', '.join(operators)} does may be edited unseen")
    mutates = _mutates(compiled)
    if mutates and shares_memory(tensors(args, kwargs)):
        raise Incompatible("it changes arguments that lie in the same memory")
    if any(one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for one in dis.get_instructions(compiled.fn.__code__)):
        raise Incompatible("it sets global variables")
    sources = _sources(traced, plain.__code__, unknown)
    classes = [(module, name, class_digest(kind)) for kind in kinds for module, name in [type_name(kind)]]
    unknown += [f"the class {kind.__qualname__}" for kind in kinds if find_type(*type_name(kind)) is not kind]
    if unknown:
        raise Incompatible(f"nothing another process could find again: {', '.join(sorted(set(unknown)))}")
    return Package(
        AOTCompiledFunction.serialize(compiled).serialized_data,
        sources,
        tuple(sorted(identities.items())),
        tuple(sorted(classes)),
        tuple(sorted(values.items())),
        tuple(sorted(names)),
        sizes,
        mutates,
    )


def _mutates(compiled: Any) -> bool:
    """Whether what was compiled changes any of its inputs in place."""
    import torch

    with torch._functorch.config.patch("bundled_autograd_cache", True):
        entry = compiled._artifacts.compiled_fn.serialize()
    return any(one.mutates_data for one in entry.runtime_metadata.input_info)


def _locals(
    plain: FunctionType, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The local variables of a function at its beginning, as guards name them."""
    whole = args if plain is function else (getattr(function, "__self__", None), *args)
    bound = inspect.signature(plain, follow_wrapped=False).bind(*whole, **kwargs)
    bound.apply_defaults()
    around = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
    return {**{name: cell.cell_contents for name, cell in around}, **bound.arguments}


def _leads_over_a_name(source: Any, scope: dict[str, Any]) -> bool:
    """Whether what torch saves for a guard has a name instead of a value on the way to what the guard looks at."""
    while (source := getattr(source, "base", None)) is not None:
        try:
            value = eval(_BUILTINS.sub("B", source.name), scope)
        except Exception:
            return True  # what cannot be looked at is not believed
        if isinstance(value, BY_NAME):
            return True
    return False


def _sketch_of(expression: str, scope: dict[str, Any]) -> str | None:
    try:
        return sketch(eval(expression, scope))
    except Exception:
        return None


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
