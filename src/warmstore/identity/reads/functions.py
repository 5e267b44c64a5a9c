"""Functions of the program: code, defaults, closure, globals, imports, and files that the code names.

An installed function counts by its name and the version of its package. If a library made it for the program, such as a
decorator's wrapper, its closure may hold values of the program, which count as well.
"""

from __future__ import annotations

import functools
import inspect
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from warmstore.identity.named_files import FEW, first_parts, located, looks_like_path, stat_of
from warmstore.identity.object_state import MISSING, content_of, full_name
from warmstore.identity.origin import (
    INSTALLED,
    WARMSTORE,
    Origin,
    is_found,
    origin_of,
    origin_of_class,
    origin_of_function,
    origin_of_name,
)
from warmstore.identity.places import Place
from warmstore.identity.reads.attributes import INTROSPECTION, read, read_variable
from warmstore.identity.reads.classes import document, static
from warmstore.identity.reads.code_facts import Chain, CodeFacts, facts_of, parameters_of
from warmstore.identity.reads.globals import read_global
from warmstore.identity.reads.modules import read_imports, read_look_up
from warmstore.identity.reads.refusals import REFLECTION, reflection_reason, refusal_of
from warmstore.identity.walk import Walk

CACHED = "_warmstore_function"
"""The attribute of a function of `ws.cached` that is the function of the program."""

_OPENERS = frozenset(
    ("open", "Path", "PurePath", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "read_text", "read_bytes",
     "read_csv", "read_parquet", "read_json", "read_table", "imread", "from_pretrained", "File")
)  # fmt: skip
"""Names that code uses where it reads files. With one of them, a word without a suffix may be the name of a file."""

_RESOURCES = frozenset(
    ("files", "get_data", "read_text", "read_binary", "open_text", "open_binary", "resources", "pkgutil",
     "pkg_resources", "__spec__", "__loader__", "__package__")
)  # fmt: skip
"""Names that code uses where it finds files of its package."""


_MOST_FOLDERS = 64
"""In so many folders are names looked up that stand for folders in others."""


def read_function(walk: Walk, place: Place, function: FunctionType, origin: Origin) -> None:
    """Record all that decides what a function does."""
    reason = refusal_of(function)
    if reason:
        walk.cannot_tell(place, reason)
        return
    implementations = _implementations(function)
    if implementations is not None:
        walk.fact(place, "singledispatch")
        walk.watch(function.registry)  # type: ignore[attr-defined]
        walk.pairs(place + ".registry", "registry", implementations.items())
        return
    inner = function.__dict__.get("_torchdynamo_orig_callable")
    if inner is not None and not origin.is_program:
        walk.whole(place + ".<compiled>", inner)
        return
    if origin.name == WARMSTORE and CACHED in function.__dict__:  # decorators of others copy the attribute
        walk.whole(place + ".<cached>", function.__dict__[CACHED])
        return
    if origin.is_program:
        _read_program_function(walk, place, function)
        return
    walk.fact(place, f"function {full_name(function)}")
    if origin.kind == INSTALLED:
        walk.library_functions.append(function)
    if is_found(function) and not origin_of_name(str(function.__module__)).is_program:
        return
    # A library made the function for the program. The closure may hold values of the program.
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        walk.whole(place + f".<{name}>", cell)
    _read_defaults(walk, place, function, None)
    _read_attributes(walk, place, function)


def _read_program_function(walk: Walk, place: Place, function: FunctionType) -> None:
    walk.functions.append(function)
    walk.watch_cell(partial(getattr, function, "__code__"))
    facts = facts_of(function.__code__)
    walk.fact(place, f"code {facts.digest} constants {', '.join(facts.constants)[:160]}")
    _read_introspection(walk, place, function, facts)
    _read_defaults(walk, place, function, facts)
    _read_attributes(walk, place, function)
    _read_closure(walk, place, function, facts)
    for name in sorted({*facts.globals, *(facts.quoted & function.__globals__.keys())}):
        read_global(walk, place, function, name, facts)
    read_imports(walk, function, facts)
    _find_named_files(walk, place, function, facts)
    for called, passed in facts.passed:
        if _is_installed(_followed(function, called)):
            document(walk, _followed(function, passed))


def _followed(function: FunctionType, names: Chain) -> Any:
    """What a chain of a global and its attributes stands for; the object of a method that is reached through one."""
    value = function.__globals__.get(names[0])
    for name in names[1:]:
        if not isinstance(value, ModuleType | type):
            break
        value = vars(value).get(name) if isinstance(value, ModuleType) else static(value, name)
    return value


def _is_installed(value: Any) -> bool:
    """Whether a callable, or an object with methods, is that of an installed package."""
    if isinstance(value, FunctionType):
        origin = origin_of_function(value)
    elif isinstance(value, BuiltinFunctionType):
        origin = origin_of_name(str(value.__module__))
    else:
        origin = origin_of_class(value if isinstance(value, type) else type(value))
    return origin.kind == INSTALLED and origin.name != WARMSTORE


def read_call(
    walk: Walk, place: Place, function: Any, args: Iterable[Any] = (), keywords: Mapping[str, Any] | None = None
) -> None:
    """Record a call: the function, and each argument as far as the function reads it."""
    plain, bound = function, 0
    if isinstance(function, MethodType):
        plain, bound = function.__func__, 1
    facts: CodeFacts | None = None
    names: tuple[str, ...] = ()
    if isinstance(plain, FunctionType) and origin_of_function(plain).is_program:
        facts = facts_of(plain.__code__)
        names = plain.__code__.co_varnames[bound : plain.__code__.co_argcount]
    args, keywords = tuple(args), keywords or {}
    if not read_look_up(walk, place + ".func", function, [*args, keywords.get("key")][:1]):
        read_called(walk, place + ".func", function)
    for at, value in enumerate(args):
        is_named = at < len(names)
        read_variable(walk, value, place + f"({at})", facts if is_named else None, names[at] if is_named else "")
    if keywords and not (isinstance(plain, FunctionType) and not plain.__code__.co_flags & inspect.CO_VARKEYWORDS):
        walk.fact(place + ".<keywords>", f"{list(keywords)}")
    known = parameters_of(plain.__code__) if facts is not None else ()
    variadic = facts is not None and bool(plain.__code__.co_flags & 0x0C)
    for name, value in sorted(keywords.items()):
        is_named = name in known and not variadic
        read_variable(walk, value, place + f"({name})", facts if is_named else None, name)
    walk.folders |= dict.fromkeys(filter(None, map(_folder, (*args, *keywords.values()))))


def read_called(walk: Walk, place: Place, function: Any) -> None:
    """Record a value that is only called. Of an object with `__call__`, only what this method reads counts."""
    kind = type(function)
    is_function = isinstance(function, FunctionType | MethodType | BuiltinFunctionType | type)
    if not is_function and origin_of_class(kind).is_program and isinstance(static(kind, "__call__"), FunctionType):
        walk.fact(place, f"called object of {walk.name_of(kind)[0]}")
        read(walk, function, place, ("__call__",))
        return
    walk.whole(place, function)


def _implementations(function: FunctionType) -> dict[Any, Any] | None:
    """The implementations of a `functools.singledispatch` function by class; None for any other function."""
    is_dispatcher = function.__code__.co_qualname == "singledispatch.<locals>.wrapper"
    if not is_dispatcher or function.__globals__ is not vars(functools):
        return None
    return dict(function.registry)  # type: ignore[attr-defined]


def _read_introspection(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts) -> None:
    """Note which documentation the code reads: it then counts for all functions and classes. Refuse reflection."""
    functions = ("getdoc", "get_type_hints", "get_annotations")
    names = {*facts.loose, *facts.strings, *(name for name in functions if name in facts.names)}
    walk.introspects |= {INTROSPECTION[name] for name in names & INTROSPECTION.keys()}
    for name in REFLECTION.intersection((*facts.names, *facts.strings)):
        walk.cannot_tell(place + f".<{name}>", reflection_reason(name))
    walk.described.append((place, function))


def _read_defaults(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts | None) -> None:
    for attribute in ("__defaults__", "__kwdefaults__"):
        walk.watch_cell(partial(getattr, function, attribute))
    if function.__kwdefaults__:
        walk.watch(function.__kwdefaults__)
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    pairs = [*zip(names, defaults, strict=False), *sorted((function.__kwdefaults__ or {}).items())]
    if pairs:
        walk.fact(place + ".<defaults>", f"{[name for name, _ in pairs]}")
    for name, value in pairs:
        read_variable(walk, value, place + f"({name}=)", facts, name)


def _read_attributes(walk: Walk, place: Place, function: FunctionType) -> None:
    walk.watch(function.__dict__)
    walk.attributes(place, function.__dict__)


def _read_closure(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts) -> None:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        walk.watch_cell(partial(content_of, cell))
        value = content_of(cell)
        if value is MISSING:
            walk.fact(place + f".<{name}>", "empty")
        else:
            read_variable(walk, value, place + f".<{name}>", facts, name)


def _find_named_files(walk: Walk, place: Place, function: FunctionType, facts: CodeFacts) -> None:
    """Note the files that string constants name, and the folders that the code names: `HERE / "words.txt"`."""
    globals_ = function.__globals__
    file = globals_.get("__file__")
    names = {*facts.names, *facts.globals}
    texts = [text for text in facts.strings if text not in facts.written and _may_be_name(text)]
    if "__file__" in facts.globals and isinstance(file, str):
        stem = Path(file).stem
        texts += [stem + text for text in texts if text.startswith(".")]
    if not _RESOURCES.isdisjoint(names):
        modules = (*texts, *(globals_.get(name) for name in ("__name__", *facts.globals)))
        walk.folders |= dict.fromkeys(folder for module in modules for folder in _folders_of(module))
    walk.folders |= dict.fromkeys(filter(None, (_folder(globals_.get(name)) for name in facts.globals)))
    opens = not _OPENERS.isdisjoint(names)
    for text in texts:
        walk.names_in_folders.setdefault(text, place)
        found = located(text)[1]
        is_path = opens or "/" in text or "." in text
        if found is None and is_path:
            walk.missing_file(text)
        elif is_path and text.strip("./") and found is not None and stat.S_ISREG(found.st_mode):
            walk.named_files.append((place, text))


def _folders_of(module: Any) -> list[str]:
    """The folders in which a module of the program has its files, given itself or its name."""
    module = sys.modules.get(module) if isinstance(module, str) else module
    if not isinstance(module, ModuleType) or not origin_of(module).is_program:
        return []
    file = getattr(module, "__file__", None)
    return [*([os.path.dirname(file)] if isinstance(file, str) else ()), *getattr(module, "__path__", ())]  # noqa: PTH120


def read_named_files(walk: Walk) -> None:
    """Queue the recording of the files that the followed code may read by names, at the end of a walk.

    A name counts in each folder that code or values name, in the folders in these that have names, too, and in the
    working directory.
    """
    names = {
        text: text.lstrip("/")  # `root + "/words.txt"`
        for text in walk.names_in_folders
        if text.strip("./") and not (text.startswith("/") and os.path.exists(text))  # noqa: PTH110
    }
    folders = [*walk.folders]
    files: dict[str, list[str]] = {}
    for folder in folders:  # grows
        for text, path, found in _named_in(walk, folder, names):
            if stat.S_ISREG(found.st_mode):
                files.setdefault(text, []).append(path)
            elif len(folders) < _MOST_FOLDERS and path not in folders:
                folders.append(path)
    for text, paths in files.items():
        at = walk.names_in_folders[text] + f".<beside {text!r}>"
        walk.later(at, partial(walk.strings if paths[1:] else walk.file, at, paths if paths[1:] else paths[0]))
    for place, text in walk.named_files:
        at = place + f".<{text!r}>"
        walk.later(at, partial(_read_named_file, walk, at, text, files.get(text, ())))


def _named_in(walk: Walk, folder: str, names: Mapping[str, str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """The names of files and folders in a folder: the texts that have them, the paths, and the results of `os.stat`."""
    firsts = first_parts([folder]) if len(names) > FEW else None
    for text, name in names.items():
        if firsts is None or name.partition("/")[0] in firsts:
            path = f"{folder}/{name}"
            if (found := stat_of(path)) is not None:
                yield text, path, found
            elif firsts is None and walk.settings.watch is not None and looks_like_path(text):
                walk.missing_file(path)


def _read_named_file(walk: Walk, place: Place, text: str, others: Sequence[str]) -> None:
    """Record a file in the working directory, which may be the folder of the program in which it was found, or not."""
    if not any(os.path.samefile(located(text)[0], other) for other in others):  # noqa: PTH121
        walk.file(place, text)


def _may_be_name(text: str) -> bool:
    return 0 < len(text) <= 1024 and "\n" not in text and "\0" not in text


def _folder(value: Any) -> str:
    """The folder that a value names; "" if it names none."""
    if not isinstance(value, str | os.PathLike) or len(str(value)) >= 4096:
        return ""
    path = os.fspath(value)
    path, found = located(path) if isinstance(path, str) else ("", None)
    return path if found is not None and stat.S_ISDIR(found.st_mode) else ""
