"""Edits of a living program in place: of every variable, container, class and function in its reach."""

import collections
import copy
import enum
import functools
import sys
import types
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.identity.leaves import put_argument

Undo = Callable[[], None]
_ATOMS = (bool, int, float, str, bytes, type(None))
_PARTS = (types.FunctionType, functools.partial, list, dict)
_SHADOWED = ("len", "sum", "max", "min", "sorted", "map", "range", "type", "isinstance", "next", "iter", "abs", "int")
_METHODS = ("__len__", "__call__", "__bool__", "__add__", "__iter__", "__getitem__", "__eq__", "__getattr__", "__int__")
_LEFT_ALONE = ("__module__", "__doc__", "_abc_impl", "__reduce__", "__getattribute__")  # no program would go on
_INSIDE = ("__wrapped__", "func", "f", "fget", "fset", "__func__", "dispatcher", "maps", "data", "default_factory")


@dataclass(frozen=True)
class LiveEdit:
    """An edit.

    do: makes it, and returns what takes it back. is_exact: whether all is as before then, the order of names too.
    """

    words: str
    do: Callable[[], Undo]
    is_exact: bool = True


class Edits:
    """All edits of what is in reach of the globals of some modules and of a value, always in the same order."""

    def __init__(self, modules: list[types.ModuleType], value: Any) -> None:
        self.found: list[LiveEdit] = []
        self.memos: list[Callable[[], Any]] = []  # they forget what calls have computed
        self._names = {module.__name__ for module in modules}
        self._seen: dict[int, Any] = {}
        self._pending: collections.deque[tuple[str, Any, Callable[[Any], None] | None]] = collections.deque()
        for module in modules:
            self._module(module)
        self._pending.append(("<argument>", value, None))
        while self._pending:
            self._visit(*self._pending.popleft())

    def _add(self, words: str, do: Callable[[], Undo], *, is_exact: bool = True) -> None:
        self.found.append(LiveEdit(words, do, is_exact))

    def _slot(self, path: str, value: Any, put: Callable[[Any], None] | None) -> None:
        """What can take the place of a value."""
        if put is not None:
            for words, other in _others(value):
                self._add(f"{path} is {words}", functools.partial(_replaced, put, value, other))
        self._pending.append((path, value, put))

    def _visit(self, path: str, value: Any, put: Callable[[Any], None] | None) -> None:
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, type):
            if value.__module__ in self._names:
                self._class(path, value)
        elif isinstance(value, types.FunctionType):
            if value.__globals__.get("__name__") in self._names:
                self._function(path, value)
            else:
                self._wrapper(path, value)
        elif isinstance(value, types.ModuleType):
            return
        elif isinstance(value, functools._lru_cache_wrapper):
            self.memos.append(value.cache_clear)
            self._pending.append((f"{path}.__wrapped__", value.__wrapped__, None))
        elif isinstance(value, types.MethodType):
            self._pending.append((f"{path}.__func__", value.__func__, None))
            self._pending.append((f"{path}.__self__", value.__self__, None))
        elif isinstance(value, functools.partial):
            self._partial(path, value)
        else:
            self._content(path, value, put)
            self._object(path, value)

    def _module(self, module: types.ModuleType) -> None:
        scope, name = vars(module), module.__name__
        for key, value in list(scope.items()):
            if not key.startswith("__") and not isinstance(value, types.ModuleType):
                self._slot(f"{name}.{key}", value, functools.partial(scope.__setitem__, key))
                self._add(f"del {name}.{key}", functools.partial(_deleted, scope, key), is_exact=False)
        other = types.ModuleType(name)
        vars(other).update({key: (lambda *a: 12) if key[:1] == "f" else value for key, value in scope.items()})
        self._add(f"sys.modules[{name!r}] is another", functools.partial(_item_put, sys.modules, name, other))
        if "." in name:
            package = sys.modules[name.partition(".")[0]]
            self._add(f"{name} is another", functools.partial(_set, package, name.partition(".")[2], other))
        for key in sorted(set(_SHADOWED) - scope.keys()):
            self._add(f"{name}.{key} is new", functools.partial(_item_set, scope, key, lambda *a, **k: 3))

    def _class(self, path: str, cls: type) -> None:
        put = functools.partial(setattr, cls)
        for name, value in list(vars(cls).items()):
            if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType) or name in _LEFT_ALONE:
                continue
            if name.startswith("_") and not isinstance(value, types.FunctionType) and name.endswith("_"):
                continue
            self._slot(f"{path}.{name}", value, functools.partial(put, name))
            self._add(f"del {path}.{name}", functools.partial(_attribute_deleted, cls, name, value), is_exact=False)
        inherited = {name for base in cls.__mro__[1:-1] for name in vars(base) if not name.startswith("__")}
        for name in sorted(inherited - vars(cls).keys()):
            for other in (lambda *a, **k: 4, 77):
                self._add(f"{path}.{name} hides the base's", functools.partial(_attribute_added, cls, name, other))
        for name in _METHODS:
            if name not in vars(cls):
                method = _found if name == "__getattr__" else lambda *a: 4
                self._add(f"{path}.{name} is new", functools.partial(_attribute_added, cls, name, method))
        for base in cls.__bases__:
            self._pending.append((base.__name__, base, None))
        self._pending.append((type(cls).__name__, type(cls), None))
        for name, member in getattr(cls, "__members__", {}).items():
            self._slot(f"{path}.{name}._value_", member._value_, functools.partial(vars(member).__setitem__, "_value_"))

    def _function(self, path: str, function: types.FunctionType) -> None:
        for words, code in _other_codes(function.__code__):
            self._add(f"{path}.__code__ has {words}", functools.partial(_set, function, "__code__", code))
        defaults = function.__defaults__ or ()
        for at, value in enumerate(defaults):
            self._slot(f"{path}.__defaults__[{at}]", value, functools.partial(_default_put, function, at))
        for name, value in (function.__kwdefaults__ or {}).items():
            self._slot(f"{path}({name}=)", value, functools.partial((function.__kwdefaults__ or {}).__setitem__, name))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._slot(f"{path}<{name}>", cell.cell_contents, functools.partial(setattr, cell, "cell_contents"))
            except ValueError:
                continue
        self._content(f"{path}.__dict__", function.__dict__, None)

    def _wrapper(self, path: str, function: Any) -> None:
        """A function of the standard library around one of the program."""
        for kind, implementation in list(getattr(function, "registry", {}).items()):
            self._pending.append((f"{path}[{kind.__name__}]", implementation, None))
            if kind is not object:
                self._add(f"{path} of {kind.__name__} is another", functools.partial(_registered, function, kind))
        if not hasattr(function, "registry"):
            for cell in function.__closure__ or ():
                self._pending.append((f"{path}<>", cell.cell_contents, None))

    def _partial(self, path: str, value: Any) -> None:
        self._pending.append((f"{path}.func", value.func, None))
        for at, argument in enumerate(value.args):
            self._slot(f"{path}({at})", argument, functools.partial(put_argument, value, at))
        for name, argument in value.keywords.items():
            self._slot(f"{path}({name}=)", argument, functools.partial(put_argument, value, name))

    def _object(self, path: str, value: Any) -> None:
        kind = type(value)
        own: Any = getattr(value, "__dict__", None)
        for base in kind.__mro__ if isinstance(own, dict) else ():
            for name, member in vars(base).items():
                if isinstance(member, functools.cached_property):
                    self.memos.append(functools.partial(own.pop, name, None))
        if isinstance(own, dict) and kind.__module__ in self._names and not isinstance(value, enum.Enum):
            for name, inner in list(own.items()):
                self._slot(f"{path}.{name}", inner, functools.partial(own.__setitem__, name))
                self._add(f"del {path}.{name}", functools.partial(_item_deleted, own, name))
            for name in sorted({name for base in kind.__mro__ for name in vars(base) if not name.startswith("__")}):
                if name not in own:
                    for other in (lambda *a: 6, 66):
                        self._add(f"{path}.{name} hides the class's", functools.partial(_item_set, own, name, other))
        for base in kind.__mro__:
            for name in vars(base).get("__slots__", ()) if base.__module__ in self._names else ():
                if not name.startswith("__") and hasattr(value, name):
                    self._slot(
                        f"{path}.{name}", getattr(value, name), functools.partial(object.__setattr__, value, name)
                    )
        if kind.__module__ in self._names:
            self._pending.append((kind.__name__, kind, None))
            hooks = any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1])
            if not hooks and (isinstance(own, dict) or "__slots__" in vars(kind)):
                self._add(f"{path}.__class__ is a subclass", functools.partial(_reclassed, value))
        for name in _INSIDE:
            if kind.__module__ not in (*self._names, "weakref") and isinstance(
                inner := getattr(value, name, None), _PARTS
            ):
                is_own = isinstance(own, dict) and name in own
                self._slot(f"{path}.{name}", inner, functools.partial(own.__setitem__, name) if is_own else None)
        if type(value) is collections.defaultdict:
            self._add(
                f"{path}.default_factory is another", functools.partial(_set, value, "default_factory", lambda: 8)
            )

    def _content(self, path: str, value: Any, put: Callable[[Any], None] | None) -> None:
        if isinstance(value, dict):
            for key, item in list(dict.items(value)):
                self._slot(f"{path}[{key!r}]", item, functools.partial(type(value).__setitem__, value, key))
            for words, edit in _MAPPING.items():
                self._add(f"{path} {words}", functools.partial(_edited, value, edit))
        elif isinstance(value, list | collections.deque):
            for at, item in enumerate(list(value)):
                put_item: Any = type(value).__setitem__
                self._slot(f"{path}[{at}]", item, functools.partial(put_item, value, at))
            for words, sequence_edit in _SEQUENCE.items():
                self._add(f"{path} {words}", functools.partial(_edited, value, sequence_edit))
        elif isinstance(value, tuple | frozenset):
            for at, item in enumerate(value):
                self._pending.append((f"{path}[{at}]", item, None))
        elif isinstance(value, set):
            for words, set_edit in _SET.items():
                self._add(f"{path} {words}", functools.partial(_edited, value, set_edit))
        elif isinstance(value, np.ndarray | array | bytearray) and len(value):
            self._add(f"{path}[0] += 1", functools.partial(_element_changed, value))
        elif hasattr(value, "__next__") and put is not None:
            self._add(f"next({path})", functools.partial(_advanced, value, put))


def _others(value: Any) -> Iterator[tuple[str, Any]]:
    """Values that may take the place of one, with words for them."""
    if isinstance(value, bool):
        yield "the other", not value
        yield "an int", int(value)
    elif isinstance(value, int):
        yield "one more", value + 1
        yield "a float", float(value) if abs(value) < 1 << 60 else 0.5
    elif isinstance(value, str):
        yield "longer", value + "x"
    elif isinstance(value, types.FunctionType | functools.partial | types.MethodType | functools._lru_cache_wrapper):
        yield "another function", lambda *a, **k: 5
        yield "None", None
    elif isinstance(value, property):
        yield "another property", property(lambda self: 9)
    elif isinstance(value, staticmethod | classmethod):
        yield "another method", type(value)(lambda *a: 9)
    elif isinstance(value, list):
        yield "a longer list", [*value, 5]
        yield "a tuple", tuple(value)
    elif isinstance(value, dict) and type(value) is dict:
        yield "a longer dict", {**value, "z": 4}
        yield "in another order", dict(reversed(value.items()))
    elif isinstance(value, type):
        if "__init_subclass__" not in {name for base in value.__mro__[:-1] for name in vars(base)}:
            yield "a subclass", _subclass_of(value)
    else:
        yield "None", None


def _found(self: Any, name: str) -> int:
    if name.startswith("_"):
        raise AttributeError(name)
    return 4


def _subclass_of(cls: type) -> Any:
    try:
        return types.new_class("Sub", (cls,), exec_body=lambda scope: scope.update(__len__=lambda self: 6, new=7))
    except Exception:  # an enum with members, say
        return None


def _other_codes(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    """Codes with another constant, in turn."""
    for at, constant in enumerate(code.co_consts):
        others: list[Any] = []
        if type(constant) is int and constant > 100:
            others = [constant + 1000]
        elif isinstance(constant, types.CodeType):
            others = [inner for _, inner in _other_codes(constant)]
        for other in others:
            constants = (*code.co_consts[:at], other, *code.co_consts[at + 1 :])
            yield f"another {constant!r:.20}", code.replace(co_consts=constants)


def _replaced(put: Callable[[Any], None], value: Any, other: Any) -> Undo:
    put(other)
    return functools.partial(put, value)


def _set(thing: Any, name: str, new: Any) -> Undo:
    old = getattr(thing, name)
    setattr(thing, name, new)
    return lambda: setattr(thing, name, old)


def _registered(function: Any, kind: type) -> Undo:
    before = function.registry[kind]
    function.register(kind, lambda *a: 9)
    return lambda: function.register(kind, before)


def _default_put(function: Any, at: int, new: Any) -> None:
    defaults = function.__defaults__
    function.__defaults__ = (*defaults[:at], new, *defaults[at + 1 :])


def _deleted(scope: dict[str, Any], name: str) -> Undo:
    value = scope.pop(name)
    return lambda: scope.__setitem__(name, value)


def _item_deleted(mapping: dict[str, Any], name: str) -> Undo:
    before = dict(mapping)
    del mapping[name]

    def undo() -> None:
        mapping.clear()
        mapping.update(before)

    return undo


def _item_put(mapping: dict[str, Any], name: str, new: Any) -> Undo:
    return _replaced(functools.partial(mapping.__setitem__, name), mapping[name], new)


def _item_set(mapping: dict[str, Any], name: str, value: Any) -> Undo:
    mapping[name] = value
    return lambda: mapping.pop(name, None)


def _attribute_deleted(cls: type, name: str, value: Any) -> Undo:
    delattr(cls, name)
    return lambda: setattr(cls, name, value)


def _attribute_added(cls: type, name: str, value: Any) -> Undo:
    setattr(cls, name, value)
    return lambda: delattr(cls, name)


def _reclassed(value: Any) -> Undo:
    kind = type(value)
    slots = () if "__slots__" in vars(kind) else None
    sub = types.new_class(
        "Sub",
        (kind,),
        exec_body=lambda scope: scope.update(
            {"__len__": lambda self: 6} | ({"__slots__": slots} if slots is not None else {})
        ),
    )
    object.__setattr__(value, "__class__", sub)
    return lambda: object.__setattr__(value, "__class__", kind)


def _advanced(value: Any, put: Callable[[Any], None]) -> Undo:
    before = copy.copy(value)
    next(value)
    return lambda: put(before)


def _element_changed(value: Any) -> Undo:
    old = value[0]
    value[0] = old + 1

    def undo() -> None:
        value[0] = old

    return undo


_BASES: tuple[Any, ...] = (collections.OrderedDict, dict, list, collections.deque, set)


def _edited(value: Any, edit: Callable[[Any], Any]) -> Undo:
    """Edit a container; whatever a subclass defines, all elements come back."""
    base = next(base for base in _BASES if isinstance(value, base))
    before = list(base.items(value) if issubclass(base, dict) else base.__iter__(value))
    edit(value)

    def undo() -> None:
        base.clear(value)
        if issubclass(base, dict):
            for key, item in before:
                base.__setitem__(value, key, item)
        else:
            (base.update if base is set else base.extend)(value, before)

    return undo


def _moved_to_end(value: Any) -> None:
    key = next(iter(value))
    value[key] = value.pop(key)


_MAPPING: dict[str, Callable[[Any], Any]] = {
    "['z'] = 5": lambda value: value.__setitem__("z", 5),
    ".popitem()": lambda value: value.popitem(),
    "has its first key last": _moved_to_end,
    ".update(a=1)": lambda value: value.update(a=1),
    ".clear()": lambda value: value.clear(),
    "has another first key": lambda value: value.__setitem__("n", value.pop(next(iter(value)))),
}
_SEQUENCE: dict[str, Callable[[Any], Any]] = {
    ".append(5)": lambda value: value.append(5),
    ".pop()": lambda value: value.pop(),
    ".reverse()": lambda value: value.reverse(),
    ".insert(0, 9)": lambda value: value.insert(0, 9),
    ".clear()": lambda value: value.clear(),
    "is rotated": lambda value: value.append(value.pop(0) if isinstance(value, list) else value.popleft()),
}
_SET: dict[str, Callable[[Any], Any]] = {
    ".add(103)": lambda value: value.add(103),
    ".pop()": lambda value: value.pop(),
    ".clear()": lambda value: value.clear(),
}
