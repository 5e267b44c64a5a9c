"""The walk over live objects from which an identity is made.

It goes from a value to all that decides what the value does: the code of functions and what it reads, classes, state,
elements. Every thing that is met becomes a fact: a place and a text. Functions, classes and modules have places of
their own, under their names; other things are placed where they are met first. An object is looked at whole, or
narrowly: one attribute of it, where all code that was followed reads no more (see `reads`).
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.identity import named_files as files_module
from warmstore.identity.origin import Origin, edited_files, origin_of, origin_of_class, origin_of_function, program_root
from warmstore.identity.plain import NAMES_A_FILE, NotPlain, Plain, array_text, atom_text, has_plain_state

if TYPE_CHECKING:
    from warmstore.identity.patches import Patches
    from warmstore.identity.watch import Watch

_EXPANDED = 64  # containers with more items are one fact each
_LOCALS = "<locals>."
_LONGEST_PATH = 1024
_ROOT = re.compile(r"@(\d+):([^|]*)\|")
_NAMELESS = frozenset(("", "__main__", "__mp_main__", "builtins"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is: below which root, and how one gets there from it, such as `.model[0]`."""

    root: int
    suffix: str = ""

    def __add__(self, suffix: str) -> Place:
        return Place(self.root, self.suffix + suffix)


@dataclass(frozen=True)
class Names:
    """The name of the thing that a walk starts from, and the names of modules by their numbers."""

    start: str
    modules: tuple[str, ...]

    def in_words(self, said: str) -> str:
        """A place or a text with the names of modules for their numbers."""
        return _ROOT.sub(self._named, said).lstrip(".")

    def _named(self, match: re.Match[str]) -> str:
        return self.modules[int(match[1])] + match[2] if match[2] else self.start


@dataclass(frozen=True)
class WalkSettings:
    """How to walk.

    ignore: places, as facts show them. tensors: "content", or "layout" for what is compiled. watch: is told what to
    look at for changes, and remembers the texts of tensors and arrays. folders: whether files in folders that arguments
    name count; elsewhere: folders whose files count in other ways. patches: what the program has put into installed
    modules. draws: whether the state of default random generators counts where code draws from them.
    """

    ignore: frozenset[str] = frozenset()
    root: str | None = None
    files: files_module.Files = "stat"
    tensors: str = "content"
    watch: Watch | None = None
    folders: bool = False
    elsewhere: frozenset[str] = frozenset()
    patches: Patches | None = None
    draws: bool = True


@dataclass
class Walk:
    """One walk. `facts` and `unknown` are by place; roots of places are numbered in the order in which they are met."""

    name: str
    settings: WalkSettings = field(default_factory=WalkSettings)

    def __post_init__(self) -> None:
        self.facts: dict[Place, str] = {}
        self.unknown: dict[Place, str] = {}
        self.weights: set[Place] = set()
        self.introspects: set[str] = set()  # what code asks for: "doc", "name", "annotations"
        self.described: list[tuple[Place, Any]] = []
        self.memory: dict[int, Place] = {}  # where the memory of tensors was met first
        self.functions: list[FunctionType] = []  # those of the program whose code was read
        self.checkouts: dict[str, None] = {}
        self._roots: list[str] = ["@0:"]
        self._prefixes: list[str] = [""]
        self._named: dict[object, int] = {}
        self._things: list[object] = [None]
        self._names: dict[str, int] = {}
        self._seen: dict[tuple[int, object], Place] = {}
        self._alive: list[object] = []
        self._work: deque[tuple[Place, Callable[[], None]]] = deque()
        self._origins: dict[str, Origin] = {}
        self._ignored: set[Place] = set()
        self._unmade: dict[type, Place] = {}  # classes of which the constructors were not looked at
        self._makes = False

    @property
    def start(self) -> Place:
        return Place(0)

    def run(self) -> None:
        """Do all that is waiting. It is a queue and no recursion: programs are deeper than Python's stack."""
        self._work_off()
        self._look_at_patches()
        self._look_at_constructors()
        if self.introspects:
            from warmstore.identity.classes import documentation

            for place, thing in self.described:
                self.fact(place + ".<described>", documentation(thing, self.introspects))

    def _look_at_patches(self) -> None:
        """Note what the program has put into the installed packages that were met."""
        for name, patches in sorted((self.settings.patches or {}).items()):
            if name in self._origins:
                for shown, function in patches:
                    place, is_new = self.root(("patch", shown), shown, "", function)
                    if is_new:
                        self.whole(place, function)
        self._work_off()

    def _look_at_constructors(self) -> None:
        """Note how objects that are there already were made, if code may make more of their kind."""
        from warmstore.identity.classes import may_make_others

        if self._unmade and any(map(may_make_others, self.functions)):
            self._makes = True
            for cls in list(self._unmade):
                self._constructors(cls)
            self._work_off()

    def _constructors(self, cls: type) -> None:
        """Note how objects of a class, and of those below it, are made."""
        from warmstore.identity.classes import read_constructors

        place = self._unmade.pop(cls, None)
        if place is not None:
            self.later(place, lambda: read_constructors(self, place, cls))
            for base in cls.__bases__:
                self._constructors(base)

    def later(self, place: Place, work: Callable[[], None]) -> None:
        """Have something done that tells what is at a place."""
        self._work.append((place, work))

    def _work_off(self) -> None:
        # Objects run code of all kinds as they are looked at. One that raises does not tell what it is.
        while self._work:
            place, work = self._work.popleft()
            if self._is_ignored(place):
                continue
            try:
                work()
            except Exception as error:
                self.cannot_tell(place, f"looking at it raised {type(error).__name__}: {error}")

    def shown(self, place: Place) -> str:
        """A place as a person reads it."""
        return self.names.in_words(self.said(place))

    def said(self, place: Place) -> str:
        """A place as it counts: modules have numbers, in the order in which they are met, and no names."""
        return f"{self._roots[place.root]}|{place.suffix}"

    @property
    def roots(self) -> dict[object, tuple[str, weakref.ref[Any]]]:
        """Named things by what they are in this process, and their places as they count."""
        found: dict[object, tuple[str, weakref.ref[Any]]] = {}
        for key, number in self._named.items():
            thing = self._things[number]
            if isinstance(thing, FunctionType | ModuleType | type):
                found[key] = f"{self._roots[number]}|", weakref.ref(thing)
        return found

    @property
    def names(self) -> Names:
        """What is called how in words."""
        return Names(self.name, tuple(self._prefixes))

    def fact(self, place: Place, text: str) -> None:
        """Note what is at a place."""
        self.facts[place] = text

    def watch(self, container: Collection[Any]) -> None:
        """Have a list, set, dict or view of a dict watched."""
        if self.settings.watch is not None:
            self.settings.watch.add(container)

    def watch_code(self, container: Collection[Any]) -> None:
        """Have a dict watched that holds methods or hooks."""
        if self.settings.watch is not None:
            self.settings.watch.add_code(container)

    def watch_items(self, mapping: dict[str, Any], names: Collection[str]) -> None:
        """Have some items of a dict watched."""
        if self.settings.watch is not None:
            self.settings.watch.add_items(mapping, names)

    def watch_object(self, value: Any) -> None:
        """Have it watched that an object stays of its class, and keeps its `__dict__`."""
        if self.settings.watch is not None:
            self.settings.watch.add_object(value)

    def watch_cell(self, read: Callable[[], Any]) -> None:
        """Have a single variable watched, which gives the same object while nothing has changed."""
        if self.settings.watch is not None:
            self.settings.watch.add_cell(read)

    def watch_probe(self, read: Callable[[], Any]) -> None:
        """Have a state watched that no container or variable shows: equal objects while nothing has changed."""
        if self.settings.watch is not None:
            self.settings.watch.add_probe(read)

    def weight(self, place: Place, value: Any) -> None:
        """Have all of a parameter or buffer looked at, and know it for one."""
        self.weights.add(place)
        if self.settings.watch is not None:
            self.settings.watch.add_weight(value)
        self.whole(place, value)

    def tensor_text(self, place: Place, value: Any) -> str:
        """The text of a tensor, from memory while nothing has written to it."""
        from warmstore.identity.torch_kinds import tensor_text

        if self.settings.watch is not None and self.settings.tensors == "content":
            return self.settings.watch.text_of(value, tensor_text, self.said(place))
        return tensor_text(value, self.settings.tensors)

    def array_text(self, place: Place, value: Any) -> str:
        """The text of an array."""
        if self.settings.watch is not None:
            return self.settings.watch.text_of(value, array_text, self.said(place))
        return array_text(value)

    def cannot_tell(self, place: Place, reason: str) -> None:
        """Note that what is at a place cannot be told."""
        if self._is_ignored(place):
            return
        self.unknown.setdefault(place, reason)
        self.facts[place] = "unknown"

    def root(self, key: object, name: str, module: str = "", alive: object = None) -> tuple[Place, bool]:
        """The place of a named thing, and whether it is new. Two things of one name get numbers."""
        number = self._named.get(key)
        if number is not None:
            return Place(number), False
        root = f"@{self._number_of(module)}:{name}"
        count = self._names[root] = self._names.get(root, 0) + 1
        self._roots.append(root if count == 1 else f"{root}#{count}")
        self._things.append(alive)
        number = self._named[key] = len(self._roots) - 1
        return Place(number), True

    def _number_of(self, module: str) -> int:
        prefix = "" if module in _NAMELESS else f"{module}."
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)
        return self._prefixes.index(prefix)

    def is_new(self, value: object, mode: object, place: Place) -> bool:
        """Whether something is met for the first time in this mode; else what is known stands at `place`."""
        key = (id(value), mode)
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = place
            self._alive.append(value)
            return True
        if known != place:
            self.facts.setdefault(place, f"same as {self.said(known)}")
        return False

    def origin(self, origin: Origin) -> None:
        """Note a version that counts, or the checkout of a module of the program."""
        if origin.is_program:
            if origin.folder:
                self.checkouts.setdefault(program_root(origin.folder))
            return
        if origin.name not in self._origins:
            self._origins[origin.name] = origin
            place, _ = self.root(("version", origin.name), f"version of {origin.name}")
            # Of what is compiled, each file that was traced is looked at (`compiling.packages`), and no others.
            edited = edited_files(origin) if self.settings.tensors == "content" else ""
            self.fact(place, f"{origin.text} {edited}".strip())
            if origin.name == "numpy":
                place, _ = self.root(("settings", "numpy"), "settings of numpy")
                self.fact(place, repr(sorted(np.get_printoptions().items(), key=str)))
            if origin.name == "jax":
                place, _ = self.root(("settings", "jax"), "settings of jax")
                self.fact(place, _settings_of_jax())
                self.watch_probe(_settings_of_jax)
            if origin.name == "torch":
                from warmstore.identity.torch_kinds import GLOBAL_HOOKS, settings_text

                place, _ = self.root(("settings", "torch"), "settings of torch")
                self.fact(place, settings_text())
                self.watch_probe(settings_text)
                for holder in GLOBAL_HOOKS:
                    self.watch(holder)
                for at, hook in enumerate([hook for holder in GLOBAL_HOOKS for hook in holder.values()]):
                    self.whole(place + f".<hook {at}>", hook)

    def whole(self, place: Place, value: Any) -> None:
        """Have all of a value looked at."""
        self.later(place, lambda: self.look(place, value))

    def look(self, place: Place, value: Any) -> None:
        """Look at all of a value now."""
        if self._is_ignored(place):
            return
        text = atom_text(value)
        if text is not None:
            self.fact(place, text)
            if type(value) in NAMES_A_FILE:
                self.file(place, value)
            elif type(value) is bytes and 0 < len(value) < _LONGEST_PATH and b"\0" not in value:
                self.file(place, os.fsdecode(value))
            return
        kind = type(value)
        if kind in _CONTAINERS and self._plain(place, value):
            return
        if kind is FunctionType:
            self.fact(place, self.function(value))
        elif isinstance(value, type):
            self.fact(place, self.cls(value))
        elif isinstance(value, ModuleType) and (kind is ModuleType or not origin_of_class(kind).is_program):
            self.fact(place, self.module(value))
        else:
            from warmstore.identity.kinds import is_value, look

            if is_value(kind) or self.is_new(value, (), place):
                look(self, place, value)

    def items(self, place: Place, tag: str, values: Collection[Any]) -> None:
        """Items of a container, in order."""
        self.fact(place, f"{tag} of {len(values)}")
        for at, one in enumerate(values):
            self.whole(place + f"[{at}]", one)

    def pairs(self, place: Place, tag: str, pairs: Any) -> None:
        """Keys and values of a mapping, in order."""
        count = 0
        for key, value in list(pairs):
            text = atom_text(key)
            if text is None:
                self.whole(place + f".<key {count}>", key)
                text = f"<value {count}>"
            self.whole(place + f"[{text}]", value)
            count += 1
        # The order of keys counts, and the places alone do not say it.
        self.fact(place, f"{tag} of {[atom_text(key) or '' for key, _ in list(pairs)][:_EXPANDED]} {count}")

    def apart(self, value: Any, **settings: Any) -> str:
        """The text of a value that is looked at by itself, in settings of its own."""
        other = Walk("", replace(self.settings, watch=None, **settings))
        other.look(other.start, value)
        other.run()
        return _hash(repr(sorted((other.said(at), text) for at, text in other.facts.items())))

    def unordered(self, place: Place, tag: str, values: Any) -> None:
        """Elements of a set, whose order differs in each process: each has an identity of its own."""
        digests = []
        for value in values:
            other = Walk("", self.settings)
            other._seen = dict(self._seen)
            other.functions = self.functions
            other.look(other.start, value)
            other.run()
            self.introspects |= other.introspects
            for at, reason in other.unknown.items():
                self.cannot_tell(place + f".<element>{other.shown(at)}", reason)
            digests.append(repr(sorted((other.said(at), text) for at, text in other.facts.items())))
        self.fact(place, f"{tag} {sorted(map(_hash, digests))}")

    def function(self, function: FunctionType) -> str:
        """What stands for a function; its facts are at its own place."""
        from warmstore.identity.reads import read_function

        origin = origin_of_function(function)
        place, is_new = self.root(("thing", id(function)), *self.name_of(function), function)
        if is_new:
            self.origin(origin)
            self.later(place, lambda: read_function(self, place, function, origin))
        return f"function {self.said(place)}"

    def cls(self, cls: type, *, of_made: bool = False) -> str:
        """What stands for a class; its facts are at its own place.

        Args:
            of_made: it is the class of an object that is there already, and nobody is known to make others.
        """
        from warmstore.identity.classes import makes_others, read_class

        origin = origin_of_class(cls)
        place, is_new = self.root(("thing", id(cls)), *self.name_of(cls), cls)
        if is_new:
            self.origin(origin)
            self.later(place, lambda: read_class(self, place, cls, origin))
            if origin.is_program:
                self._unmade[cls] = place
                for base in cls.__bases__:
                    self.cls(base, of_made=True)
        if cls in self._unmade and (not of_made or self._makes or makes_others(cls)):
            self._constructors(cls)
        return f"class {self.said(place)}"

    def module(self, module: ModuleType) -> str:
        """What stands for a module as a whole; of the program's own all that is in it counts."""
        from warmstore.identity.reads import read_module

        origin = origin_of(module)
        place, is_new = self.root(("thing", id(module)), "<module>", module.__name__, module)
        if is_new:
            self.origin(origin)
            self.later(place, lambda: read_module(self, place, module, origin))
        return f"module {self.said(place)}"

    def name_of(self, thing: Any) -> tuple[str, str]:
        """The name of a function or class, and of its module."""
        return str(thing.__qualname__).replace(_LOCALS, ""), str(getattr(thing, "__module__", None) or "")

    def file(self, place: Place, value: Any) -> None:
        """Note the file that a text or path names."""
        path = str(value)
        if type(value) is str and not files_module.may_be_path(path):
            return
        text = self._file_text(path)
        is_argument = place.root == 0 and place.suffix.startswith("(") and place.suffix.endswith(")")
        if (
            self.settings.folders
            and is_argument
            and (text.endswith(" folder") or text.startswith(files_module.MOVABLE))
        ):
            folder = os.path.abspath(path)  # noqa: PTH100
            if folder not in self.settings.elsewhere and (listed := files_module.listing(folder)):
                self.fact(place + ".<files in it>", listed)
        if text.startswith(files_module.MOVABLE):
            self.fact(place, text)  # the path itself is another elsewhere
        elif text:
            self.fact(place + ".<file>", text)
        if text:
            self.watch_probe(partial(self._file_text, path))

    def _file_text(self, path: str) -> str:
        return files_module.file_text(path, self.settings.files, self.settings.root, tuple(self.checkouts))

    def _plain(self, place: Place, value: Any) -> bool:
        """Note a container of plain data, in one fact where it is large."""
        if len(value) <= _EXPANDED and type(value) in (list, dict, tuple):
            return False
        plain = Plain(self.is_simple)
        try:
            text = plain.text(value)
        except NotPlain:
            return False
        if not self.is_new(value, (), place):
            return True
        self._alive += plain.alive
        for one in plain.alive:
            self.watch_plain(one)
        for cls in plain.classes:
            self.cls(cls)
        self.fact(place, f"{type(value).__name__} of {len(value)} {_hash(text)}")
        self.strings(place, plain.strings)
        return True

    def watch_plain(self, value: Any) -> None:
        """Have a container of plain data watched."""
        if isinstance(value, dict | list | set | deque):
            self.watch(value)
        elif isinstance(value, np.ndarray):
            if self.settings.watch is not None:
                self.settings.watch.text_of(value, array_text)
        elif isinstance(value, bytearray):
            self.watch_probe(partial(bytes, value))
        else:
            from warmstore.identity.kinds import watch_attributes

            watch_attributes(self, value)

    def strings(self, place: Place, strings: list[Any]) -> None:
        """Note the files that many texts name."""
        found = []
        for one in strings:
            if type(one) is not str or len(strings) <= _EXPANDED or "/" in one or "." in one:
                text = self._file_text(str(one))
                found += [text] if text else []
        if found:
            self.fact(place + ".<files>", f"{len(found)} {_hash(repr(found))}")

    def is_simple(self, cls: type) -> bool:
        """Whether objects of a class count by their attributes alone."""
        from warmstore.identity.kinds import has_rule

        return has_plain_state(cls) and not has_rule(cls)

    def _is_ignored(self, place: Place) -> bool:
        if not self.settings.ignore:
            return False
        shown = self.shown(place)
        if shown not in self.settings.ignore:
            return False
        self.facts[place] = "ignored"
        return True


_CONTAINERS = frozenset((list, dict, tuple, set, frozenset))
_SETTINGS_OF_JAX = (
    "jax_enable_x64", "jax_numpy_dtype_promotion", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_threefry_partitionable",
)  # fmt: skip


def _settings_of_jax() -> str:
    config = getattr(sys.modules.get("jax"), "config", None)
    return ", ".join(f"{name} {getattr(config, name, None)}" for name in _SETTINGS_OF_JAX)


def _hash(text: str) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def builtin_named(name: str) -> tuple[bool, Any]:
    """Whether Python has a builtin of that name, and the builtin as it is now."""
    found = vars(builtins)
    return name in found, found.get(name)


def loaded(name: str) -> ModuleType | None:
    """A module that has been imported."""
    module = sys.modules.get(name)
    return module if isinstance(module, ModuleType) else None
