"""What graphs call: torch's own operators and functions, those of installed packages, and those that programs add.

What an operator computes, and its gradient, may be code that torch runs while it differentiates or takes a graph apart.
torch's keys of differentiated graphs have the operator's name alone, and so does a compiled package: an edited formula
would go on with the old one. The graphs that come after, which Inductor compiles, have all of it in them but for the
shape that the operator says its result will have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from warmstore.compiling.keys.traced import file_of, installed_text, patched
from warmstore.identity.origin import origin_of_class, origin_of_function, origin_of_name

_SOURCE = re.compile(r"registered at (.+?):\d+", re.MULTILINE)
_DEFINED = re.compile(r"^debug: registered at (.+?):\d+", re.MULTILINE)
_COMPOSED = re.compile(r"^Composite[^\n]*registered at (.+?):\d+", re.MULTILINE)
_META = re.compile(r"^Meta\b", re.MULTILINE)
_A_TORCH_OPERATOR = "aten::sin"
_BUILT = "build/aten/"  # where in torch's sources the definition of every operator of ATen lies
_seen: set[str] = set()  # of what was registered in Python for torch's own operators: what torch has registered
_registered: dict[int, set[str]] = {}  # what each library has registered, by its address

PROGRAM = ""


def why_not_known(graph: Any) -> list[str]:
    """Why what a graph module computes may be another thing elsewhere, unseen; of what it calls and how that is
    compiled."""
    try:
        found = foreign_operators(graph)
        reasons = [f"what {name} does may be edited unseen" for name, module in found.items() if module == PROGRAM]
        reasons += [f"how {name} is compiled may be edited unseen" for name in added_lowerings(_names(graph))]
        for target in targets_of(graph):
            if _is_function(target) and patched(module := target.__globals__.get("__name__", "")):
                reasons.append(f"the program has changed functions of {module}, and its graph calls {target.__name__}")
        return sorted(set(reasons))
    except Exception as error:
        return [f"what its graph calls cannot be told: {error}"]


def called_modules(graph: Any) -> set[str]:
    """The installed modules that operators and functions in a graph module come from; torch's own operators do not
    count, they are those of its version."""
    found = {module for module in foreign_operators(graph).values() if module != PROGRAM}
    return found | {target.__globals__["__name__"] for target in targets_of(graph) if _is_function(target)}


def modules_text(graph: Any) -> str:
    """What tells the installed modules in `called_modules` from other versions of them; "" where there are none."""
    return "\n".join(f"{name} {installed_text(name)}" for name in sorted(called_modules(graph)))


def operators_text(graph: Any) -> str | None:
    """What tells a graph that Inductor compiles from others, beside what torch's key has of it; None for what cannot
    be told.

    Such a graph calls operators that are not torch's by their names, and is compiled for the shapes that they say.
    """
    found, names = foreign_operators(graph), _names(graph)
    if added_lowerings(names):
        return None
    texts = []
    for name, module in sorted(found.items()):
        text = installed_text(module) if module != PROGRAM else _fake_text(name) if name in names else None
        if text is None:
            return None
        texts.append(f"{name} {text}")
    return "\n".join(texts)


def foreign_operators(graph: Any) -> dict[str, str]:
    """The operators that a graph module calls, and torch's own that do another thing now, of which some part does not
    come from torch; with the installed module that it comes from, or `PROGRAM`."""
    found = {}
    for name in _names(graph) | _overridden():
        sources = [one for one in _sources(name) if not _is_torchs(one)]
        modules = {_module_of(name, one) for one in sources}
        modules |= {
            _installed(one.__globals__.get("__name__")) for one in _python_definition(name) if not _in_torch(one)
        }
        if modules:
            found[name] = PROGRAM if PROGRAM in modules or len(modules) > 1 else modules.pop()
    for target in targets_of(graph):
        kernels = getattr(target, "py_kernels", {}) if isinstance(target, torch_overloads()) else {}
        if any(map(_is_programs, kernels.values())):
            found[_name_of(target)] = PROGRAM
    return found


def added_lowerings(names: Collection[str]) -> list[str]:
    """Operators that are among these or torch's own, and are compiled or taken apart as the program says."""
    found = set()
    for module, table in (
        ("torch._inductor.lowering", "lowerings"),
        ("torch._inductor.decomposition", "decompositions"),
        ("torch._decomp", "global_decomposition_table"),
    ):
        held = getattr(sys.modules.get(module), table, {})
        tables = held.values() if table.startswith("global") else (held,)
        for target, function in chain.from_iterable(list(one.items()) for one in tables):
            if _is_programs(function) and ((name := _name_of(target)) in names or _is_torchs_own(name)):
                found.add(name)
    return sorted(found)


def targets_of(graph: Any) -> list[Any]:
    """What a graph module, and those within it, call."""
    import torch

    modules = [one for one in graph.modules() if isinstance(one, torch.fx.GraphModule)]
    return [node.target for one in modules for node in one.graph.nodes if node.op == "call_function"]


def unknown_targets(targets: Iterable[Any], identified: Collection[int]) -> list[str]:
    """Why what graphs call may be another thing elsewhere, unseen. Of operators `why_not_known` says it.

    Args:
        targets: what they call.
        identified: the addresses of the code that counts in the key.
    """
    import torch

    unknown = set()
    for target in targets:
        if str(target).startswith("triton_kernel_wrapper"):
            unknown.add("its graph calls a kernel of Triton's by a number that only this process knows")
        elif isinstance(target, torch_overloads()):
            continue
        elif isinstance(target, torch._ops.HigherOrderOperator):
            if origin_of_class(type(target)).is_program or any(map(_is_programs, target.py_kernels.values())):
                unknown.add(f"its graph calls {target}, which the program has made")
        elif isinstance(target, FunctionType):
            if origin_of_function(target).is_program and id(target.__code__) not in identified:
                unknown.add(f"its graph calls {target.__qualname__}, which was neither traced nor is it in the key")
        elif not _is_installed(target):
            unknown.add(f"its graph calls {target!r}")
    return sorted(unknown)


@cache
def torch_overloads() -> tuple[type, ...]:
    """The classes of torch's operators."""
    import torch

    return torch._ops.OpOverload, torch._ops.OpOverloadPacket


def _names(graph: Any) -> set[str]:
    """The names of operators that a graph module, and those within it, call; as "mine::sine"."""
    return {_name_of(target) for target in targets_of(graph) if isinstance(target, torch_overloads())}


def _name_of(operator: Any) -> str:
    import torch

    if isinstance(operator, torch._ops.OpOverload):
        return str(operator._schema.name)
    return str(getattr(operator, "_qualified_op_name", operator))


def _dumps(name: str) -> Iterator[str]:
    """What the dispatcher says of each overload of an operator."""
    import torch

    for overload in _overloads(name):
        yield torch._C._dispatch_dump(overload._name)


def _overloads(name: str) -> Iterator[Any]:
    import torch

    space, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, space), base, None)
    for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
        yield getattr(packet, overload)


def _sources(name: str) -> set[str]:
    """The files that have registered something for an operator."""
    return {source for dump in _dumps(name) for source in _SOURCE.findall(dump)}


def _is_torchs_own(name: str) -> bool:
    """Whether torch has defined an operator, whoever has changed it since."""
    defined = [source for dump in _dumps(name) for source in _DEFINED.findall(dump)]
    return not _python_definition(name) and any(map(_is_torchs, defined))


@cache
def _torchs_folders() -> tuple[str, ...]:
    """Where torch lies here, and where its sources lay as it was built."""
    import torch

    here = str(Path(str(torch.__file__)).parent) + "/"
    defined = _DEFINED.findall(torch._C._dispatch_dump(_A_TORCH_OPERATOR))
    built = [folder for folder, mark, _ in (one.partition(_BUILT) for one in defined) if mark and folder]
    return (here, *built)


def _is_torchs(source: str) -> bool:
    return source.startswith(_torchs_folders())


def registers(library: Any) -> None:
    """Told of a `torch.library.Library` that has registered something. Torch forgets what one has registered where
    another one has registered the same before and goes only then, as where a module is loaded again."""
    _registered[id(library._op_impls)] = library._op_impls
    if _seen:
        _seen.difference_update(library._op_impls)


def _overridden() -> set[str]:
    """torch's own operators for which somebody else has registered a kernel in Python."""
    from torch.library import _impls

    found = set()
    for key in _impls.union(*_registered.values()) - _seen:
        overload, _, kind = key.rpartition("/")
        if kind == "Meta":
            continue  # of what a graph calls it is seen there, and nothing else asks it
        name = overload.replace("/", "::", 1).partition(".")[0]
        if all(map(_is_torchs, _sources(name))):
            if key in _impls:  # torch registers nothing twice
                _seen.add(key)
        elif _is_torchs_own(name):
            found.add(name)
    return found


def _module_of(name: str, source: str) -> str:
    """The installed module that a file which registers something for an operator belongs to, or `PROGRAM`."""
    if source.endswith(".py"):
        return next((_installed(key) for key, one in list(sys.modules.items()) if file_of(one) == source), PROGRAM)
    return _installed(name.partition("::")[0])  # where C++ was built says nothing; most are named like their package


def _installed(name: str | None) -> str:
    return name if name in sys.modules and not origin_of_name(name).is_program else PROGRAM


def _python_definition(name: str) -> list[FunctionType]:
    """The functions that `torch.library.custom_op` and what stands on it made an operator of, if it is one."""
    from torch._library.custom_ops import OPDEFS

    held = vars(OPDEFS[name]).values() if name in OPDEFS else ()
    several = [one.values() if isinstance(one, dict) else (one,) for one in held]
    return [function for one in chain(*several) if isinstance(one, FunctionType) for function in _functions_in(one)]


def _functions_in(function: FunctionType) -> list[FunctionType]:
    """A function, and those that it holds in its closure and wraps."""
    found: dict[int, FunctionType] = {}
    waiting: list[Any] = [function]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, FunctionType):
            if isinstance(one, MethodType):
                waiting.append(one.__func__)
            elif isinstance(one, partial):
                waiting.append(one.func)
            continue
        if id(one) in found:
            continue
        found[id(one)] = one
        waiting.append(vars(one).get("__wrapped__"))
        for cell in one.__closure__ or ():
            try:
                waiting.append(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                continue
    return list(found.values())


def _in_torch(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_torchs_folders()) and not origin_of_function(function).is_program


def _fake_text(name: str) -> str | None:
    """What tells the shapes that an operator of the program says its results have, and how it is called; None where
    that cannot be told."""
    import torch
    from torch._library.custom_ops import OPDEFS
    from torch._library.simple_registry import singleton

    from warmstore.compiling.keys.identified import identity_of

    said = []
    for overload in _overloads(name):
        entry = singleton.get(overload._name)
        kernels = entry.fake_impl.kernels if entry is not None else []
        dump = torch._C._dispatch_dump(overload._name)
        composed = any(not _is_torchs(source) for source in _COMPOSED.findall(dump))
        if entry is None or not kernels or composed or len(_META.findall(dump)) != len(kernels):
            return None  # something else than its fakes says the shapes
        function = kernels[-1].func
        if name in OPDEFS and len(kernels) == 1:
            function = OPDEFS[name]._abstract_fn  # None where torch makes one up
        found = identity_of(function)
        if found.unknown:
            return None
        layout = torch._library.utils.get_layout_constraint_tag(overload)
        tags, effect = sorted(map(str, overload.tags)), str(entry.effect.effect)
        said.append((str(overload._schema), tags, str(layout), effect, found.digest))
    return repr(said)


def _is_function(target: Any) -> bool:
    """Whether something that a graph calls is a function in Python of an installed module."""
    return isinstance(target, FunctionType) and not origin_of_function(target).is_program


def _is_programs(function: Any) -> bool:
    return isinstance(function, FunctionType) and _is_written_by_the_program(function)


@lru_cache(maxsize=1 << 13)
def _is_written_by_the_program(function: FunctionType) -> bool:
    return any(origin_of_function(one).is_program for one in _functions_in(function))


def _is_installed(target: Any) -> bool:
    """Whether something that is no function of Python is torch's or Python's own."""
    owner = getattr(target, "__self__", None)
    module = getattr(target, "__module__", None) or getattr(owner, "__module__", None) or "builtins"
    return not origin_of_name(module.partition(".")[0]).is_program
