"""Packages: a compiled function with its guards, as torch's ahead-of-time compilation makes it, safe to find again.

What torch saves and loads has two holes. It does not look whether the source it traced has changed: the key of a
package is made of the identity of all that tracing may look at, and what was traced beside makes no package. And torch
drops the guards that compare which object something is ("this is still `torch.nn.functional.gelu`"), since an address
means nothing to another process: a package carries the name of each such object. A package is used only where all of
them are found again, and each call checks the objects and torch's own guards.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import json
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from warmstore.compiling.call_sizes import Sizes, tensors
from warmstore.compiling.operators import python_operators
from warmstore.compiling.stable_names import BY_NAME, stable_name, value_summary
from warmstore.compiling.traced import installed_modules, installed_text
from warmstore.errors import BadArtifact, Incompatible

if TYPE_CHECKING:
    from warmstore.identity.watch import Watch

_BUILTINS = re.compile(r"G\['__builtins_dict__\w*'\]")
_GLOBAL = re.compile(r"G\['(\w+)'\]")
_MAKING = threading.RLock()  # what is traced is told to whoever asked last

_MAGIC = b"warmstore package 4\n"


@dataclass(frozen=True)
class Package:
    """What is stored: the bytes torch saved, and what dropped guards compared.

    Attributes:
        saved: What torch's `save_compiled_function` writes.
        installed: Every installed module whose code was traced, with what was in it, as `installed_text` says.
        identities: Expressions over `L`, the arguments by name, `G`, the globals, and `B`, the builtins, with the name
            of each object.
        values: Expressions as in `identities` whose values guards compare with, and that lead over a name; with a
            summary of each.
        globals: Names of globals that guards look at.
        sizes: The shape of every tensor among the arguments; None for a size that may be another.
        mutates: Whether tensors are changed in place.
    """

    saved: bytes
    installed: tuple[tuple[str, str], ...]
    identities: tuple[tuple[str, str], ...]
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
            installed=_pairs(head["installed"]),
            identities=_pairs(head["identities"]),
            values=_pairs(head["values"]),
            globals=tuple(map(str, head["globals"])),
            sizes=sizes,
            mutates=bool(head["mutates"]),
        )

    def check_versions(self) -> None:
        """Compare the installed modules that were traced with those that are here.

        Raises:
            Incompatible: one is of another version, or was changed.
        """
        for module, said in self.installed:
            if (now := installed_text(module)) != said:
                raise Incompatible(f"{module} is {now or 'not loaded'}, and was {said} when it was compiled")


def _pairs(said: Iterable[Sequence[object]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(a), str(b)) for a, b in said)


class Loaded:
    """A package in use. Calling it checks nothing; `fits` must have said yes for the same arguments.

    Raises:
        Incompatible: an object that guards compare is another one, or a value that they find by way of a name.
    """

    def __init__(
        self,
        package: Package,
        compiled: Any,
        first: dict[str, Any],
        live: dict[str, Any],
        arguments: Watch | None,
    ) -> None:
        from warmstore.compiling.calls import shares_memory

        self.package = package
        self._shares_memory = shares_memory
        self._artifacts = compiled._artifacts
        self._compiled = compiled
        self._arguments = arguments
        self.call: Any = compiled.fn
        # Torch runs and checks in a copy of the globals, which has to follow what changes in the globals themselves.
        self._live, self._copy = live, compiled.fn.__globals__
        # What comes with the package stays: where it was made, torch has put things of the same names into the globals.
        named = {*package.globals, *self.call.__code__.co_names}
        self._names = [name for name in named if name in live and self._copy.get(name) is live[name]]
        globals_ = self._copy
        objects = []
        scope = {"G": globals_, "B": vars(builtins), "L": first}
        for expression, token in package.identities:
            value = eval(expression, scope)
            if stable_name(value) != token:
                raise Incompatible(f"{expression} is no longer {token}")
            objects.append(value)
        for expression, token in package.values:
            if value_summary(eval(expression, scope)) != token:
                raise Incompatible(f"{expression} is no longer {token}")
        tests = " and ".join(f"({name}) is O[{at}]" for at, (name, _) in enumerate(package.identities)) or "True"
        self._same: Callable[[dict[str, Any]], bool] = eval(
            f"lambda L: {tests}", {"G": globals_, "B": vars(builtins), "O": objects}
        )

    def fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the guards hold for these arguments."""
        try:
            if self._arguments is not None and self._arguments.has_moved():
                return False
            for name in self._names:
                self._copy[name] = self._live[name]
            if self.package.mutates and self._shares_memory(tensors(args, kwargs)):
                return False  # no saved guard looks at that
            values = self._compiled.prepare_f_locals(*args, **kwargs)
            return bool(self._same(values)) and bool(self._artifacts.guard_manager.check(values))
        except Exception:  # a global or an attribute that a guard reads is gone
            return False


def load(
    package: Package,
    function: FunctionType,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    arguments: Watch | None = None,
) -> Loaded:
    """Make a package callable, for a function whose first call has these arguments.

    Args:
        package: what was stored under the key of this call.
        function: that was compiled.
        args: of the call, with a bound object in the first place.
        kwargs: of the call.
        arguments: watches the code of arguments, where they have any.

    Raises:
        Incompatible: it was made with other versions, or with other objects.
    """
    import torch

    package.check_versions()
    compiled: Any = torch.compiler.load_compiled_function(BytesIO(package.saved), f_globals=function.__globals__)
    _make_live(compiled, function)
    return Loaded(package, compiled, compiled.prepare_f_locals(*args, **kwargs), function.__globals__, arguments)


def _make_live(compiled: Any, function: FunctionType) -> None:
    """Have what was loaded use the defaults of the function and the variables around it, and not copies of them."""
    environment = compiled._artifacts.runtime_env
    closure = None
    if environment.closure:
        names = compiled._artifacts.original_code.co_freevars  # local variables may have been renamed since
        cells = dict(zip(names, function.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in environment.bytecode.co_freevars)
        compiled._artifacts.runtime_env = replace(environment, closure=closure)
    compiled._artifacts.signature = inspect.signature(function, follow_wrapped=False)
    code, globals_ = compiled.fn.__code__, compiled.fn.__globals__
    compiled.fn = FunctionType(code, globals_, compiled.fn.__name__, function.__defaults__, closure)
    compiled.fn.__kwdefaults__ = function.__kwdefaults__


def make(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    sizes: Sizes,
    identified: Mapping[int, CodeType],
) -> Package:
    """Compile a function, or a bound `forward`, for these arguments.

    Args:
        function: What is compiled.
        args: Positional arguments of the call.
        kwargs: Those by name.
        options: Those of `torch.compile`.
        sizes: The shapes of the tensors among the arguments, as `shapes` has them; None where any size should do.
        identified: The code that counts in the key, by its addresses.

    Raises:
        Incompatible: it was compiled, but something about it has no name, or was traced and is not in the key.
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
    scope = {"G": plain.__globals__, "B": vars(builtins), "L": _locals(plain, function, args, kwargs)}
    values: dict[str, str] = {}

    def keep(guards: Sequence[Any]) -> list[bool]:
        kept = [
            guard.guard_type not in unsupported and unsupported.isdisjoint(guard.derived_guard_types)
            for guard in guards
        ]
        for guard, is_kept in zip(guards, kept, strict=True):
            names.update(_GLOBAL.findall(guard.orig_guard.name))
            if not is_kept:
                token = stable_name(guard.value) if guard.has_value else None
                if token is None:
                    unknown.append(f"{guard.guard_type} of {guard.orig_guard.name}")
                else:
                    identities[_BUILTINS.sub("B", guard.orig_guard.name)] = token
            if is_kept and guard.has_value and _leads_over_a_name(guard.orig_guard.originating_source, scope):
                expression = _BUILTINS.sub("B", guard.orig_guard.name)
                token = value_summary(guard.value)
                if token is None or token != _summary_of(expression, scope):
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
    installed = installed_modules(traced, identified, unknown)
    if unknown:
        raise Incompatible(f"nothing another process could find again: {', '.join(sorted(set(unknown)))}")
    return Package(
        AOTCompiledFunction.serialize(compiled).serialized_data,
        tuple((name, installed_text(name)) for name in sorted(installed)),
        tuple(sorted(identities.items())),
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


def _summary_of(expression: str, scope: dict[str, Any]) -> str | None:
    try:
        return value_summary(eval(expression, scope))
    except Exception:
        return None


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
