"""Identity: one digest for all that decides the results of a function, module or object, and the facts behind it.

What is unknown never counts as equal. `unknown` lists its places and reasons, and caches refuse it unless the user
passes a version that stands for it, or ignores its place.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self

import xxhash

from warmstore.errors import NoFingerprint
from warmstore.identity.named_files import Files
from warmstore.identity.object_walk import ObjectWalk
from warmstore.identity.origin import PYTHON_ORIGIN
from warmstore.identity.patches import Patches
from warmstore.identity.places import Names
from warmstore.identity.reads import read_called
from warmstore.identity.walk import Walk
from warmstore.identity.walk_settings import WalkSettings
from warmstore.identity.watch import Watch

RULES = 3
"""Version of the rules that make identities. Identities by different rules are never equal."""

_SHOWN = 3
_REFERS = ("function @", "class ", "module ", "object ", "member ", "same as @", "stands for")
_LONGEST = 120
_MODE = " in "
TOGETHER = "together "
"""The prefix of a fact that stands for many facts."""


@dataclass(frozen=True)
class Identity:
    """The identity of a function, module or object.

    digest: 32 hex digits, the same in every process for the same computation. facts: a text for each place. unknown:
    the reason for each place whose value has no identity.
    """

    digest: str
    facts: Mapping[str, str] = field(repr=False)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def difference(self, other: Identity) -> str:
        """The differences between this identity and `other`, in words; "" if there is none."""
        if self.digest == other.digest:
            return ""
        return difference(self.facts, other.facts)

    def require(self) -> Self:
        """Return this identity.

        Raises:
            NoFingerprint: Something is unknown.
        """
        if self.unknown:
            raise NoFingerprint(f"{reasons(self.unknown)}. {remedies(self.unknown)}")
        return self

    def to_json(self) -> dict[str, Any]:
        """This identity as JSON, for a store."""
        return {"rules": RULES, "digest": self.digest, "facts": dict(self.facts), "unknown": dict(self.unknown)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Identity | None:
        """The identity that `to_json` wrote; None if other rules made it."""
        if content.get("rules") != RULES:
            return None
        return cls(content["digest"], content["facts"], content["unknown"])


def identify(
    thing: Any,
    *,
    name: str = "value",
    version: str | None = None,
    ignore: Collection[str] = (),
    root: str | os.PathLike[str] | None = None,
    files: Files = "stat",
    tensors: Literal["content", "layout"] = "content",
) -> Identity:
    """The identity of a function, module or object, from all that it calls and reads.

    Args:
        thing: The object. A callable counts by what a call of it does.
        name: The name of the object in facts.
        version: Stands for the state of all unknown places. The places themselves still count, so that the version
            does not cover what becomes unknown later.
        ignore: Places that do not count, as facts, errors and logs show them, such as "cfg.seed".
        root: Files below this folder count by their path relative to it.
        files: Files that values name count by path, size and time ("stat"), or by path and content ("content").
        tensors: Tensors count by content, or by their layout alone, as in inputs of compiled code.
    """
    walk = walk_over(thing, name=name, ignore=ignore, root=root, files=files, tensors=tensors)
    return identity_of_walk(walk, version)


def walk_over(
    thing: Any,
    *,
    name: str = "value",
    ignore: Collection[str] = (),
    root: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    called: bool = True,
    patches: Patches | None = None,
    **settings: Any,
) -> Walk:
    """A finished walk over an object.

    Args:
        name, ignore, root: As in `identify`.
        watch: Records what to check for changes.
        called: Whether a callable counts by what a call of it does. Otherwise all of it counts.
        patches: What the program has put into installed modules. None: search for them now.
        settings: Other fields of `WalkSettings`.
    """
    root_path = None if root is None else os.path.abspath(root)  # noqa: PTH100  it must not follow links
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
    with walking(name, watch, ignore=ignored, root=root_path, patches=patches, **settings) as walk:
        if isinstance(thing, partial) or not called or not callable(thing):
            walk.whole(walk.start, thing)
        else:
            read_called(walk, walk.start, thing)
    return walk


@contextmanager
def walking(
    name: str, watch: Watch | None = None, *, patches: Patches | None = None, **settings: Any
) -> Iterator[Walk]:
    """A new walk. At the end of the context it does all work that is queued, and the watch keeps what it has seen.

    Args:
        settings: Fields of `WalkSettings`.
    """
    if watch is not None:
        watch.begin()
    if patches is None and watch is not None:
        patches = watch.patches = Patches().look() if watch.patches is None else watch.patches
    if patches is None:
        patches = Patches().look()
    walk = ObjectWalk(name, WalkSettings(watch=watch, patches=patches, **settings))
    yield walk
    walk.run()
    walk.record_modes()
    if watch is not None:
        walk.watch_files(walk.missing)  # when all work is done
        watch.settle()


def identity_of_walk(walk: Walk, version: str | None = None) -> Identity:
    """The identity that a finished walk has found."""
    return WalkResult.of(walk).identity(version)


@dataclass(frozen=True)
class WalkResult:
    """The facts and unknown places of a finished walk, with the names behind its places. It keeps no object alive.

    weights: The places of the parameters and buffers of modules. of_thread: Those of settings that each thread has for
    itself. roots: The places of functions, classes and modules,
    by their keys in this process.
    """

    facts: dict[str, str]
    unknown: dict[str, str]
    names: Names
    weights: frozenset[str] = frozenset()
    of_thread: frozenset[str] = frozenset()
    roots: dict[Any, tuple[str, weakref.ref[Any]]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, walk: Walk) -> WalkResult:
        walk.origin(PYTHON_ORIGIN)
        return cls(
            {walk.key_of(place): text for place, text in walk.facts.items()},
            {walk.key_of(place): reason for place, reason in walk.unknown.items()},
            walk.names,
            frozenset(map(walk.key_of, walk.weights)),
            frozenset(map(walk.key_of, walk.of_thread)),
            walk.roots,
        )

    def without_roots(self) -> WalkResult:
        """This result for another process, where weak references and ids mean nothing."""
        return replace(self, roots={})

    def identity(self, version: str | None = None) -> Identity:
        """The identity that has these facts."""
        facts: dict[str, str] = {}
        digest = xxhash.xxh3_128(f"identity {RULES}\n".encode())
        for place, text in sorted(self.facts.items()):
            digest.update(f"{len(place)} {len(text)} {place} {text}\n".encode("utf-8", "surrogatepass"))
            name, words = self.names.in_words(place), text
            if text.startswith(_REFERS):
                words = self.names.in_words(text)
                if words.partition(" ")[2] == name:
                    continue  # it only refers to the place of its own name
            facts[name if facts.get(name, words) == words else f"{name} (2)"] = words
        unknown = {self.names.in_words(place): reason for place, reason in self.unknown.items()}
        if version is not None:
            facts["version"] = repr(version)
            digest.update(f"version {version!r} for {sorted(self.unknown)}".encode())
            unknown = {}
        return Identity(digest.hexdigest(), dict(sorted(facts.items())), unknown)


def reasons(unknown: Mapping[str, str]) -> str:
    """The error text for unknown places."""
    shown = [f"{place}: {reason}" for place, reason in list(unknown.items())[:_SHOWN]]
    more = len(unknown) - len(shown)
    return "it is unknown whether this changes: " + "; ".join(shown) + (f"; and {more} more" if more else "")


def remedies(unknown: Mapping[str, str]) -> str:
    """What a user can do about unknown places."""
    places = ", ".join(repr(place) for place in list(unknown)[:_SHOWN])
    return (
        "Pass version='1', and another one whenever that changes; or ignore=("
        f"{places},) where it makes no difference; or define __identity__ on the object"
    )


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The most important differences between two sets of facts, in words; "" if there is none."""
    found = differences(before, after)
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """All differences between two sets of facts, in words, the most important first."""
    found = []
    for place in [*before, *(place for place in after if place not in before)]:
        old, new = before.get(place), after.get(place)
        if old != new:
            found.append((_rank(place, old, new), place, _in_words(place, old, new)))
    found.sort(key=lambda entry: (entry[0], len(entry[1])))
    return [text for _, _, text in found]


def _rank(place: str, old: str | None, new: str | None) -> int:
    """The order of differences: values that changed, then code, then places that were added or removed."""
    if old is None or new is None:
        return 2
    return 1 if old.startswith(("code ", "same as ")) else 0


def _in_words(place: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"`{place}` is new: {_short(str(new))}"
    if new is None:
        return f"`{place}` is gone, and was {_short(old)}"
    if place.startswith("version of "):
        return f"the {place} was {_short(old)}, is {_short(new)}"
    if old.startswith("code ") and new.startswith("code "):
        before, after = old.partition(" constants ")[2], new.partition(" constants ")[2]
        if before != after:
            return f"the code of `{place}` was edited: its constants were {_short(before)}, are {_short(after)}"
        return f"the code of `{place}` was edited"
    for kind in ("tensor", "array"):
        if old.startswith(f"{kind} ") and new.startswith(f"{kind} "):
            (before, _, _), (after, _, _) = old.rpartition(" "), new.rpartition(" ")
            if before == after:
                return f"the values of the {kind} `{place}` changed"
            return f"the {kind} `{place}` was {before.partition(' ')[2]}, is {after.partition(' ')[2]}"
    if old.startswith(TOGETHER) and new.startswith(TOGETHER):
        return f"something in `{place}` changed"
    (kind, _, mode), (other_kind, _, other_mode) = old.rpartition(_MODE), new.rpartition(_MODE)
    if kind == other_kind and kind.startswith("module "):
        return f"the train/eval mode of `{place}` was {mode}, is {other_mode}"
    return f"`{place}` was {_short(old)}, is {_short(new)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
