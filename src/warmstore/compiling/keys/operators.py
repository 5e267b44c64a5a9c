"""The operators and functions that graphs call: of torch, of installed packages, or added by the program.

torch runs the code of an operator, and of its gradient, while it differentiates or decomposes a graph. torch's key of a
differentiated graph and a compiled package have only the operator's name, so an edit of this code would go unnoticed.
Graphs that Inductor compiles contain the result of that code, except for the shapes that fake implementations return.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
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
_ATTENTION = (
    "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled", "_get_math_sdp_allow_fp16_bf16_reduction", "_get_sdp_priority_order",
)  # fmt: skip
_BUILT = "build/aten/"  # the folder in torch's sources that defines all operators of ATen
_seen: set[str] = set()  # the registrations in Python by torch for its own operators
_registered: dict[int, set[str]] = {}  # the registrations of each library, by its address

PROGRAM = ""
"""Stands for the program in place of the name of an installed module."""


def why_not_known(graph: Any) -> list[str]:
    """Why the calls of a graph module may change without a change of its key; empty if they cannot."""
    try:
        found = foreign_operators(graph)
        reasons = [f"the code of operator {name} has no identity" for name, kind in found.items() if kind == PROGRAM]
        reasons += [f"the program registers how {name} is compiled" for name in added_lowerings(_names(graph))]
        for target in targets_of(graph):
            if _is_function(target) and patched(module := target.__globals__.get("__name__", "")):
                reasons.append(f"the program has changed functions of {module}, and its graph calls {target.__name__}")
        return sorted(set(reasons))
    except Exception as error:
        return [f"the calls of its graph cannot be identified: {error}"]


def called_modules(graph: Any) -> set[str]:
    """The installed modules of the operators and functions that a graph module calls, except torch's own operators."""
    found = {module for module in foreign_operators(graph).values() if module != PROGRAM}
    return found | {target.__globals__["__name__"] for target in targets_of(graph) if _is_function(target)}


def modules_text(graph: Any) -> str:
    """The versions and changes of the `called_modules`; "" if there are none."""
    return "\n".join(f"{name} {installed_text(name)}" for name in sorted(called_modules(graph)))


def attention_switches() -> dict[str, str]:
    """The settings of this process that decide which kernels of attention a graph gets while it is differentiated.

    torch has no guard on them, and its keys of differentiated graphs lack them.
    """
    torch = sys.modules["torch"]
    return {name.removeprefix("_get_"): repr(getattr(torch._C, name)()) for name in _ATTENTION}


def operators_text(graph: Any) -> str | None:
    """The part of the key of a graph for Inductor that torch's key lacks: the operators that are not torch's own, and
    the identity of their fake implementations. None if there is no identity."""
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
    """The operators of a graph module that are not torch's own, and all operators of torch that others have changed.
    The value is the installed module of the operator or of the change, or `PROGRAM`."""
    found = {}
    for name in _names(graph) | _overridden():
        modules = {_module_of(name, source) for source in _sources(name) if not _is_torchs(source)}
        modules |= {
            _installed(function.__globals__.get("__name__"))
            for function in _python_definition(name)
            if not _in_torch(function)
        }
        if modules:
            found[name] = PROGRAM if PROGRAM in modules or len(modules) > 1 else modules.pop()
    for target in targets_of(graph):
        kernels = getattr(target, "py_kernels", {}) if isinstance(target, torch_overloads()) else {}
        if any(map(_is_programs, kernels.values())):
            found[_name_of(target)] = PROGRAM
    return found


def added_lowerings(names: Collection[str]) -> list[str]:
    """The operators among these and torch's own for which the program has registered a lowering or decomposition."""
    found = set()
    for module, table in (
        ("torch._inductor.lowering", "lowerings"),
        ("torch._inductor.decomposition", "decompositions"),
        ("torch._decomp", "global_decomposition_table"),
    ):
        registered = getattr(sys.modules.get(module), table, {})
        tables = registered.values() if table.startswith("global") else (registered,)
        for target, function in chain.from_iterable(list(functions.items()) for functions in tables):
            if _is_programs(function) and ((name := _name_of(target)) in names or _is_torchs_own(name)):
                found.add(name)
    return sorted(found)


def targets_of(graph: Any) -> list[Any]:
    """The functions and operators that a graph module and its nested graph modules call."""
    import torch

    modules = [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]
    return [node.target for module in modules for node in module.graph.nodes if node.op == "call_function"]


def unknown_targets(targets: Iterable[Any], identified: Collection[int]) -> list[str]:
    """Why the targets of graphs may change without a change of the key, which covers the code at the addresses
    `identified`. `why_not_known` checks the operators."""
    import torch

    unknown = set()
    for target in targets:
        if str(target).startswith("triton_kernel_wrapper"):
            unknown.add("its graph calls a Triton kernel by a number that is valid only in this process")
        elif isinstance(target, torch_overloads()):
            continue
        elif isinstance(target, torch._ops.HigherOrderOperator):
            if origin_of_class(type(target)).is_program or any(map(_is_programs, target.py_kernels.values())):
                unknown.add(f"its graph calls {target}, which the program defines")
        elif isinstance(target, FunctionType):
            if origin_of_function(target).is_program and id(target.__code__) not in identified:
                unknown.add(f"its graph calls {target.__qualname__}, which the key does not cover")
        elif not _is_installed(target):
            unknown.add(f"its graph calls {target!r}")
    return sorted(unknown)


@cache
def torch_overloads() -> tuple[type, ...]:
    """The classes of torch's operators."""
    import torch

    return torch._ops.OpOverload, torch._ops.OpOverloadPacket


def _names(graph: Any) -> set[str]:
    """The names of the operators that a graph module calls, such as "mine::sine"."""
    return {_name_of(target) for target in targets_of(graph) if isinstance(target, torch_overloads())}


def _name_of(operator: Any) -> str:
    import torch

    if isinstance(operator, torch._ops.OpOverload):
        return str(operator._schema.name)
    return str(getattr(operator, "_qualified_op_name", operator))


def _dumps(name: str) -> Iterator[str]:
    """The dispatcher's text about each overload of an operator."""
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
    """The files with registrations for an operator."""
    return {source for dump in _dumps(name) for source in _SOURCE.findall(dump)}


def _is_torchs_own(name: str) -> bool:
    """Whether torch defines an operator, even if others have changed it since."""
    defined = [source for dump in _dumps(name) for source in _DEFINED.findall(dump)]
    return not _python_definition(name) and any(map(_is_torchs, defined))


@cache
def _torchs_folders() -> tuple[str, ...]:
    """The folder of the installed torch, and the folder of torch's sources when it was built."""
    import torch

    installed = str(Path(str(torch.__file__)).parent) + "/"
    defined = _DEFINED.findall(torch._C._dispatch_dump(_A_TORCH_OPERATOR))
    built = [folder for folder, mark, _ in (file.partition(_BUILT) for file in defined) if mark and folder]
    return (installed, *built)


def _is_torchs(source: str) -> bool:
    return source.startswith(_torchs_folders())


def registers(library: Any) -> None:
    """Record the registrations of a `torch.library.Library`. torch forgets a registration when an older library with
    the same registration is deleted, as when a module is reloaded."""
    _registered[id(library._op_impls)] = library._op_impls
    if _seen:
        _seen.difference_update(library._op_impls)


def _overridden() -> set[str]:
    """torch's own operators for which others have registered a kernel in Python."""
    from torch.library import _impls

    found = set()
    for key in _impls.union(*_registered.values()) - _seen:
        overload, _, kind = key.rpartition("/")
        if kind == "Meta":
            continue  # only matters for operators that the graph calls, whose dumps show it
        name = overload.replace("/", "::", 1).partition(".")[0]
        if all(map(_is_torchs, _sources(name))):
            if key in _impls:  # torch registers nothing twice
                _seen.add(key)
        elif _is_torchs_own(name):
            found.add(name)
    return found


def _module_of(name: str, source: str) -> str:
    """The installed module of a file with registrations for an operator, or `PROGRAM`."""
    if source.endswith(".py"):
        modules = list(sys.modules.items())
        return next((_installed(key) for key, module in modules if file_of(module) == source), PROGRAM)
    return _installed(name.partition("::")[0])  # C++: most namespaces are named like their package


def _installed(name: str | None) -> str:
    return name if name in sys.modules and not origin_of_name(name).is_program else PROGRAM


def _python_definition(name: str) -> list[FunctionType]:
    """The functions of an operator that was defined with `torch.library.custom_op`; none for other operators."""
    from torch._library.custom_ops import OPDEFS

    attributes = vars(OPDEFS[name]).values() if name in OPDEFS else ()
    values = chain(*(value.values() if isinstance(value, dict) else (value,) for value in attributes))
    return [function for value in values if isinstance(value, FunctionType) for function in _functions_in(value)]


def _functions_in(function: FunctionType) -> list[FunctionType]:
    """A function, and the functions that it wraps and has in its closure."""
    found: dict[int, FunctionType] = {}
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        if isinstance(value, MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, partial):
            waiting.append(value.func)
        elif isinstance(value, FunctionType) and id(value) not in found:
            found[id(value)] = value
            waiting.append(vars(value).get("__wrapped__"))
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # an empty cell
                    waiting.append(cell.cell_contents)
    return list(found.values())


def _in_torch(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_torchs_folders()) and not origin_of_function(function).is_program


def _fake_text(name: str) -> str | None:
    """The schemas of an operator of the program, and the identities of its fake implementations, which compute the
    shapes of results. None without such an identity."""
    import torch
    from torch._library.custom_ops import OPDEFS
    from torch._library.simple_registry import singleton

    from warmstore.compiling.keys.identified import identity_of

    texts = []
    for overload in _overloads(name):
        entry = singleton.find(overload._name)
        kernels = entry.fake_impl.kernels
        dump = torch._C._dispatch_dump(overload._name)
        composed = any(not _is_torchs(source) for source in _COMPOSED.findall(dump))
        if not kernels or composed or len(_META.findall(dump)) != len(kernels):
            return None  # other code computes the shapes
        function = kernels[-1].func
        if name in OPDEFS and len(kernels) == 1:
            function = OPDEFS[name]._abstract_fn  # None if torch generates one
        identity = identity_of(function)
        if identity.unknown:
            return None
        layout = torch._library.utils.get_layout_constraint_tag(overload)
        tags, effect = sorted(map(str, overload.tags)), str(entry.effect.effect)
        texts.append((str(overload._schema), tags, str(layout), effect, identity.digest))
    return repr(texts)


def _is_function(target: Any) -> bool:
    """Whether the target of a graph is a Python function of an installed module."""
    return isinstance(target, FunctionType) and not origin_of_function(target).is_program


def _is_programs(function: Any) -> bool:
    return isinstance(function, FunctionType) and _is_written_by_the_program(function)


@lru_cache(maxsize=1 << 13)
def _is_written_by_the_program(function: FunctionType) -> bool:
    return any(origin_of_function(part).is_program for part in _functions_in(function))


def _is_installed(target: Any) -> bool:
    """Whether a target that is no Python function belongs to an installed module or to Python."""
    owner = getattr(target, "__self__", None)
    module = getattr(target, "__module__", None) or getattr(owner, "__module__", None) or "builtins"
    return not origin_of_name(module.partition(".")[0]).is_program
