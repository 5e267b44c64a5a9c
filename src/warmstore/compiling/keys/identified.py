"""Identities of programs and of their arguments: the code and values that tracing may read.

Sizes, strides and contents of tensors among the arguments do not count. A program that changes while it runs is
identified again. Torch's guards check data in every call; this module detects changes of code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten

from warmstore.identity.identity import Identity, identity_of_walk, walk_over
from warmstore.identity.patches import Patches
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch

_PLAIN = frozenset((int, float, bool, str, bytes, type(None), np.ndarray))


class Identified:
    """A function or module, and its `identity` at the last `look`. `version` and `ignore` are those of `identify`.

    `codes` are the code objects that were read, nested ones included, by address.
    """

    def __init__(self, thing: Any, version: str | None, ignore: Collection[str]) -> None:
        self._thing = thing
        self._name = (
            type(thing).__qualname__
            if isinstance(thing, nn.Module)
            else getattr(thing, "__qualname__", type(thing).__qualname__)
        )
        self._version = version
        self._ignore = ignore
        self._watch = _CodeWatch()
        self._moves_itself = False
        self._calls_to_see = 0
        self.codes: dict[int, CodeType] = {}
        self.identity = self._look()

    def look(self) -> Identity:
        """Identify the program again. Returns the identity."""
        self.identity = self._look()
        return self.identity

    def has_moved(self) -> bool:
        """Whether a variable that the code reads, a method or a hook was replaced since the last `look`."""
        return self._watch.has_moved()

    def called(self) -> bool:
        """Accept changes that the program itself made during a call. Returns whether code changed."""
        if self._moves_itself:
            self._watch.settle()
        elif self._calls_to_see:
            self._calls_to_see -= 1
            if self._watch.has_moved():
                before = self.codes
                self.look()
                if before.keys() != self.codes.keys():
                    return True
                self._moves_itself = True
        return False

    def _look(self) -> Identity:
        patches = Patches().look()  # code of any installed module may run into them
        walk = _walk(self._thing, name=self._name, ignore=self._ignore, watch=self._watch, patches=patches)
        self.codes = codes_of(walk.functions)
        self._moves_itself = False
        self._calls_to_see = 2
        return identity_of_walk(walk, self._version)


class _CodeWatch(Watch):
    """Watches variables that code reads, methods and hooks, but no data in objects: guards check the data that was
    read, and programs set attributes at every step."""

    def add(self, container: Collection[Any]) -> None:
        """Does nothing."""

    def add_setting(self, read: Callable[[], Any]) -> None:
        """Does nothing."""

    def add_items(self, mapping: Mapping[str, Any], names: Collection[str]) -> None:
        """Does nothing."""


class IdentifiedArguments:
    """The `identity` of arguments that are neither tensors nor plain values, and of the classes of their containers.

    `codes` are the code objects that were read, by address. `watch` detects changes of this code; None without code.
    """

    def __init__(self, args: Any, kwargs: Any, version: str | None, ignore: Collection[str]) -> None:
        leaves, structure = tree_flatten((args, kwargs))
        objects: dict[object, Any] = {number: leaf for number, leaf in enumerate(leaves) if not is_plain(leaf)}
        objects |= {f"structure {number}": kind for number, kind in enumerate(_structures(structure))}
        walk = _walk(objects, name="arguments", ignore=ignore)
        self.identity = identity_of_walk(walk, version)
        self.codes = codes_of(walk.functions)
        self.watch: Watch | None = None
        if walk.functions:
            self.watch = _CodeWatch()
            classes = [value if isinstance(value, type) else type(value) for value in _each(objects.values())]
            _walk([*walk.functions, *classes], watch=self.watch)  # not the objects: the next call has other ones


def identify_options(options: Mapping[str, Any]) -> Identity:
    """The identity of the options of `torch.compile`, some of which are functions."""
    return identity_of_walk(_walk(dict(options), name="options"))


def identity_of(thing: Any, name: str = "object") -> Identity:
    """The identity of an object that tracing has read."""
    return identity_of_walk(_walk(thing, name=name))


def _walk(thing: Any, *, patches: Patches | None = None, **options: Any) -> Walk:
    # Other changes of installed modules are compared where these modules were traced (`traced.installed_text`).
    return walk_over(thing, tensors="layout", patches=patches or Patches(), **options)


def is_plain(value: object) -> bool:
    """Whether an argument is a plain value or a tensor, which `call_keys` describes completely."""
    return type(value) in _PLAIN or isinstance(value, torch.Tensor | np.generic)


def codes_of(functions: list[FunctionType]) -> dict[int, CodeType]:
    """The code objects of functions, nested ones included, by address."""
    found: dict[int, CodeType] = {}
    waiting = [function.__code__ for function in functions]
    while waiting:
        code = waiting.pop()
        if id(code) not in found:
            found[id(code)] = code
            waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def structure_text(spec: TreeSpec) -> str:
    """The nesting of containers as text. `IdentifiedArguments` identifies their classes, which are only named here."""
    keys = spec.context if spec.type is dict and _is_standard(spec) else ""
    children = ", ".join(map(structure_text, spec.children()))
    return "*" if spec.is_leaf() else f"{spec.type.__qualname__}{keys}({children})"


def _structures(spec: TreeSpec) -> Iterator[Any]:
    """Types and contexts of the containers that `structure_text` does not describe completely."""
    if not _is_standard(spec):
        yield [spec.type, spec.context]
    for child in spec.children():
        yield from _structures(child)


def _is_standard(spec: TreeSpec) -> bool:
    return spec.type in (tuple, list, None) or (spec.type is dict and all(type(key) is str for key in spec.context))


def _each(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _each(value)
        else:
            yield value
