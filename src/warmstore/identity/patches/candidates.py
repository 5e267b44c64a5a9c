"""Values in an installed module and its classes that may be patches of the program.

A value is a patch if it holds code of the program: a function, a class, an object of a class, or a partial, method,
property, cache or wrapper around one. So is a mock. A value of installed code is one if the code of the module cannot
have bound it: `numpy.sum = numpy.mean`, a partial over the function that was there, another number in a setting.
"""

from __future__ import annotations

import functools
import gc
import operator
import re
import sys
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

from warmstore.identity.object_state import is_made_in_python
from warmstore.identity.origin import WARMSTORE, has_file_of, is_installed_code, origin_of
from warmstore.identity.patches.bindings import Bindings, bindings_of
from warmstore.identity.patches.parts import WRAPPERS, has_name, is_bound, is_mock, parts_of, registry_of, wrapped_by

_SCALARS = frozenset((int, float, str, bytes, bool, type(None), complex))
DATA = _SCALARS | frozenset(
    (tuple, list, dict, set, frozenset, object, GenericAlias, UnionType, MappingProxyType, type(NotImplemented),
     type(...), GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType,
     ClassMethodDescriptorType)
)  # fmt: skip
"""Types of values that hold no function, or only what C code has put there."""

_SUSPECT = frozenset(
    (MethodType, MethodWrapperType, functools.partial, functools.partialmethod, operator.itemgetter,
     operator.attrgetter, operator.methodcaller)
)  # fmt: skip
_PASSING = frozenset(
    ("sys.stdin", "sys.stdout", "sys.stderr", "sys.last_type", "sys.last_value", "sys.last_exc", "sys.last_traceback",
     "sys.excepthook", "sys.unraisablehook", "sys.displayhook", "threading.excepthook", "warnings.showwarning",
     "warnings.formatwarning", "builtins._", "multiprocessing.process._current_process",
     "multiprocessing.process._parent_process")
)  # fmt: skip
"""Places of objects and functions that decide no results. Programs and Python itself put those of programs there."""

_INERT = frozenset(
    ("inspect", "warnings", "logging", "traceback", "threading", "asyncio", "socket", "ssl", "select", "selectors",
     "subprocess", "multiprocessing", "unittest", "linecache", "importlib", "pkgutil", "signal", "sys", "site",
     "typing", "concurrent", "http", "urllib", "tempfile", "pdb", "doctest", "abc", "ast", "dis", "contextvars",
     "os", "posix", "distutils", "getpass")
)  # fmt: skip
"""Modules of Python that libraries patch with functions of their own. This makes no difference to results."""

_KEEPERS = frozenset(
    ("threading", "logging", "multiprocessing", "sys", "warnings", "unittest", "concurrent", "asyncio", "signal")
)
"""Modules of Python that keep objects of programs. Functions of programs count there."""

_OF_DYNAMO = re.compile(
    r"__(?:compiled_fn|resume_at_\d+|comprehension_.+_at_\d+|gen_rand_values|warnings_warn_wrapper)_\d+(?:_[0-9a-f_]+)?|"
    r".*_\d{9,}_c\d+"
)
"""Globals that torch's Dynamo gives to the modules whose functions it has compiled, numbered or by an address. Only the
code that it makes reads them, and it installs a new one for each graph."""

_LOWER = frozenset(("torchvision._image_backend", "torchvision._video_backend"))
"""Settings whose names are in lower case."""


@dataclass(frozen=True, eq=False)
class PatchCandidate:
    """A value that may be a patch.

    place: The name in its module, or class and name. witness: The function or class in the value that may be the
    program's. is_sure: Whether it is a patch whatever the code of its module says.
    """

    place: str
    value: Any
    witness: Any = None
    is_sure: bool = False


@dataclass(frozen=True)
class Installed:
    """What is installed: the ids of the namespaces of modules, and whether classes may be the program's, if known.

    mock: The base class of mocks, if `unittest.mock` is loaded.
    """

    namespaces: frozenset[int]
    classes: dict[type, bool] = field(default_factory=dict)
    mock: type | None = None

    def has(self, namespace: dict[str, Any]) -> bool:
        """Whether a namespace is that of an installed module.

        Another thread may import while modules are searched: those that are new by now count, too.
        """
        if id(namespace) in self.namespaces:
            return True
        module = sys.modules.get(str(namespace.get("__name__")))
        return isinstance(module, ModuleType) and vars(module) is namespace and not origin_of(module).is_program


class ModuleSearch:
    """A search of one module and its classes.

    candidates: What it found. dicts: What was read.

    Args:
        installed: What is installed.
        is_of_python: Whether the module is one of Python's own. Their constants do not count as settings.
    """

    def __init__(self, name: str, module: ModuleType, installed: Installed, *, is_of_python: bool) -> None:
        self._name = name
        self._top = name.partition(".")[0]
        self._module = module
        self._own = vars(module)
        self._installed = installed
        self._is_of_python = is_of_python
        self.candidates: list[PatchCandidate] = []
        self._classes: set[int] = set()
        self.dicts: list[dict[Any, Any]] = [self._own]

    def is_setting(self, name: str) -> bool:
        """Whether a global name is that of a constant, by convention."""
        if self._is_of_python:
            return False
        return (name.isupper() and name != "TYPE_CHECKING") or f"{self._name}.{name}" in _LOWER

    def run(self) -> None:
        """Collect all candidates, and the dicts that were read."""
        own, name = self._own, self._name
        for attribute, value in list(own.items()):
            kind = type(value)
            if kind in DATA:
                if kind in _SCALARS and self.is_setting(attribute):
                    self.candidates.append(PatchCandidate(attribute, value))
            elif kind is FunctionType:
                if value.__globals__ is not own or value.__qualname__ != attribute or value.__closure__ is not None:
                    self._examine(attribute, value)
            elif kind is BuiltinFunctionType and value.__name__ == attribute and type(value.__self__) is ModuleType:
                continue
            elif issubclass(kind, type) and vars(value).get("__module__") == name:
                self._search_class(value)
                if value.__name__ != attribute:
                    self._examine(attribute, value)
            elif not issubclass(kind, ModuleType) and attribute != "__loader__":
                self._examine(attribute, value)

    def _search_class(self, cls: type) -> None:
        if id(cls) in self._classes:
            return
        self._classes.add(id(cls))
        members = vars(cls)
        self.dicts += gc.get_referents(members)  # the dict behind the proxy
        own, scope = self._own, f"{cls.__qualname__}."
        for label, member in list(members.items()):
            kind = type(member)
            if kind in DATA or kind is BuiltinFunctionType:
                continue
            if kind is FunctionType:
                if member.__globals__ is own and member.__closure__ is None and member.__qualname__ == scope + label:
                    continue
            elif issubclass(kind, type) and (member.__module__, member.__qualname__) == (self._name, scope + label):
                self._search_class(member)
                continue
            self._examine(scope + label, member, cls)

    def _examine(self, place: str, value: Any, cls: type | None = None) -> None:
        if f"{self._name}.{place}" in _PASSING or (self._top in _KEEPERS and not _is_function(value)):
            return
        if cls is None and _OF_DYNAMO.fullmatch(place):
            return
        if (registry := registry_of(value)) is not None:
            self.dicts += gc.get_referents(registry)
        witness = self._witness(value)
        mock = self._installed.mock
        is_sure = mock is not None and self._top != "unittest" and is_mock(value, mock)
        if witness is not None or is_sure or self._is_suspect(place, value, cls):
            self.candidates.append(PatchCandidate(place, value, witness, is_sure))

    def _witness(self, value: Any) -> FunctionType | type | None:
        """The first function or class in a value that may be the program's."""
        if type(value) is FunctionType and value.__closure__ is None and not value.__dict__:
            return None if self._installed.has(value.__globals__) else value  # most are such
        for part in parts_of(value):
            if type(part) is FunctionType:
                if not self._installed.has(part.__globals__):
                    return part
            elif self._may_be_programs(part):
                return part
        return None

    def _may_be_programs(self, cls: type) -> bool:
        found = self._installed.classes.get(cls)
        if found is None:
            found = self._installed.classes[cls] = self._is_made_elsewhere(cls)
        return found

    def _is_made_elsewhere(self, cls: type) -> bool:
        module = sys.modules.get(cls.__module__) if isinstance(cls.__module__, str) else None
        if module is None:
            methods = (each for each in vars(cls).values() if isinstance(each, FunctionType))
            return not all(self._installed.has(each.__globals__) for each in methods)
        return not self._installed.has(vars(module)) and is_made_in_python(cls)

    def _is_suspect(self, place: str, value: Any, cls: type | None) -> bool:
        """Whether others than the module may have put a value of installed code here.

        Reading the code of the module takes a millisecond. It is asked only about values that have the name of
        something else, come from another package, or wrap a function.
        """
        kind, name = type(value), place.rpartition(".")[2]
        if self._top in _INERT or _is_of_warmstore(value):
            return False
        if kind in _SUSPECT or kind.__name__ == "ScriptFunction":
            return True
        if issubclass(kind, WRAPPERS):
            return any(self._is_suspect(place, part, cls) for part in wrapped_by(value))
        if kind is FunctionType and "_torchdynamo_orig_callable" in value.__dict__:
            return not value.__dict__.get("_torchdynamo_disable")  # torch disables methods of its own
        if cls is not None:
            return kind is FunctionType and _is_other_method(value, name, cls)
        if kind is BuiltinFunctionType and is_bound(value):
            return True
        if not has_name(value):
            return callable(value)
        if self._top in sys.stdlib_module_names:
            return not self._is_near(value)
        if value.__name__.strip("_") != name.strip("_"):
            return True
        return (kind is FunctionType or issubclass(kind, type)) and not self._is_near(value)

    def _is_near(self, value: Any) -> bool:
        """Whether a function or class belongs to the package of the module, or to Python."""
        module = value.__globals__.get("__name__") if type(value) is FunctionType else None
        top = str(module or getattr(value, "__module__", None) or self._top).partition(".")[0]
        return top in (self._top, "typing_extensions") or top in sys.stdlib_module_names

    def chosen(self, installed: Installed) -> list[PatchCandidate]:
        """The candidates that may be patches, given the namespaces of the modules that are installed now."""
        return [
            each
            for each in self.candidates
            if each.witness is None or each.is_sure or _is_programs(each.witness, installed)
        ]

    def confirmed(self, chosen: list[PatchCandidate]) -> list[tuple[str, Any]]:
        """The patches among some candidates, with their full places."""
        bindings: Bindings | None = None
        if any(each.witness is None and not each.is_sure for each in chosen):
            bindings = bindings_of(self._module)
        return [(f"{self._name}.{each.place}", each.value) for each in chosen if not _explained(each, bindings)]


def _explained(candidate: PatchCandidate, bindings: Bindings | None) -> bool:
    if candidate.is_sure or candidate.witness is not None:
        return False
    if bindings is None:
        return True
    if type(candidate.value) in _SCALARS:
        return bindings.explains_constant(candidate.place, candidate.value)
    return bindings.explain(candidate.place, candidate.value)


def _is_of_warmstore(value: Any) -> bool:
    """Whether a value is a hook that warmstore has put into a library."""
    return type(value) is FunctionType and str(value.__globals__.get("__name__")).partition(".")[0] == WARMSTORE


def _is_function(value: Any) -> bool:
    kind = type(value)
    return kind is FunctionType or (kind in (staticmethod, classmethod) and type(value.__func__) is FunctionType)


def _is_other_method(function: FunctionType, name: str, cls: type) -> bool:
    """Whether a method was defined under another name, or in a class that is no base."""
    owner, _, own_name = function.__qualname__.rpartition(".")
    if not owner or "<locals>" in owner:
        return False
    return own_name != name or all(owner != base.__qualname__ for base in cls.__mro__)


def _is_programs(witness: FunctionType | type, installed: Installed) -> bool:
    """Whether a function or class is the program's. Libraries make functions from text, too, in other namespaces."""
    if isinstance(witness, type):
        module = sys.modules.get(witness.__module__)
        return module is None or not installed.has(vars(module))
    namespace = witness.__globals__
    if installed.has(namespace) or has_file_of(namespace):
        return False
    module = sys.modules.get(str(namespace.get("__name__")))
    if module is not None and vars(module) is namespace:
        return True  # also a notebook's cell
    return not witness.__code__.co_filename.startswith("<") and not is_installed_code(witness)
