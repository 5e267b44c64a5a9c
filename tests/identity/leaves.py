"""Every value in reach of a live callable, where it stands, and how to change it.

The walk is made for these tests and knows nothing of the engine that they test. It goes through whatever a callable
could look at: attributes, globals that its code names, closures, defaults, classes and their bases, containers. It
reaches too much rather than too little: what does not matter to a callable cannot change what it gives.
"""

import collections
import datetime
import decimal
import enum
import fractions
import functools
import logging
import pathlib
import re
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.identity.worlds import is_program, observed

_OPEN_ENDED = frozenset({"vars", "getattr", "globals", "__dict__"})  # names that read attributes without naming them
_INERT = (logging.Logger, logging.Handler)
_MACHINERY = frozenset({"_abc_impl"})
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, decimal.Decimal, fractions.Fraction, range, slice)
_KINDS = (datetime.date, datetime.timedelta, pathlib.PurePath, re.Pattern, torch.dtype)


@dataclass(frozen=True)
class Place:
    """The nearest thing with a name around a value: an attribute, a global, a cell, a default.

    kind: "attribute", "global", "cell", "default", or "argument": of a `functools.partial` that is called itself.
    """

    kind: str
    holder: int
    name: str


@dataclass(frozen=True)
class Leaf:
    path: str
    place: Place
    value: Any
    put: Callable[[Any], None]


@dataclass(frozen=True)
class Reached:
    """What a callable can look at: leaves, and the functions that it can call, by path."""

    leaves: list[Leaf]
    functions: dict[str, types.FunctionType]


def reached(entry: Any, elements: int = 3) -> Reached:
    """Everything in reach of a callable; of arrays and tensors so many elements, evenly spread."""
    walk = _Walk(elements)
    walk.follow(entry)
    return Reached(walk.leaves, walk.functions)


def changed(value: Any) -> Any:
    """Another value of the same type: numbers by one."""
    if isinstance(value, (bool, np.bool_)):
        return type(value)(not value)
    if isinstance(value, enum.Enum):
        members = list(type(value).__members__.values())
        return members[(members.index(value) + 1) % len(members)]
    if isinstance(value, (int, float, complex, np.number, decimal.Decimal, fractions.Fraction)):
        return type(value)(value + 1 if np.isfinite(complex(value)) else 0)
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, range):
        return range(value.start, value.stop + 1, value.step)
    if isinstance(value, slice):
        return slice(value.start, 1 if value.stop is None else value.stop - 1, value.step)
    if isinstance(value, (datetime.date, datetime.timedelta)):
        return value + datetime.timedelta(days=1)
    if isinstance(value, pathlib.PurePath):
        return value / "x"
    if isinstance(value, re.Pattern):
        return re.compile(f"(?:{value.pattern})x" if isinstance(value.pattern, str) else value.pattern, value.flags)
    if isinstance(value, torch.dtype):
        return torch.float16 if value != torch.float16 else torch.float32
    raise TypeError(f"no other {type(value).__name__}")


def other_code(function: types.FunctionType) -> types.CodeType:
    """Code for a function that takes any arguments and gives something else."""
    names = [f"cell{at}" for at in range(len(function.__code__.co_freevars))]
    lines = ["def outer():", f"    {''.join(f'{name} = ' for name in names)}other = 0"]
    lines += ["    def other(*arguments, **options):", f"        return ('something else', {', '.join(names)})"]
    namespace: dict[str, Any] = {}
    exec("\n".join([*lines, "    return other.__code__"]), namespace)
    code: types.CodeType = namespace["outer"]()
    return code


_Pending = tuple[str, Any, Callable[[Any], None] | None, Place]


class _Walk:
    def __init__(self, elements: int) -> None:
        self.leaves: list[Leaf] = []
        self.functions: dict[str, types.FunctionType] = {}
        self._elements = elements
        self._seen: dict[int, Any] = {}
        self._names: set[str] = set()
        self._pending: collections.deque[_Pending] = collections.deque()

    def follow(self, entry: Any) -> None:
        self._add("", entry, None, Place("argument", 0, ""))
        while self._pending:
            self._visit(*self._pending.popleft())

    def _add(self, path: str, value: Any, put: Callable[[Any], None] | None, place: Place) -> None:
        self._pending.append((path, value, put, place))

    def _attribute(self, path: str, holder: Any, name: str, value: Any) -> None:
        def put(new: Any) -> None:
            if isinstance(holder, type):
                type.__setattr__(holder, name, new)
            elif name in getattr(holder, "__dict__", ()):
                holder.__dict__[name] = new
            else:
                object.__setattr__(holder, name, new)

        self._add(f"{path}.{name}", value, put, Place("attribute", id(holder), name))

    def _visit(self, path: str, value: Any, put: Callable[[Any], None] | None, place: Place) -> None:
        if isinstance(value, (*_PLAIN, *_KINDS, enum.Enum)):
            if put is not None:
                self.leaves.append(Leaf(path, place, value, put))
            if not isinstance(value, enum.Enum):
                return
        if isinstance(value, _INERT) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.ModuleType):
            if is_program(value):
                self._module(path, value, lambda name: True)
        elif isinstance(value, type):
            if is_program(value):
                self._class(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self._add(f"{path}.__func__", value.__func__, None, place)
            self._add(path, value.__self__, None, place)
        elif isinstance(value, functools.partial):
            self._partial(path, value, place)
        elif isinstance(value, np.ndarray):
            self._array(path, value, place)
        elif isinstance(value, torch.Tensor):
            self._tensor(path, value, place)
        else:
            self._items(path, value, put, place)
            self._object(path, value)

    def _module(self, path: str, module: types.ModuleType, wanted: Callable[[str], bool]) -> None:
        for name, value in list(vars(module).items()):
            if not name.startswith("__") and wanted(name):
                self._global(f"{path}.{name}", vars(module), name, value)

    def _global(self, path: str, namespace: dict[str, Any], name: str, value: Any) -> None:
        self._add(path, value, functools.partial(namespace.__setitem__, name), Place("global", id(namespace), name))

    def _function(self, path: str, function: types.FunctionType) -> None:
        if is_program(function) and function.__globals__["__name__"] == function.__module__:
            self.functions[path] = function
            self._names_of(path, function)
            self._defaults(path, function)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):

            def fill(new: Any, cell: Any = cell) -> None:
                cell.cell_contents = new

            try:
                self._add(f"{path}<{name}>", cell.cell_contents, fill, Place("cell", id(cell), name))
            except ValueError:  # nothing in it
                continue
        for name, value in function.__dict__.items():
            self._attribute(path, function, name, value)

    def _defaults(self, path: str, function: types.FunctionType) -> None:
        for at, value in enumerate(function.__defaults__ or ()):
            names = function.__code__.co_varnames[: function.__code__.co_argcount]
            name = names[len(names) - len(function.__defaults__ or ()) + at]

            def put(new: Any, at: int = at) -> None:
                defaults = list(function.__defaults__ or ())
                defaults[at] = new
                function.__defaults__ = tuple(defaults)

            self._add(f"{path}({name})", value, put, Place("default", id(function), name))
        for name, value in (function.__kwdefaults__ or {}).items():
            keywords = function.__kwdefaults__ or {}
            put_keyword = functools.partial(keywords.__setitem__, name)
            self._add(f"{path}({name})", value, put_keyword, Place("default", id(function), name))

    def _names_of(self, path: str, function: types.FunctionType) -> None:
        names = set(_names_in(function.__code__))
        all_of_it = bool(names & _OPEN_ENDED)
        namespace = function.__globals__
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            if isinstance(value, types.ModuleType) and is_program(value):
                prefix = f"{value.__name__}"
                self._module(prefix, value, lambda name: all_of_it or name in names)
            else:
                self._global(f"{namespace['__name__']}.{name}", namespace, name, value)

    def _class(self, path: str, cls: type) -> None:
        for base in (*cls.__bases__, type(cls)):
            self._add(f"{base.__module__}.{base.__qualname__}", base, None, Place("attribute", 0, ""))
        for member in getattr(cls, "_member_map_", {}).values():
            self._object(f"{path}.{member.name}", member)
        for name, value in list(vars(cls).items()):
            inner = f"{path}.{name}"
            if isinstance(value, (staticmethod, classmethod)):
                self._add(inner, value.__func__, None, Place("attribute", id(cls), name))
            elif isinstance(value, (property, functools.cached_property, functools.singledispatchmethod)):
                for part in ("fget", "fset", "func", "dispatcher"):
                    if getattr(value, part, None) is not None:
                        self._add(f"{inner}.{part}", getattr(value, part), None, Place("attribute", id(cls), name))
            elif isinstance(value, types.FunctionType):
                self._add(inner, value, None, Place("attribute", id(cls), name))
            elif not _is_machinery(name, cls) and not isinstance(value, types.MemberDescriptorType):
                self._attribute(path, cls, name, value)

    def _object(self, path: str, value: Any) -> None:
        if isinstance(value, weakref.ref):
            self._add(f"{path}()", value(), None, Place("attribute", id(value), ""))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for name, inner in list(attributes.items()):
                if isinstance(value, enum.Enum) and name != "_value_" and name.startswith("_"):
                    continue
                self._attribute(path, value, name, inner)
        for cls in type(value).__mro__:
            slots = vars(cls).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if is_program(cls) and not name.startswith("__") and hasattr(value, name):
                    self._attribute(path, value, name, getattr(value, name))
        if is_program(type(value)):
            self._add(
                f"{type(value).__module__}.{type(value).__qualname__}", type(value), None, Place("attribute", 0, "")
            )
        elif is_program(type(type(value))):
            self._add(f"{path}.__class__", type(value), None, Place("attribute", 0, ""))

    def _partial(self, path: str, value: functools.partial[Any], place: Place) -> None:
        self._add(f"{path}.func", value.func, None, place)

        for at, argument in enumerate(value.args):
            self._add(f"{path}({at})", argument, functools.partial(put_argument, value, at), place)
        for name, argument in value.keywords.items():
            self._add(f"{path}({name})", argument, functools.partial(put_argument, value, name), place)

    def _items(self, path: str, value: Any, put: Callable[[Any], None] | None, place: Place) -> None:
        if isinstance(value, types.MappingProxyType):
            for key, item in value.items():
                self._add(f"{path}[{key!r}]", item, None, place)
        elif isinstance(value, dict):
            hooks = place.name.endswith("_hooks")  # of torch, by numbers that no two processes need to share
            for at, (key, item) in enumerate(list(value.items())):
                label = at if hooks else _label(key)
                self._add(f"{path}[{label}]", item, functools.partial(dict.__setitem__, value, key), place)
                if isinstance(key, (str, int, float)) and not isinstance(key, enum.Enum) and not hooks:
                    self.leaves.append(Leaf(f"{path} key {key!r}", place, key, _KeyOf(value, key)))
        elif isinstance(value, (list, collections.deque)):
            for at, item in enumerate(value):
                self._add(f"{path}[{at}]", item, functools.partial(value.__setitem__, at), place)
        elif isinstance(value, tuple):
            for at, item in enumerate(value):
                self._add(f"{path}[{at}]", item, _in_tuple(value, at, put), place)
        elif isinstance(value, (set, frozenset)):
            for item in sorted(value, key=observed):
                self._add(f"{path}{{{_label(item)}}}", item, _in_set(value, item, put), place)

    def _array(self, path: str, array: np.ndarray[Any, Any], place: Place) -> None:
        for name, inner in getattr(array, "__dict__", {}).items():
            self._attribute(path, array, name, inner)
        plain = array.view(np.ndarray)
        for at in _spread(plain.size, self._elements):
            where = np.unravel_index(at, plain.shape)
            element = plain[where]
            if isinstance(element, np.generic) and plain.flags.writeable and not isinstance(element, np.void):
                put = functools.partial(plain.__setitem__, where)
                self.leaves.append(Leaf(f"{path}[{at}]", place, element, put))

    def _tensor(self, path: str, tensor: torch.Tensor, place: Place) -> None:
        detached = tensor.detach()
        for at in _spread(tensor.numel(), self._elements):
            where = tuple(int(one) for one in np.unravel_index(at, tuple(tensor.shape)))
            put = functools.partial(detached.__setitem__, where)
            self.leaves.append(Leaf(f"{path}[{at}]", place, detached[where].item(), put))


class _KeyOf:
    """Gives an item of a dict another key, in the same place of its order."""

    def __init__(self, mapping: dict[Any, Any], key: Any) -> None:
        self._mapping, self._key = mapping, key

    def __call__(self, new: Any) -> None:
        if new != self._key and new in self._mapping:
            raise ValueError(f"there is a key {new!r} already")
        items = [(new if key == self._key else key, value) for key, value in self._mapping.items()]
        kind = collections.OrderedDict if isinstance(self._mapping, collections.OrderedDict) else dict
        kind.clear(self._mapping)
        kind.update(self._mapping, items)
        self._key = new


def _in_tuple(value: Any, at: int, put: Callable[[Any], None] | None) -> Callable[[Any], None] | None:
    if put is None:
        return None

    def replace(new: Any) -> None:
        items = (*value[:at], new, *value[at + 1 :])
        put(items if type(value) is tuple else tuple.__new__(type(value), items))

    return replace


def _in_set(value: Any, item: Any, put: Callable[[Any], None] | None) -> Callable[[Any], None] | None:
    if put is None:
        return None
    return lambda new: put(type(value)([new, *(other for other in value if other != item)]))


def _is_machinery(name: str, cls: type) -> bool:
    """Whether Python and not the program has put an attribute into a class."""
    if isinstance(cls, enum.EnumMeta) and (name.startswith("_") or name in cls.__members__):
        return True
    return name in _MACHINERY or (name.startswith("__") and name.endswith("__"))


def _label(key: Any) -> str:
    if isinstance(key, type) or callable(key):
        return str(getattr(key, "__qualname__", type(key).__name__))
    return repr(key) if type(key) in (str, int) else observed(key)[:60]


def _spread(size: int, count: int) -> Iterator[int]:
    """So many of `size` places, evenly: the first, the last, and some between."""
    return iter(sorted({int(at) for at in np.linspace(0, size - 1, min(size, count))}) if size else ())


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def put_argument(partial: functools.partial[Any], at: int | str, new: Any) -> None:
    """Give a `functools.partial` another argument: the one in this place, or of this name."""
    arguments, keywords = list(partial.args), dict(partial.keywords)
    if isinstance(at, int):
        arguments[at] = new
    else:
        keywords[at] = new
    partial.__setstate__((partial.func, tuple(arguments), keywords, vars(partial)))
