"""Modules of the program, and imports that a function executes when it runs.

A module of the program counts with all of its globals when it is used as a value. An installed module counts by its
version alone, except for functions that the program has put into it.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Collection, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from warmstore.identity.named_files import content_of, stat_of
from warmstore.identity.origin import Origin, is_extension, origin_of, origin_of_function, program_root
from warmstore.identity.places import Place
from warmstore.identity.reads.attributes import MODULE_ATTRIBUTES, place_in_module, read, setting_text
from warmstore.identity.reads.code_facts import WHOLE, Chain, CodeFacts, facts_of
from warmstore.identity.reads.refusals import reflection_reason
from warmstore.identity.walk import Walk

_ENVIRONMENT = (os.environ, os.getenv, os.environb, os.getenvb)
_IMPORTS = (importlib.import_module, builtins.__import__)
_RESOLVERS = (("pydoc", "locate"), ("pkgutil", "resolve_name"))
_LOOK_UPS = {
    "os": ("environ", "environb", "getenv", "getenvb"), "posix": ("environ",), "importlib": ("import_module",),
    "sys": ("modules",),
}  # fmt: skip
"""Attributes of modules that look up by name what the code may not name."""


def read_module(walk: Walk, place: Place, module: ModuleType, origin: Origin) -> None:
    """Record a module: all globals of a module of the program, the name of an installed one."""
    if not origin.is_program:
        walk.fact(place, f"module {module.__name__}")
        if module.__name__ in _LOOK_UPS:
            walk.passed_modules.append(module)
        return
    if is_extension(module):
        file = str(module.__file__)
        found = stat_of(file)
        walk.fact(place, f"native module {'' if found is None else content_of(file, found)}")
        return
    if origin.folder:
        walk.checkouts.setdefault(program_root(origin.folder))
    walk.watch(vars(module))
    names = [name for name in vars(module) if name not in MODULE_ATTRIBUTES]
    walk.order(place, names)
    names.sort()
    walk.fact(place, f"module with {names}" if len(names) < 200 else f"module with {len(names)} names")
    for name in names:
        walk.whole(place_in_module(walk, module, name), vars(module)[name])


def read_imports(walk: Walk, function: FunctionType, facts: CodeFacts) -> None:
    """Record the modules that the body of a function imports: the imported names, or the whole module."""
    package = str(function.__globals__.get("__package__") or "")
    for name, imported, level in facts.imports:
        at, _ = walk.root(("import", package if level else "", level, name, imported), f"import {'.' * level}{name}")
        module = import_module("." * level + name, package if level else "")
        full_name = module.__name__ if level and module is not None else name
        for part in {full_name, full_name.partition(".")[0]}:
            walk.watch_item(sys.modules, part)
        if module is None:
            walk.fact(at, "cannot be imported")
            continue
        if not origin_of(module).is_program:
            _read_patched_names(walk, at, module, facts)
        if not imported and "." in name and not level:
            read(walk, import_module(name.partition(".")[0], ""), at, ())
            read(walk, module, at + ".<module>", ())
        elif not imported or "*" in imported:
            read(walk, module, at, ())
        else:
            for attribute in imported:
                if not hasattr(module, attribute):
                    import_module(f".{attribute}", module.__name__)
                if not _looks_up(getattr(module, attribute, None)):  # it counts as the code uses it
                    read(walk, module, at, (attribute,))
    for variable, name, attribute, level in facts.bound:
        _read_bound(walk, import_module("." * level + name, package if level else ""), variable, attribute, facts)


def _read_bound(walk: Walk, module: ModuleType | None, variable: str, attribute: str, facts: CodeFacts) -> None:
    """Record what the code reads of an installed module that it imports, or of a part of one, by the variable."""
    if module is None or origin_of(module).is_program:
        return  # it counts as a whole
    value = getattr(module, attribute, None) if attribute else module
    at, _ = walk.root(("module", module.__name__), f"module {module.__name__}")
    for chain in sorted(facts.variables.get(variable, ())):
        if (chain or attribute) and not read_by_constant_name(walk, at, value, variable, chain, facts):
            read(walk, module, at, (attribute, *chain) if attribute else chain)


def read_computed_imports(walk: Walk, place: Place, constants: Collection[Any]) -> None:
    """Record the modules that code imports by their names, or what code finds by names such as "module.attribute".

    Args:
        constants: The names. One that is not constant is None.
    """
    for constant in constants or (None,):
        parts = constant.replace(":", ".").split(".") if isinstance(constant, str) else []
        for count in range(len(parts), 0, -1):
            if (module := import_module(".".join(parts[:count]), "")) is not None:
                read(walk, module, place + f".<import {constant}>", tuple(parts[count:]))
                break
        else:
            walk.cannot_tell(place + ".<import>", "a module is imported by a computed name")


def import_module(name: str, package: str) -> ModuleType | None:
    """Import a module as the program would; None where that fails. The program then sees the error when it runs."""
    found = sys.modules.get(name)
    if isinstance(found, ModuleType):
        return found
    try:
        return importlib.import_module(name, package or None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a module may raise anything while it is imported, `SystemExit` too
        return None


def _read_patched_names(walk: Walk, place: Place, module: ModuleType, facts: CodeFacts) -> None:
    """Record functions that the program has put into an installed module under names that the code uses."""
    for name in sorted(facts.names):
        value = vars(module).get(name)
        if isinstance(value, FunctionType) and origin_of_function(value).is_program:
            walk.whole(place + f".{name}", value)


def _variable_text(name: str) -> str:
    return repr(os.environ.get(name))


def read_by_constant_name(walk: Walk, place: Place, value: Any, name: str, chain: Chain, facts: CodeFacts) -> bool:
    """Record the environment variables, modules and settings of libraries that code looks up by constant names.

    Returns whether the code looks up anything in the environment or the import system.
    """
    target, rest, holder = value, list(chain), None
    while rest and isinstance(target, ModuleType):
        holder, attribute = target, rest.pop(0)
        target = vars(holder).get(attribute)
    constants = {constant for variable, used, constant in facts.asked if (variable, used) == (name, chain)}
    if _looks_up(target):
        return read_look_up(walk, place, target, constants)
    if (
        isinstance(target, Mapping)
        and holder is not None
        and not origin_of(holder).is_program
        and rest in ([], ["get"])
    ):
        for key in filter(None, constants):  # settings of a library, such as `matplotlib.rcParams`
            at = place_in_module(walk, holder, attribute) + f"[{key!r}]"
            walk.state(at, partial(_item_text, target, key))
    return False


def _item_text(mapping: Mapping[str, Any], key: str) -> str:
    return str(setting_text(mapping, [key], of_items=True))


def read_look_up(walk: Walk, place: Place, target: Any, constants: Collection[Any]) -> bool:
    """Record what `os.getenv` and its like return for constant names, and the files that this names; None is a computed
    name.

    Returns whether the target looks up anything in the environment or the import system.
    """
    if not _looks_up(target):
        return False
    if not any(target is each for each in _ENVIRONMENT) and not isinstance(target, MethodType):
        read_computed_imports(walk, place, constants)
        return True
    for constant in constants or (None,):
        if not isinstance(constant, str):
            walk.cannot_tell(place + ".<environment>", "a variable of the environment is read by a computed name")
        else:
            at, _ = walk.root(("environment", constant), f"environment variable {constant}")
            walk.setting(at, partial(_variable_text, constant))
            walk.file(at, os.environ.get(constant, ""))
    return True


def _looks_up(target: Any) -> bool:
    """Whether a value looks up variables of the environment or modules by their names."""
    if isinstance(target, MethodType):
        return target.__self__ is os.environ and target.__name__ in ("get", "__getitem__", "__contains__")
    if isinstance(target, FunctionType) and (target.__module__, target.__name__) in _RESOLVERS:
        return True
    return any(target is each for each in (*_ENVIRONMENT, *_IMPORTS))


def refuse_passed_modules(walk: Walk) -> None:
    """Refuse functions that may look up names through a module that is passed as a value: `o = os; o.environ["A"]`.

    Called at the end of a walk.
    """
    for function in walk.functions if walk.passed_modules else ():
        facts, globals_ = facts_of(function.__code__), function.__globals__
        bound = {variable for variable, *_ in facts.bound}
        chains = [chain for variable, used in facts.variables.items() if variable not in bound for chain in used]
        names = {*facts.of_results, *facts.strings, *(name for chain in chains for name in chain)}
        for module in walk.passed_modules:
            is_passed_here = any(
                globals_.get(name) is module and WHOLE in facts.globals[name] for name in facts.globals
            )
            used = names.intersection(_LOOK_UPS[module.__name__])
            if used and (is_passed_here or module is not sys):  # torch's modules have a method `modules`
                place = walk.root(("thing", id(function)), *walk.name_of(function), function)[0]
                walk.cannot_tell(place + f".<{min(used)}>", reflection_reason(f"{module.__name__}.{min(used)}"))
