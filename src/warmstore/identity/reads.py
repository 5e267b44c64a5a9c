"""What code reads: the globals, closures, defaults and attributes that a function uses, and what they are now.

A variable is narrow where all followed code reads attributes of it and nothing else: then those attributes count, found
as Python finds them on the live object, and not all that the object holds. Whatever else happens to a variable makes it
whole. Ways of looking around that no reading of code can follow (`eval`, frames, `gc`) are refused.
"""

from __future__ import annotations

import builtins
import decimal
import importlib
import os
import sys
from functools import partial
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from warmstore.identity.classes import documentation, static
from warmstore.identity.code import WHOLE, Chain, CodeFacts, facts_of, parameters_of
from warmstore.identity.origin import (
    Origin,
    is_found,
    origin_of,
    origin_of_class,
    origin_of_function,
    origin_of_name,
    program_root,
)
from warmstore.identity.plain import atom_text, full_name, has_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from warmstore.identity.walk import Place, Walk

_LOOKS_AROUND = frozenset(
    ("__subclasses__", "_getframe", "_current_frames", "f_back", "f_globals", "f_locals", "f_builtins", "gi_frame",
     "cr_frame", "ag_frame", "tb_frame", "__globals__", "__builtins__", "__subclasshook__", "settrace", "setprofile")
)  # fmt: skip
_INTROSPECTS = {
    "__doc__": "doc", "getdoc": "doc", "__annotations__": "annotations", "get_type_hints": "annotations",
    "get_annotations": "annotations", "__name__": "name", "__qualname__": "name", "__module__": "name",
}  # fmt: skip
_REFUSED_BUILTINS = {
    "eval": "eval runs text that no reading of code can follow",
    "exec": "exec runs text that no reading of code can follow",
    "compile": "compile makes code of text that no reading can follow",
    "breakpoint": "a debugger may change anything",
    "input": "what a person types is another each time",
}
_REFUSED_MODULES = {
    "inspect": "inspect looks at code and frames",
    "gc": "gc finds objects that no code names",
    "subprocess": "another program runs, of which nothing is known",
    "runpy": "runpy runs files that no reading of code follows",
    "code": "code runs text that no reading can follow",
}
_REFUSED_NAMES = frozenset(
    ("sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile", "os.system", "os.popen", "os.fork",
     "posix.system", "posix.fork", "marshal.loads", "sys._current_exceptions")
)  # fmt: skip
_OF_MODULES = frozenset(
    ("__name__", "__doc__", "__file__", "__loader__", "__spec__", "__cached__", "__builtins__", "__package__",
     "__path__", "__annotations__", "__warningregistry__", "__annotate__", "__conditional_annotations__")
)  # fmt: skip
_NAMESPACES = frozenset((("argparse", "Namespace"), ("types", "SimpleNamespace")))
_OPENERS = frozenset(
    ("open", "Path", "PurePath", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "read_text", "read_bytes",
     "read_csv", "read_parquet", "read_json", "read_table", "imread", "from_pretrained", "File")
)  # fmt: skip
_WHOLE_NAMES = frozenset(("__dict__", "__class__", "__reduce__", "__getstate__", "__slots__", "__weakref__"))


def refusal_of(value: Any) -> str:
    """Why what a function of Python does cannot be told; "" where it can."""
    module, name = str(getattr(value, "__module__", "") or ""), str(getattr(value, "__name__", ""))
    if module == "builtins" and name in _REFUSED_BUILTINS:
        return _REFUSED_BUILTINS[name]
    if module in _REFUSED_MODULES:
        return _REFUSED_MODULES[module]
    if f"{module}.{name}" in _REFUSED_NAMES:
        return f"{module}.{name} goes where no reading of code follows"
    return ""


def read_function(walk: Walk, place: Place, function: FunctionType, origin: Origin) -> None:
    """Note what a function does. Of an installed one that is found under its name, no more than its version counts."""
    reason = refusal_of(function)
    if reason:
        walk.cannot_tell(place, reason)
        return
    implementations = _implementations(function)
    if implementations is not None:
        walk.fact(place, "singledispatch")
        walk.pairs(place + ".registry", "registry", implementations.items())
        return
    inner = function.__dict__.get("_torchdynamo_orig_callable")
    if inner is not None and not origin.is_program:
        walk.whole(place + ".<compiled>", inner)
        return
    if not origin.is_program:
        walk.fact(place, f"function {full_name(function)}")
        if is_found(function) and not origin_of_name(str(function.__module__)).is_program:
            return
        # Made by a library for the program: what it closes over may be the program's.
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            walk.whole(place + f".<{name}>", cell)
        _defaults(walk, place, function, None)
        _attributes(walk, place, function)
        return
    walk.functions.append(function)
    walk.watch_cell(partial(getattr, function, "__code__"))
    walk.watch_cell(partial(getattr, function, "__defaults__"))
    walk.watch_cell(partial(getattr, function, "__kwdefaults__"))
    if function.__kwdefaults__:
        walk.watch(function.__kwdefaults__)
    facts = facts_of(function.__code__)
    constants = ", ".join(facts.constants)
    walk.fact(place, f"code {facts.digest} constants {constants[:160]}")
    _introspection(walk, place, function, facts)
    _defaults(walk, place, function, facts)
    _attributes(walk, place, function)
    _closure(walk, place, function, facts)
    for name in sorted(facts.globals):
        _global(walk, place, function, name, facts)
    _imports(walk, function, facts)
    _files_beside(walk, place, function, facts)


def read_module(walk: Walk, place: Place, module: ModuleType, origin: Origin) -> None:
    """Note all of a module of the program; of others the version counts."""
    if not origin.is_program:
        walk.fact(place, f"module {module.__name__}")
        return
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith((".so", ".pyd", ".dylib")):
        _native_module(walk, place, file)
        return
    if origin.folder:
        walk.checkouts.setdefault(program_root(origin.folder))
    walk.watch(vars(module))
    names = sorted(name for name in vars(module) if name not in _OF_MODULES)
    walk.fact(place, f"module with {names}" if len(names) < 200 else f"module with {len(names)} names")
    for name in names:
        walk.whole(_place_in(walk, module, name), vars(module)[name])


def read_method(walk: Walk, place: Place, function: Any, owner: Any) -> None:
    """Note a function that is bound to an object: what it reads of the object counts."""
    walk.fact(place, "method")
    _bound(walk, place, function, owner, place + ".__self__")


def read_call(
    walk: Walk, place: Place, function: Any, args: Iterable[Any] = (), keywords: Mapping[str, Any] | None = None
) -> None:
    """Note what a call does: the function, and of its arguments what it reads of them."""
    plain, taken = function, 0
    if isinstance(function, MethodType):
        plain, taken = function.__func__, 1
    facts: CodeFacts | None = None
    names: tuple[str, ...] = ()
    if isinstance(plain, FunctionType) and origin_of_function(plain).is_program:
        facts = facts_of(plain.__code__)
        names = plain.__code__.co_varnames[taken : plain.__code__.co_argcount]
    read_called(walk, place + ".func", function)
    for at, value in enumerate(args):
        chains = _uses(facts, names[at]) if facts is not None and at < len(names) else {WHOLE}
        _read_all(walk, value, place + f"({at})", chains)
    known = parameters_of(plain.__code__) if facts is not None else ()
    variadic = facts is not None and bool(plain.__code__.co_flags & 0x0C)
    for name in sorted(keywords or {}):
        chains = _uses(facts, name) if facts is not None and name in known and not variadic else {WHOLE}
        _read_all(walk, (keywords or {})[name], place + f"({name})", chains)


def read_called(walk: Walk, place: Place, function: Any) -> None:
    """Note something that is only called: of an object with `__call__`, what that reads."""
    kind = type(function)
    if (
        not isinstance(function, FunctionType | MethodType | BuiltinFunctionType | type)
        and origin_of_class(kind).is_program
        and isinstance(static(kind, "__call__"), FunctionType)
    ):
        walk.fact(place, f"called object of {walk.name_of(kind)[0]}")
        read(walk, function, place, ("__call__",))
        return
    walk.whole(place, function)


def read(walk: Walk, value: Any, place: Place, chain: Chain) -> None:
    """Note what code reads of a value: all of it, or one attribute, and of that the next."""
    if not chain:
        walk.whole(place, value)
        return
    name, rest = chain[0], chain[1:]
    if name == "__doc__":
        walk.fact(place + ".__doc__", repr(getattr(value, "__doc__", None)))
    elif name in ("__annotations__", "__name__", "__qualname__", "__module__") and isinstance(
        value, FunctionType | type
    ):
        walk.fact(place + f".{name}", documentation(value, {_INTROSPECTS[name]}))
        walk.whole(place, value)
    elif name in _LOOKS_AROUND:
        walk.cannot_tell(place + f".{name}", f"{name} goes where no reading of code follows")
    elif isinstance(value, ModuleType) and (type(value) is ModuleType or not origin_of_class(type(value)).is_program):
        _read_module(walk, value, place, name, rest)
    elif isinstance(value, type):
        _read_class(walk, value, place, name, rest)
    elif atom_text(value) is not None or name in _WHOLE_NAMES or not _is_narrow(type(value)):
        walk.whole(place, value)
    else:
        _read_object(walk, value, place, name, rest)


def _read_all(walk: Walk, value: Any, place: Place, chains: Iterable[Chain]) -> None:
    found = sorted(chains)
    if WHOLE in found:
        walk.whole(place, value)
        return
    for chain in found:
        read(walk, value, place, chain)


def _uses(facts: CodeFacts | None, name: str) -> Iterable[Chain]:
    """How a variable is used."""
    if facts is None or facts.sees_locals:
        return (WHOLE,)
    return facts.variables.get(name, ())


# Functions.


def _implementations(function: FunctionType) -> dict[Any, Any] | None:
    """What a `functools.singledispatch` function has for which class."""
    if function.__code__.co_qualname != "singledispatch.<locals>.wrapper" or function.__globals__ is not vars(
        sys.modules["functools"]
    ):
        return None
    return dict(function.registry)  # type: ignore[attr-defined]


def _introspection(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts) -> None:
    """Texts and annotations count as soon as some code asks for such."""
    asked = {_INTROSPECTS[name] for name in (*facts.loose, *facts.strings) if name in _INTROSPECTS}
    asked |= {_INTROSPECTS[name] for name in facts.globals if name in _INTROSPECTS and name[:2] != "__"}
    asked |= {_INTROSPECTS[name] for name in facts.names if name in ("getdoc", "get_type_hints", "get_annotations")}
    walk.introspects |= asked
    for name in facts.names | set(facts.strings):
        if name in _LOOKS_AROUND:
            walk.cannot_tell(place + f".<{name}>", f"{name} goes where no reading of code follows")
    walk.described.append((place, function))


def _defaults(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts | None) -> None:
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    pairs = [*zip(names, defaults, strict=False), *sorted((function.__kwdefaults__ or {}).items())]
    if pairs:
        walk.fact(place + ".<defaults>", f"{[name for name, _ in pairs]}")
    for name, value in pairs:
        _read_all(walk, value, place + f"({name}=)", _uses(facts, name))


def _attributes(walk: Walk, place: Place, function: FunctionType) -> None:
    walk.watch(function.__dict__)
    for name, value in sorted(function.__dict__.items()):
        walk.whole(place + f".{name}", value)


def _closure(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts) -> None:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            walk.fact(place + f".<{name}>", "empty")
            continue
        walk.watch_cell(partial(getattr, cell, "cell_contents", None))
        _read_all(walk, value, place + f".<{name}>", _uses(facts, name))


def _global(walk: Walk, place: Place, function: FunctionType, name: str, facts: CodeFacts) -> None:
    """Note what a global name is now, as far as it is read."""
    from warmstore.identity.walk import builtin_named

    globals_ = function.__globals__
    walk.watch_cell(partial(globals_.get, name))
    if name not in globals_:
        walk.watch_cell(partial(vars(builtins).get, name))
        is_builtin, value = builtin_named(name)
        if is_builtin:
            _builtin(walk, place, function, name, value, facts)
        else:
            walk.fact(place + f".<{name}>", "no such name")
        return
    value = globals_[name]
    named = isinstance(value, FunctionType | type | ModuleType)  # it has a place of its own
    at = place + f".<{name}>" if named else _global_place(walk, globals_, name)
    if name == "__file__":
        walk.file(at, value)
        walk.fact(at, "the file of the code")
    elif name in ("__name__", "__package__"):
        walk.fact(at, repr("__main__" if value == "__mp_main__" else value))
    elif name == "__builtins__":
        walk.cannot_tell(at, "__builtins__ goes where no reading of code follows")
    else:
        for chain in sorted(facts.globals[name]):
            if not _environment(walk, place, value, name, chain, facts):
                read(walk, value, at, chain)


def _global_place(walk: Walk, globals_: dict[str, Any], name: str) -> Place:
    module = sys.modules.get(str(globals_.get("__name__")))
    if module is not None and vars(module) is globals_:
        return _place_in(walk, module, name)
    return walk.root(("global", id(globals_), name), name, "", globals_)[0]


def _place_in(walk: Walk, module: ModuleType, name: str) -> Place:
    return walk.root(("global", id(vars(module)), name), name, module.__name__, module)[0]


def _builtin(walk: Walk, place: Place, function: FunctionType, name: str, value: Any, facts: CodeFacts) -> None:
    """Note a builtin where it has been replaced, or goes where no reading of code follows."""
    at, _ = walk.root(("builtin", name), name)
    if name == "globals":
        module = sys.modules.get(str(function.__globals__.get("__name__")))
        if module is not None and vars(module) is function.__globals__:
            walk.whole(place + ".<globals>", module)
        else:
            walk.whole(place + ".<globals>", {k: v for k, v in function.__globals__.items() if k not in _OF_MODULES})
    elif name == "__import__":
        _computed_import(walk, place, name, (), facts)
    elif name in _REFUSED_BUILTINS and refusal_of(value):
        walk.cannot_tell(place + f".<{name}>", refusal_of(value))
    elif getattr(value, "__module__", None) != "builtins" and callable(value):
        walk.whole(at, value)  # replaced
    elif callable(value) and getattr(value, "__name__", name) != name:
        walk.fact(at, f"builtin {value.__name__}")
    elif not callable(value) and atom_text(value) is not None and name not in ("__debug__",):
        walk.fact(at, str(atom_text(value)))


def _environment(walk: Walk, place: Place, value: Any, name: str, chain: Chain, facts: CodeFacts) -> bool:
    """Note the variable of the environment, or the module, that is asked for by a constant name."""
    asked = {constant for variable, one, constant in facts.asked if variable == name and one == chain}
    if not asked:
        return False
    target, left = value, list(chain)
    while left and isinstance(target, ModuleType):
        target = getattr(target, left.pop(0), None)
    if target in (os.environ, os.getenv) if callable(target) or target is os.environ else False:
        for constant in asked:
            if constant is None:
                walk.cannot_tell(
                    place + ".<environment>", "a variable of the environment is asked for by a computed name"
                )
            else:
                at, _ = walk.root(("environment", constant), f"environment variable {constant}")
                walk.fact(at, repr(os.environ.get(constant)))
                walk.watch_probe(partial(os.environ.get, constant))
        return True
    if target is importlib.import_module:
        return _computed_import(walk, place, name, chain, facts)
    return False


def _computed_import(walk: Walk, place: Place, name: str, chain: Chain, facts: CodeFacts) -> bool:
    for constant in {constant for variable, one, constant in facts.asked if variable == name and one == chain} or {
        None
    }:
        module = None if constant is None else _imported(constant, "")
        if module is None:
            walk.cannot_tell(place + ".<import>", "a module is imported by a computed name")
        else:
            walk.whole(place + f".<import {constant}>", module)
    return True


def _imports(walk: Walk, function: FunctionType, facts: CodeFacts) -> None:
    """Note the modules that a function imports when it runs: what is named of them, or all."""
    package = str(function.__globals__.get("__package__") or "")
    for name, listed, level in facts.imports:
        at, _ = walk.root(("import", package if level else "", level, name, listed), f"import {'.' * level}{name}")
        module = _imported("." * level + name, package if level else "")
        if module is not None and not origin_of(module).is_program:
            _patched_names(walk, at, module, facts)
        if module is None:
            walk.fact(at, "cannot be imported")
        elif not listed and "." in name and not level:
            top = _imported(name.partition(".")[0], "")
            read(walk, top, at, ())
            read(walk, module, at + ".<module>", ())
        elif not listed or "*" in listed:
            read(walk, module, at, ())
        else:
            for one in listed:
                if not hasattr(module, one):
                    _imported(f".{one}", module.__name__)
                read(walk, module, at, (one,))


def _patched_names(walk: Walk, place: Place, module: ModuleType, facts: CodeFacts) -> None:
    """Note what the program has put into an installed module, under names that the code uses."""
    for name in sorted(facts.names):
        value = vars(module).get(name)
        if isinstance(value, FunctionType) and origin_of_function(value).is_program:
            walk.whole(place + f".{name}", value)


def _imported(name: str, package: str) -> ModuleType | None:
    if not name.strip("."):
        name = name or "."
    found = sys.modules.get(name)
    if isinstance(found, ModuleType):
        return found
    try:
        if name.startswith(".") and not name.strip("."):
            return importlib.import_module(name, package) if package else None
        return importlib.import_module(name, package or None)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None  # imports run code of all kinds; where there is no such module, running the function will say so


def _files_beside(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts) -> None:
    """Note files that code names by text in a folder that it also names: `HERE / "words.txt"`, `open(name)`."""
    folders = []
    for name in facts.globals:
        value = function.__globals__.get(name)
        if name == "__file__" and isinstance(value, str):
            folders += [os.path.dirname(value), os.path.dirname(os.path.dirname(value))]  # noqa: PTH120
        elif isinstance(value, str | os.PathLike) and len(str(value)) < 4096 and os.path.isdir(value):  # noqa: PTH112
            folders.append(os.fspath(value) if isinstance(os.fspath(value), str) else "")
    opens = not _OPENERS.isdisjoint((*facts.names, *facts.globals))
    for text in facts.strings:
        if not text or len(text) > 1024 or "\n" in text:
            continue
        is_absolute = os.path.isabs(text)  # noqa: PTH117
        paths = [] if is_absolute else [os.path.join(folder, text) for folder in folders if folder]  # noqa: PTH118
        beside = [path for path in paths if os.path.isfile(path)]  # noqa: PTH113
        for path in beside:
            walk.file(place + f".<beside {text[:80]!r}>", path)
        # The program may run in the folder where it looks for its file, or elsewhere.
        is_named = bool(text.strip("./")) and (opens or is_absolute) and os.path.isfile(text)  # noqa: PTH113
        if is_named and not any(os.path.samefile(text, path) for path in beside):  # noqa: PTH121
            walk.file(place + f".<{text[:80]!r}>", text)


def _native_module(walk: Walk, place: Place, file: str) -> None:
    from warmstore.identity.named_files import content_of, stat_of

    found = stat_of(file)
    text = "" if found is None else content_of(file, found.st_size, found.st_mtime_ns, found.st_ino)
    walk.fact(place, f"native module {text}")


# Attributes.


def _read_module(walk: Walk, module: ModuleType, place: Place, name: str, rest: Chain) -> None:
    origin = origin_of(module)
    walk.origin(origin)
    if name in _WHOLE_NAMES:
        walk.whole(place, module)
        return
    if module.__name__ == "decimal":
        walk.whole(walk.root(("settings", "decimal"), "decimal context")[0], decimal.getcontext())
    walk.watch_cell(partial(vars(module).get, name))
    if isinstance(vars(module).get(name), FunctionType | type) and not _is_refused(module, origin):
        read(walk, vars(module)[name], place + f".{name}", rest)  # it has a place of its own
        return
    at = _place_in(walk, module, name)
    if module is sys and name == "modules":
        walk.cannot_tell(at, "sys.modules finds modules that no code names")
        return
    if _is_refused(module, origin):
        walk.cannot_tell(at, _REFUSED_MODULES[module.__name__])
        return
    if name not in vars(module):
        if origin.is_program and "__getattr__" in vars(module):
            walk.module(module)
            return
        value = getattr(module, name, None) if not origin.is_program or name in _OF_MODULES else None
        if value is None:
            walk.fact(at, "missing")
            return
    else:
        value = vars(module)[name]
    if origin.is_program and isinstance(value, ModuleType) and _is_extension(value):
        walk.whole(at, value)
    elif origin.is_program or isinstance(value, ModuleType):
        if name == "__file__":
            walk.file(at, value)
            walk.fact(at, "the file of the code")
        else:
            read(walk, value, at, rest)
    else:
        _read_of_library(walk, value, at, rest)


def _is_refused(module: ModuleType, origin: Origin) -> bool:
    return module.__name__ in _REFUSED_MODULES and not origin.is_program


def _is_extension(module: ModuleType) -> bool:
    return str(getattr(module, "__file__", None) or "").endswith((".so", ".pyd", ".dylib"))


def _read_of_library(walk: Walk, value: Any, at: Place, rest: Chain) -> None:
    """Note what a program reads of an installed module: functions by their names, settings by their values."""
    from warmstore.identity.kinds import is_stateful

    if isinstance(value, FunctionType | BuiltinFunctionType | type | MethodType) or callable(value):
        read(walk, value, at, rest if isinstance(value, type) else WHOLE)
    elif atom_text(value) is not None or is_stateful(value):
        walk.whole(at, value)
    elif origin_of_class(type(value)).is_program:
        read(walk, value, at, rest)
    else:
        walk.fact(at, f"object of {walk.cls(type(value))}")  # a library's own object: as its version has it


def _read_class(walk: Walk, cls: type, place: Place, name: str, rest: Chain) -> None:
    """Note one attribute of a class."""
    origin = origin_of_class(cls)
    kind = type(cls)
    if name in _WHOLE_NAMES or (origin_of_class(kind).is_program) or static(kind, name) is not None:
        if name == "__name__" and not origin_of_class(kind).is_program:
            walk.fact(place + ".__name__", repr(cls.__name__))
            return
        walk.whole(place, cls)
        return
    if origin.is_program and kind.__name__ in ("EnumType", "EnumMeta"):
        walk.whole(place, cls)
        return
    if not origin.is_program:
        walk.cls(cls)
    raw = static(cls, name)
    walk.watch_cell(partial(static, cls, name))
    named, module = walk.name_of(cls)
    at = walk.root(("attribute", id(cls), name), f"{named}.{name}", module, cls)[0]
    if raw is not None:
        walk.fact(at + ".<kind>", type(raw).__name__)
    if raw is None:
        walk.fact(at, "missing")
    elif isinstance(raw, FunctionType):
        walk.whole(at, raw)
    elif isinstance(raw, staticmethod):
        walk.whole(at, raw.__func__)
    elif isinstance(raw, classmethod):
        _bound(walk, at, raw.__func__, cls, place)
    elif atom_text(raw) is None and hasattr(type(raw), "__get__"):
        walk.whole(at, raw)
        if origin.is_program:
            walk.whole(place, cls)
    elif origin.is_program or atom_text(raw) is not None:
        read(walk, raw, at, rest)
    else:
        walk.fact(at, f"object of {walk.cls(type(raw))}")


def _is_narrow(kind: type) -> bool:
    """Whether objects of a class may be looked at by attributes: nothing of the program's makes attributes up."""
    from warmstore.identity.kinds import has_rule, is_module

    if is_module(kind):
        return not has_identity(kind)
    if (kind.__module__, kind.__name__) in _NAMESPACES:
        return True
    if has_rule(kind) or not origin_of_class(kind).is_program or has_identity(kind):
        return False
    return not any(
        name in vars(base) for base in kind.__mro__[:-1] for name in ("__getattr__", "__getattribute__", "__setattr__")
    )


def _read_object(walk: Walk, value: Any, place: Place, name: str, rest: Chain) -> None:
    """Note one attribute of an object, found as Python finds it."""
    from warmstore.identity.kinds import is_module

    kind = type(value)
    raw = static(kind, name)
    own = getattr(value, "__dict__", None) or {}
    if is_module(kind):
        if name in own and raw is None and not name.startswith("_"):
            read(walk, own[name], place + f".{name}", rest)
        else:
            walk.whole(place, value)
        return
    at = place + f".{name}"
    if raw is not None:
        walk.fact(at + ".<kind>", type(raw).__name__)  # a property and a method may have the same body
    if own:
        walk.watch_cell(partial(own.get, name))
    if isinstance(raw, property):
        if raw.fget is not None:
            _bound(walk, at, raw.fget, value, place)
        return
    if isinstance(raw, MemberDescriptorType | GetSetDescriptorType):
        try:
            read(walk, getattr(value, name), at, rest)
        except AttributeError:
            walk.fact(at, "missing")
        return
    if raw is not None and hasattr(type(raw), "__set__"):
        walk.whole(place, value)
    elif name in own:
        if not walk.is_new(value, ("attribute", name, rest), at):
            return
        read(walk, own[name], at, rest)
        if raw is not None and hasattr(raw, "func"):
            _bound(walk, at + ".<cached property>", raw.func, value, place)
    elif raw is None:
        walk.fact(at, "missing")
    elif isinstance(raw, FunctionType):
        _bound(walk, at, raw, value, place)
        if rest:
            walk.whole(place, value)
    elif isinstance(raw, staticmethod):
        walk.whole(at, raw.__func__)
    elif isinstance(raw, classmethod):
        _bound(walk, at, raw.__func__, kind, at + ".<class>")
    elif type(raw).__name__ == "cached_property" and type(raw).__module__ == "functools":
        _bound(walk, at, raw.func, value, place)
    elif hasattr(type(raw), "__get__"):
        walk.whole(place, value)
    else:
        read(walk, raw, at, rest)


def _bound(walk: Walk, place: Place, function: Any, owner: Any, owner_place: Place) -> None:
    """Note a function that is called with `owner` in its first place."""
    if not isinstance(function, FunctionType) or not origin_of_function(function).is_program:
        walk.whole(place, function)
        walk.whole(owner_place, owner)
        return
    walk.fact(place, walk.function(function))
    code = function.__code__
    if not code.co_argcount:
        walk.whole(owner_place, owner)
        return
    key = ("method", id(function))
    if not walk.is_new(owner, key, owner_place + f".<{function.__name__}>"):
        return
    facts = facts_of(code)
    first = code.co_varnames[0]
    chains = _uses(facts, first)
    _read_all(walk, owner, owner_place, chains)
    for name in sorted(facts.stored.get(first, ())):
        raw = static(owner if isinstance(owner, type) else type(owner), name)
        if raw is not None and hasattr(type(raw), "__set__") and not isinstance(raw, MemberDescriptorType):
            walk.whole(owner_place, owner)  # a setter runs
