"""What is compiled and what it is called with, identified: the code and values that tracing may look at.

Sizes, strides and contents of tensors among the arguments do not count. Of a function or module that changes while the
program runs a new identity is made. Torch's guards look at data in every call; code is watched here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
    """A function, or a module that is called, with its identity.

    Args:
        thing: what is compiled.
        version, ignore: as `identify` takes them.

    Attributes:
        identity: as of the last look.
        codes: what was read as code, all that is within included.
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
        """The identity as it is now."""
        self.identity = self._look()
        return self.identity

    def has_moved(self) -> bool:
        """Whether a variable that is read, a method or a hook is another one since the last look."""
        return self._watch.has_moved()

    def called(self) -> bool:
        """What moved meanwhile was moved by the program as it ran. Say whether that was code: guards see data."""
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
        walk = _walk(self._thing, name=self._name, ignore=self._ignore, watch=self._watch)
        self.codes = codes_of(walk.functions)
        self._moves_itself = False
        self._calls_to_see = 2
        return identity_of_walk(walk, self._version)


class _CodeWatch(Watch):
    """Watches variables that code reads, methods and hooks. Data that objects hold is left out: of what was read of it
    there are guards, and programs set attributes at every step."""

    def add(self, container: Collection[Any]) -> None:
        """Left out."""

    def add_items(self, mapping: dict[str, Any], names: Collection[str]) -> None:
        """Left out."""


class IdentifiedArguments:
    """The arguments of a call that are neither tensors nor plain, identified, with the classes of all that hold them.

    Attributes:
        identity: of them.
        codes: what was read as code.
        watch: of their code; None where there is none.
    """

    def __init__(self, args: Any, kwargs: Any, version: str | None, ignore: Collection[str]) -> None:
        leaves, structure = tree_flatten((args, kwargs))
        objects: dict[object, Any] = {at: one for at, one in enumerate(leaves) if not is_plain(one)}
        objects |= {f"structure {at}": one for at, one in enumerate(_structures(structure))}
        walk = _walk(objects, name="arguments", ignore=ignore)
        self.identity = identity_of_walk(walk, version)
        self.codes = codes_of(walk.functions)
        self.watch: Watch | None = None
        if walk.functions:
            self.watch = _CodeWatch()
            classes = [one if isinstance(one, type) else type(one) for one in _each(objects.values())]
            _walk([*walk.functions, *classes], watch=self.watch)  # not what they hold: the next call has others


def identify_options(options: Mapping[str, Any]) -> Identity:
    """Those of `torch.compile`, of which some are functions."""
    return identity_of_walk(_walk(dict(options), name="options"))


def identity_of(thing: Any) -> Identity:
    """What something that was met while tracing is."""
    return identity_of_walk(_walk(thing, name="object"))


def _walk(thing: Any, **options: Any) -> Walk:
    # What the program has put into installed modules is compared where they were traced (`traced.installed_text`).
    return walk_over(thing, tensors="layout", patches=Patches(), **options)


def is_plain(value: object) -> bool:
    """Whether an argument is said in full by the specification of its kind."""
    return type(value) in _PLAIN or isinstance(value, torch.Tensor | np.generic)


def codes_of(functions: list[FunctionType]) -> dict[int, CodeType]:
    """The code objects of functions and all that are within, by their addresses."""
    found: dict[int, CodeType] = {}
    waiting = [one.__code__ for one in functions]
    while waiting:
        code = waiting.pop()
        if id(code) not in found:
            found[id(code)] = code
            waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found


def structure_text(spec: TreeSpec) -> str:
    """How containers are nested; what `IdentifiedArguments` identifies has only its name here."""
    keys = spec.context if spec.type is dict and _is_said(spec) else ""
    inside = ", ".join(map(structure_text, spec.children()))
    return "*" if spec.is_leaf() else f"{spec.type.__qualname__}{keys}({inside})"


def _structures(spec: TreeSpec) -> Iterator[Any]:
    """Types and contexts of containers, but for those of which the text says everything."""
    if not _is_said(spec):
        yield [spec.type, spec.context]
    for child in spec.children():
        yield from _structures(child)


def _is_said(spec: TreeSpec) -> bool:
    return spec.type in (tuple, list, None) or (spec.type is dict and all(type(key) is str for key in spec.context))


def _each(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _each(value)
        else:
            yield value
