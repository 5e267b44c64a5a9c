"""The walk over live objects that an identity is made from.

It starts at a value and follows all that decides what the value does: the code of functions and what the code reads,
classes, state, elements. It records facts: a place and a text each. Functions, classes and modules have places of their
own, under their names; any other value is recorded at the place where the walk meets it first. An object counts as a
whole, or only by the attributes that code reads (see `reads`).
"""

from __future__ import annotations

import os
from decimal import Decimal
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from warmstore.identity.kinds.dispatch import has_rule, is_simple, is_value, record
from warmstore.identity.kinds.library_settings import record_settings
from warmstore.identity.named_files import moved_path
from warmstore.identity.origin import (
    PYTHON_ORIGIN,
    Origin,
    edited_files,
    normal_name,
    origin_of,
    origin_of_class,
    origin_of_function,
    program_root,
)
from warmstore.identity.places import Place
from warmstore.identity.plain_data import (
    BYTES,
    LONGEST_PATH,
    NAMES_A_FILE,
    VOIDS,
    NotPlain,
    PlainTexts,
    atom_text,
    digest_of,
    texts_in,
)
from warmstore.identity.reads import read_function, read_module, read_named_files, refuse_passed_modules
from warmstore.identity.reads.classes import documentation, makes_others, may_make_others, read_class, read_constructors
from warmstore.identity.reads.code_facts import facts_of
from warmstore.identity.requirements import required_by
from warmstore.identity.walk import EXPANDED, Walk

_CONTAINERS = frozenset((list, dict, tuple, set, frozenset))


class ObjectWalk(Walk):
    """A walk that chooses how each value is recorded. It uses a queue: recursion would exceed Python's stack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._origins: dict[str, Origin] = {}
        self._unmade: dict[type, Place] = {}  # classes whose constructors do not count so far
        self._makes = False

    def run(self) -> None:
        self._run_queue()
        self._record_patches()
        self._record_training_state()
        if self._unmade and any(map(may_make_others, self.followed())):
            self._makes = True
            for cls in list(self._unmade):
                self._record_constructors(cls)
            self._run_queue()
        self._record_named()
        self._record_training_state()
        refuse_passed_modules(self)
        read_named_files(self)
        self._run_queue()
        for place, thing in self.described:
            parts = self.introspects | ({"doc", "annotations"} if id(thing) in self.documented else set())
            if parts:
                self.state(place + ".<described>", partial(documentation, thing, parts))

    def _record_named(self) -> None:
        """Record what counts only where followed code uses some names."""
        while self._if_named:
            facts = [facts_of(function.__code__) for function in self.followed()]
            used = self.named.union(*((*each.names, *each.strings) for each in facts))
            pending, self._if_named = self._if_named, []
            for names, place, work in pending:
                if not used.isdisjoint(names):
                    self.later(place, work)
            self._run_queue()

    def record_modes(self, *, of_all: bool = False) -> None:
        if self.modules:
            from warmstore.identity.kinds import module_modes

            module_modes.record_modes(self, of_all=of_all)

    def _record_training_state(self) -> None:
        if self.tensors or self.modules:
            from warmstore.identity.kinds.training_state import record_training_state

            while record_training_state(self):
                self._run_queue()

    def _record_patches(self) -> None:
        """Record what the program has put into the installed packages that the walk met, or that these require."""
        patches = self.settings.patches
        if patches is None or not patches.distributions:
            return
        self.origin(PYTHON_ORIGIN)  # all code runs its modules
        done: set[str] = set()
        while new := required_by(self._origins.values()) - done:  # a patch may lead to other packages
            done |= new
            for name in sorted(patches.distributions):
                for shown, value in patches.of(name) if normal_name(name) in new else ():
                    place, is_new = self.root(("patch", shown), shown, "", value)
                    if is_new:
                        self.whole(place, value)
            self._run_queue()

    def _record_constructors(self, cls: type) -> None:
        """Record the constructors of a class and of its bases."""
        place = self._unmade.pop(cls, None)
        if place is not None:
            self.later(place, lambda: read_constructors(self, place, cls))
            for base in cls.__bases__:
                self._record_constructors(base)

    def look(self, place: Place, value: Any) -> None:
        if self._is_ignored(place):
            return
        text = atom_text(value)
        if text is not None:
            self.fact(place, text)
            if type(value) is Decimal:
                self.decimal_context()
            elif type(value) in NAMES_A_FILE:
                self.file(place, value)
            elif type(value) in BYTES and 0 < len(value) < LONGEST_PATH and b"\0" not in value:
                self.file(place, os.fsdecode(value))
            elif type(value) in VOIDS:
                self.strings(place, texts_in(np.asarray(value)))
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
        elif is_value(kind) or self.is_new(value, (), place):
            record(self, place, value)

    def _plain(self, place: Place, value: Any) -> bool:
        """Record a container of plain data as one fact, if it is large or a set. Returns whether it is."""
        if len(value) <= EXPANDED and type(value) in (list, dict, tuple):
            return False
        root = self.settings.root
        plain = PlainTexts(is_simple, moved=None if root is None else partial(moved_path, root=root))
        try:
            text = plain.text(value)
        except NotPlain:
            return False
        if not self.is_new(value, (), place):
            return True
        self.alive += plain.alive
        if plain.has_decimals:
            self.decimal_context()
        if self.settings.watch is not None:
            key = self.key_of(place)
            for part in plain.alive:
                self.settings.watch.add_plain(part, key)
        for cls, number in plain.classes.items():
            self.fact(place + f".<class {number}>", self.cls(cls))
        self.fact(place, f"{type(value).__name__} of {len(value)} {digest_of(text)}")
        self.strings(place, plain.strings)
        return True

    has_rule = staticmethod(has_rule)

    def function(self, function: FunctionType) -> str:
        origin = origin_of_function(function)
        place, is_new = self.root(("thing", id(function)), *self.name_of(function), function)
        if is_new:
            self.origin(origin)
            self.later(place, lambda: read_function(self, place, function, origin))
        return f"function {self.key_of(place)}"

    def cls(self, cls: type, *, of_made: bool = False) -> str:
        if cls is Decimal:
            self.decimal_context()
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
            self._record_constructors(cls)
        return f"class {self.key_of(place)}"

    def module(self, module: ModuleType) -> str:
        origin = origin_of(module)
        place, is_new = self.root(("thing", id(module)), "<module>", module.__name__, module)
        if is_new:
            self.origin(origin)
            self.later(place, lambda: read_module(self, place, module, origin))
        return f"module {self.key_of(place)}"

    def origin(self, origin: Origin) -> None:
        if origin.is_program:
            if origin.folder:
                self.checkouts.setdefault(program_root(origin.folder))
        elif origin.name not in self._origins:
            self._origins[origin.name] = origin
            place, _ = self.root(("version", origin.name), f"version of {origin.name}")
            # In compiled programs `compiling.packages` checks each traced file, and no other file counts.
            edited = edited_files(origin) if self.settings.tensors == "content" else ""
            self.fact(place, f"{origin.text} {edited}".strip())
            record_settings(self, origin.name)
