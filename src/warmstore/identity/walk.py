"""What rules use to record a value: places, facts, the queue of work, and what to watch for changes.

`ObjectWalk` is the walk itself and chooses the rule of a value. The rules (`kinds`, `reads`) know only `Walk`.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

from warmstore.identity import named_files
from warmstore.identity.named_files import looks_like_path
from warmstore.identity.nested_sets import NestedSets
from warmstore.identity.object_state import MISSING
from warmstore.identity.origin import Origin
from warmstore.identity.places import Names, Place
from warmstore.identity.plain_data import BYTES, NAMES_A_FILE, atom_text, decimal_context_text, digest_of
from warmstore.identity.walk_settings import WalkSettings

EXPANDED = 64
"""Larger containers of plain data become one fact."""

_FILES_AT_ONCE = 512  # in containers. Every exact check looks at them, and at more in turn
_MOST_MISSING = 1 << 14

_LOCALS = "<locals>."
_STRUCTURE = frozenset(".[](<")  # characters of places
_SHOW_ORDER = ("vars", "globals", "__dict__")
_NAMELESS = frozenset(("", "__main__", "__mp_main__", "builtins"))


@dataclass
class Walk(ABC):
    """One walk. `facts` and `unknown` are by place. Roots are numbered in the order in which the walk meets them."""

    name: str
    settings: WalkSettings = field(default_factory=WalkSettings)

    def __post_init__(self) -> None:
        self.facts: dict[Place, str] = {}
        self.unknown: dict[Place, str] = {}
        self.weights: set[Place] = set()
        self.of_thread: set[Place] = set()  # settings that each thread has for itself
        self.introspects: set[str] = set()  # what code reads of functions and classes: "doc", "name", "annotations"
        self.described: list[tuple[Place, Any]] = []
        self.documented: dict[int, Any] = {}  # functions and classes whose documentation installed code may read
        self.memory: dict[int, Place] = {}  # the first place of each tensor's and array's memory
        self.functions: list[FunctionType] = []  # functions of the program whose code was read
        self.library_functions: list[FunctionType] = []  # functions of installed packages
        self.passed_modules: list[ModuleType] = []  # of Python, used as values, that look up what code may not name
        self.modules: list[tuple[Place, Any]] = []  # of torch, whose modes count if code reads them
        self.named: set[str] = set()  # functions that code may use by another name
        self.tensors: list[tuple[Place, Any]] = []  # of torch, whose gradients count if code reads them
        self.checkouts: dict[str, None] = {}
        self.folders: dict[str, None] = {}  # that code or values name
        self.names_in_folders: dict[str, Place] = {}  # texts that may name files in them, with their first places
        self.named_files: list[tuple[Place, str]] = []  # files that constants of code name
        self.missing: list[str] = []  # paths where a file may appear
        self._files_watched = 0
        self._roots: list[str] = ["@0:"]
        self._prefixes: list[str] = [""]
        self._numbers: dict[object, int] = {}  # of roots, by key
        self._things: list[object] = [None]
        self._counts: dict[str, int] = {}  # of roots, by name
        self.seen: dict[tuple[int, object], Place] = {}
        self.around: tuple[Walk, ...] = ()  # the walks over the sets that have the value as an element, inside out
        self.inside: set[tuple[int, object]] = set()  # what the walks over the elements of its sets have met
        self.is_open = False  # whether the value refers to what the walks around have met
        self.nested = NestedSets()
        self.alive: list[object] = []
        self._work: deque[tuple[Place, Callable[[], None]]] = deque()
        self._if_named: list[tuple[Collection[str], Place, Callable[[], None]]] = []

    # What `ObjectWalk` defines.

    @abstractmethod
    def run(self) -> None:
        """Do all pending work."""

    @abstractmethod
    def record_modes(self, *, of_all: bool = False) -> None:
        """Record the train/eval modes that code reads, when all work is done.

        Args:
            of_all: Record all modes: code that this walk does not follow may read them.
        """

    @abstractmethod
    def look(self, place: Place, value: Any) -> None:
        """Record a whole value now."""

    @abstractmethod
    def function(self, function: FunctionType) -> str:
        """The text that refers to a function. Its facts are at its own place."""

    @abstractmethod
    def cls(self, cls: type, *, of_made: bool = False) -> str:
        """The text that refers to a class. Its facts are at its own place.

        Args:
            of_made: Whether it is the class of an existing object. Its constructors then count only if code may make
                other objects of it.
        """

    @abstractmethod
    def module(self, module: ModuleType) -> str:
        """The text that refers to a module as a whole. Its facts are at its own place."""

    @abstractmethod
    def origin(self, origin: Origin) -> None:
        """Record the version of an installed package, or the checkout of a module of the program."""

    @abstractmethod
    def has_rule(self, kind: type) -> bool:
        """Whether objects of a type have a rule, and are not recorded by their attributes."""

    # The queue of work.

    def later(self, place: Place, work: Callable[[], None]) -> None:
        """Queue work that records what is at a place."""
        self._work.append((place, work))

    def if_named(self, names: Collection[str], place: Place, work: Callable[[], None]) -> None:
        """Queue work that records what is at a place if followed code uses one of some names."""
        self._if_named.append((names, place, work))

    def _run_queue(self) -> None:
        # Recording runs code of the recorded objects. If this code raises, the object is unknown.
        while self._work:
            place, work = self._work.popleft()
            if self._is_ignored(place):
                continue
            try:
                work()
            except Exception as error:
                self.cannot_tell(place, f"reading it raised {type(error).__name__}: {error}")

    # Places.

    @property
    def start(self) -> Place:
        """The place of the value that the walk starts from."""
        return Place(0)

    def shown(self, place: Place) -> str:
        """A place as a person reads it."""
        return self.names.in_words(self.key_of(place))

    def key_of(self, place: Place) -> str:
        """A place as the identity has it: with numbers of modules, in the order in which the walk met them."""
        return f"{self._roots[place.root]}|{place.suffix}"

    @property
    def roots(self) -> dict[object, tuple[str, weakref.ref[Any]]]:
        """The keys of functions, classes and modules in this process, with their roots and weak references."""
        found: dict[object, tuple[str, weakref.ref[Any]]] = {}
        for key, number in self._numbers.items():
            thing = self._things[number]
            if isinstance(thing, FunctionType | ModuleType | type):
                found[key] = f"{self._roots[number]}|", weakref.ref(thing)
        return found

    @property
    def names(self) -> Names:
        """The names behind the numbers of modules."""
        return Names(self.name, tuple(self._prefixes))

    def root(self, key: object, name: str, module: str = "", alive: object = None) -> tuple[Place, bool]:
        """The root of a named thing, and whether it is new. Things of the same name get numbers.

        Args:
            key: Identifies the thing in this process.
            alive: An object that keeps the ids in the key valid.
        """
        number = self._numbers.get(key)
        if number is not None:
            return Place(number), False
        prefix = "" if module in _NAMELESS else f"{module}."
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)
        root = f"@{self._prefixes.index(prefix)}:{name}"
        count = self._counts[root] = self._counts.get(root, 0) + 1
        self._roots.append(root if count == 1 else f"{root}#{count}")
        self._things.append(alive)
        number = self._numbers[key] = len(self._roots) - 1
        return Place(number), True

    def is_new(self, value: object, mode: object, place: Place) -> bool:
        """Whether the walk meets a value for the first time in this mode. If not, records at `place` where it is."""
        key = (id(value), mode)
        known = self.seen.get(key)
        if known is None:
            if self.around and (met := self._met_around(key)):
                self.facts.setdefault(place, f"same as {met}")
                return False
            self.seen[key] = place
            self.alive.append(value)
            return True
        if known != place:
            self.facts.setdefault(place, f"same as {self.key_of(known)}")
        return False

    def _met_around(self, key: tuple[int, object]) -> str:
        """Where the walks around this one have met a value; "" if none has."""
        for depth, walk in enumerate(self.around):
            if (known := walk.seen.get(key)) is not None:
                for inner in (self, *self.around[:depth]):
                    inner.is_open = True
                return f"{walk.key_of(known)} of {depth + 1} around"
        return ""

    def followed(self) -> Iterator[FunctionType]:
        """Functions of the program whose code was read by this walk, or before by those around it."""
        return chain.from_iterable(walk.functions for walk in (self, *self.around))

    def _is_ignored(self, place: Place) -> bool:
        if not self.settings.ignore or self.shown(place) not in self.settings.ignore:
            return False
        self.facts[place] = "ignored"
        return True

    # Facts.

    def fact(self, place: Place, text: str) -> None:
        """Record the text of a place."""
        self.facts[place] = text

    def state(self, place: Place, text: Callable[[], str]) -> None:
        """Record the text of a state that may change in place."""
        self.fact(place, text())
        self.watch_probe(text)

    def setting(self, place: Place, text: Callable[[], str]) -> None:
        """Record the text of a setting of the process. It takes microseconds: every check makes it again."""
        self.fact(place, text())
        if self.settings.watch is not None:
            self.settings.watch.add_setting(text)

    def setting_of_thread(self, place: Place, text: Callable[[], str]) -> None:
        """Record the text of a setting that each thread has for itself. No call of another thread changes it."""
        self.of_thread.add(place)
        if self.settings.is_called_here:
            self.setting(place, text)
        else:
            self.fact(place, text())

    def decimal_context(self) -> None:
        """Record the context of the current thread, on which arithmetic with decimals depends."""
        place, is_new = self.root(("settings", "decimal"), "decimal context")
        if is_new:
            self.setting_of_thread(place, decimal_context_text)

    def working_directory(self) -> None:
        """Record the working directory, which code asks for."""
        self.state(self.root(("settings", "cwd"), "working directory")[0], os.getcwd)

    def cannot_tell(self, place: Place, reason: str) -> None:
        """Record that the value at a place has no identity, and why."""
        if self._is_ignored(place):
            return
        self.unknown.setdefault(place, reason)
        self.facts[place] = "unknown"

    def whole(self, place: Place, value: Any) -> None:
        """Queue the recording of a whole value."""
        self.later(place, lambda: self.look(place, value))

    def weight(self, place: Place, value: Any) -> None:
        """Queue the recording of a parameter or buffer."""
        self.weights.add(place)
        if self.settings.watch is not None:
            self.settings.watch.add_weight(value)
        self.whole(place, value)

    def attributes(self, place: Place, attributes: dict[str, Any]) -> None:
        """Record attributes by name. Names such as "a.b" are quoted: their places are no others' then."""
        self.order(place, attributes, in_any_case=self.settings.read_elsewhere)
        for name in sorted(attributes, key=str):
            is_word = type(name) is str and _STRUCTURE.isdisjoint(name)
            self.whole(place + (f".{name}" if is_word else f".<{name!r}>"), attributes[name])

    def order(self, place: Place, names: Iterable[str], *, in_any_case: bool = False) -> None:
        """Record the order of the attributes of an object, class or module, if followed code may see it."""
        if len(listed := list(names)) > 1:
            at, text = place + ".<order>", f"{listed}"
            if in_any_case:
                self.fact(at, text)
            else:
                self.if_named(_SHOW_ORDER, place, partial(self.fact, at, text))

    def items(self, place: Place, tag: str, values: Collection[Any]) -> None:
        """Record the items of a sequence, in order."""
        self.fact(place, f"{tag} of {len(values)}")
        for at, value in enumerate(values):
            self.whole(place + f"[{at}]", value)

    def pairs(self, place: Place, tag: str, pairs: Any) -> None:
        """Record the keys and values of a mapping, in order."""
        pairs = list(pairs)
        keys = [atom_text(key) for key, _ in pairs]
        named: set[str | None] = {None}
        for at, (key, value) in enumerate(pairs):
            if keys[at] is None:
                self.whole(place + f".<key {at}>", key)
            self.whole(place + f"[{f'<value {at}>' if keys[at] in named else keys[at]}]", value)
            named.add(keys[at])  # several keys may be NaN
        self.strings(place, [key for key, _ in pairs if type(key) in NAMES_A_FILE or type(key) in BYTES])
        # The order of the keys counts. Facts are sorted by place, so this fact states the order.
        rest = f" {digest_of(repr(keys[EXPANDED:]))}" if len(keys) > EXPANDED else ""
        self.fact(place, f"{tag} of {[text or '' for text in keys[:EXPANDED]]} {len(keys)}{rest}")

    def apart(self, value: Any, **settings: Any) -> str:
        """The digest of a value in a walk of its own, with some settings changed."""
        walk = type(self)("", replace(self.settings, watch=None, read_elsewhere=True, **settings))
        walk.look(walk.start, value)
        walk.run()
        walk.record_modes(of_all=True)
        return walk.digest()

    def digest(self) -> str:
        """The digest of all facts."""
        return digest_of(repr(sorted((self.key_of(place), text) for place, text in self.facts.items())))

    def watched_text(self, place: Place, value: Any, make: Callable[[Any], str]) -> str:
        """The text that `make` gives of a tensor or array. A watch remembers it until something writes to the value."""
        if self.settings.watch is None:
            return make(value)
        return self.settings.watch.text_of(value, make, self.key_of(place))

    def name_of(self, thing: Any) -> tuple[str, str]:
        """The name of a function or class, and of its module."""
        return str(thing.__qualname__).replace(_LOCALS, ""), str(getattr(thing, "__module__", None) or "")

    # Files.

    def file(self, place: Place, value: Any) -> None:
        """Record the file that a string or path names, if there is one."""
        path = str(value)
        if type(value) is str and not named_files.may_be_path(path):
            return
        self.names_in_folders.setdefault(path, place)
        text = self._file_text(path)
        if not text:
            self.missing_file(path)
            return
        if " file " not in text and os.path.isdir(path):  # noqa: PTH112
            self.folders.setdefault(path)
        is_movable = text.startswith(named_files.MOVABLE)
        is_argument = place.root == 0 and place.suffix.startswith("(") and place.suffix.endswith(")")
        if self.settings.folders and is_argument and (is_movable or text.endswith(" folder")):
            folder = os.path.abspath(named_files.located(path)[0])  # noqa: PTH100
            if folder not in self.settings.elsewhere and (listed := named_files.listing(folder)):
                self.fact(place + ".<files in it>", listed)
        # A movable path differs between copies of a checkout, so its text replaces the path.
        self.fact(place if is_movable else place + ".<file>", text)
        self.watch_probe(partial(named_files.stamps_of, (path,)))

    def missing_file(self, path: str) -> None:
        """Watch whether a file appears where there is none, if the path looks like one."""
        if self.settings.watch is not None and len(self.missing) < _MOST_MISSING and looks_like_path(path):
            self.missing.append(path)

    def strings(self, place: Place, strings: Iterable[Any]) -> None:
        """Record the files that the strings, bytes and paths in a container name."""
        firsts, found = None, {}
        for count, string in enumerate(strings):
            if count == named_files.FEW:
                firsts = named_files.first_parts()
            name = string if type(string) is str else os.fsdecode(string)
            if (firsts is None or name.partition("/")[0] in firsts) and (text := self._file_text(name)):
                found[name] = text
            else:
                self.missing_file(name)
        for string in strings if isinstance(strings, list) and len(strings) <= named_files.FEW else ():
            self.names_in_folders.setdefault(os.fsdecode(string), place)
        if found:
            # Each text has the path, and the order of the strings in a set differs between processes.
            self.fact(place + ".<files>", f"{len(found)} {digest_of(repr(sorted(found.values())))}")
            self.watch_files(list(found))

    def watch_files(self, paths: list[str]) -> None:
        """Watch whether the files at some paths are written to, replaced or removed, or others appear."""
        if self.settings.watch is None or not paths:
            return
        self._files_watched += len(paths)
        if self._files_watched <= _FILES_AT_ONCE:
            self.watch_probe(partial(named_files.stamps_of, paths))
        else:
            self.settings.watch.add_state(lambda: digest_of(repr(named_files.stamps_of(paths))))

    def _file_text(self, path: str) -> str:
        return named_files.file_text(path, self.settings.files, self.settings.root, tuple(self.checkouts))

    # What to watch for changes, if anything.

    def watch(self, container: Collection[Any]) -> None:
        """Watch a list, set, dict or view of a dict."""
        if self.settings.watch is not None:
            self.settings.watch.add(container)

    def watch_code(self, container: Collection[Any]) -> None:
        """Watch a dict that holds methods or hooks."""
        if self.settings.watch is not None:
            self.settings.watch.add_code(container)

    def watch_items(self, mapping: Mapping[str, Any], names: Collection[str]) -> None:
        """Watch some items of a dict."""
        if self.settings.watch is not None:
            self.settings.watch.add_items(mapping, names)

    def watch_item(self, mapping: Mapping[str, Any], name: str) -> None:
        """Watch an item of a dict, and whether it is there."""
        self.watch_cell(partial(mapping.get, name, MISSING))

    def watch_read(self, read: Callable[[], Any]) -> None:
        """Watch a value that may be a new object at each read: then its text, if it is plain data."""
        if self.settings.watch is not None:
            if read() is read():
                self.watch_cell(read)
            else:
                self.watch_probe(lambda: atom_text(read()))

    def watch_cell(self, read: Callable[[], Any]) -> None:
        """Watch a variable: `read` returns the same object while it is unchanged."""
        if self.settings.watch is not None:
            self.settings.watch.add_cell(read)

    def watch_probe(self, read: Callable[[], Any]) -> None:
        """Watch any other state: `read` returns equal objects while it is unchanged."""
        if self.settings.watch is not None:
            self.settings.watch.add_probe(read)

    def watch_object(self, value: Any) -> None:
        """Watch the class of an object and which dict its `__dict__` is."""
        if self.settings.watch is not None:
            self.settings.watch.add_object(value)

    def watch_attributes(self, value: Any) -> None:
        """Watch the attributes of an object and, in subclasses of builtin containers, its elements."""
        if self.settings.watch is not None:
            self.settings.watch.add_attributes(value)
