"""Identity: whether something computes the same as it did elsewhere or before, as one digest and the facts behind it.

What cannot be told is never counted as equal: it is listed in `unknown`, with its place and the reason, and whoever
caches refuses it unless the user vouches for it with a version, or leaves it out.
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

RULES = 1
"""Version of the rules by which identities are made. Identities of other rules are never equal."""

_SHOWN = 3
_REFERS = ("function @", "class ", "module ", "object ", "member ", "same as @", "stands for")
_LONGEST = 120
_MODE = " in "
TOGETHER = "together "
"""With this begins a fact that stands for many."""


@dataclass(frozen=True)
class Identity:
    """What something is, as far as it can be told.

    digest: 32 hex digits, the same in every process for the same computation. facts: places and what is there. unknown:
    places of which nothing can be told, and why.
    """

    digest: str
    facts: Mapping[str, str] = field(repr=False)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def difference(self, other: Identity) -> str:
        """What tells `other` from this one, in words; "" where nothing does."""
        if self.digest == other.digest:
            return ""
        return difference(self.facts, other.facts)

    def require(self) -> Self:
        """This identity.

        Raises:
            NoFingerprint: something about it cannot be told.
        """
        if self.unknown:
            raise NoFingerprint(f"{reasons(self.unknown)}. {remedies(self.unknown)}")
        return self

    def to_json(self) -> dict[str, Any]:
        """As a store keeps it."""
        return {"rules": RULES, "digest": self.digest, "facts": dict(self.facts), "unknown": dict(self.unknown)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Identity | None:
        """The opposite of `to_json`; None of what was made by other rules."""
        if said.get("rules") != RULES:
            return None
        return cls(said["digest"], said["facts"], said["unknown"])


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
    """What decides the results of a function, module or object, followed through all that it calls and reads.

    Args:
        thing: what is to be told from others. A callable is taken to be called, and nothing else.
        name: what to call it in facts.
        version: stands for whatever cannot be told. The places of that still count, so that what becomes unknown later
            is not vouched for unseen.
        ignore: places that do not count, as facts, errors and logs show them, such as "cfg.seed".
        root: places of files below this folder count relative to it.
        files: files that values name count by size, time and place ("stat") or by content and place ("content").
        tensors: tensors count by content, or by their layout alone, as for what is to be compiled.
    """
    walk = walk_over(thing, name=name, ignore=ignore, root=root, files=files, tensors=tensors)
    return identity_of_walk(walk, version)


def walk_over(
    thing: Any,
    *,
    name: str = "value",
    ignore: Collection[str] = (),
    root: str | os.PathLike[str] | None = None,
    files: Files = "stat",
    tensors: Literal["content", "layout"] = "content",
    watch: Watch | None = None,
    called: bool = True,
    folders: bool = False,
    elsewhere: Collection[str] = (),
    patches: Patches | None = None,
    draws: bool = True,
) -> Walk:
    """The walk that an identity is made of; see `identify`.

    Args:
        watch: told what to look at for changes.
        called: whether a callable is called, and nothing else; else all of it counts.
        folders: whether the files that lie in folders which arguments name count, if they are few.
        elsewhere: absolute paths of folders whose files count in other ways.
        patches: what the program has put into installed modules; None: looked for now.
        draws: whether the state of default random generators counts where code draws from them.
    """
    below = None if root is None else os.path.abspath(root)  # noqa: PTH100  it must not follow links
    left_out = frozenset([ignore] if isinstance(ignore, str) else ignore)
    with walking(
        name, watch, ignore=left_out, root=below, files=files, tensors=tensors, folders=folders,
        elsewhere=frozenset(elsewhere), patches=patches, draws=draws,
    ) as walk:  # fmt: skip
        if isinstance(thing, partial) or not called or not callable(thing):
            walk.whole(walk.start, thing)
        else:
            read_called(walk, walk.start, thing)
    return walk


@contextmanager
def walking(
    name: str, watch: Watch | None = None, *, patches: Patches | None = None, **settings: Any
) -> Iterator[Walk]:
    """A walk that looks at whatever it is told to here, and at all that this leads to.

    Args:
        settings: see `WalkSettings`.
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
    if watch is not None:
        watch.settle()


def identity_of_walk(walk: Walk, version: str | None = None) -> Identity:
    """The identity that a walk has found."""
    return WalkResult.of(walk).identity(version)


@dataclass(frozen=True)
class WalkResult:
    """What a walk has found, by places as they count, and the names of those. It keeps no object alive.

    weights: places of the parameters and buffers of modules. roots: the places of functions, classes and modules, by
    which of them they are in this process.
    """

    facts: dict[str, str]
    unknown: dict[str, str]
    names: Names
    weights: frozenset[str] = frozenset()
    roots: dict[Any, tuple[str, weakref.ref[Any]]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, walk: Walk) -> WalkResult:
        walk.origin(PYTHON_ORIGIN)
        return cls(
            {walk.key_of(place): text for place, text in walk.facts.items()},
            {walk.key_of(place): reason for place, reason in walk.unknown.items()},
            walk.names,
            frozenset(map(walk.key_of, walk.weights)),
            walk.roots,
        )

    def without_roots(self) -> WalkResult:
        """This result for another process, where weak references and ids mean nothing."""
        return replace(self, roots={})

    def identity(self, version: str | None = None) -> Identity:
        """The identity of so many facts."""
        facts: dict[str, str] = {}
        digest = xxhash.xxh3_128(f"identity {RULES}\n".encode())
        for place, text in sorted(self.facts.items()):
            digest.update(f"{len(place)} {len(text)} {place} {text}\n".encode("utf-8", "surrogatepass"))
            shown, said = self.names.in_words(place), text
            if text.startswith(_REFERS):
                said = self.names.in_words(text)
                if said.partition(" ")[2] == shown:
                    continue  # it only leads on
            facts[shown if facts.get(shown, said) == said else f"{shown} (2)"] = said
        unknown = {self.names.in_words(place): reason for place, reason in self.unknown.items()}
        if version is not None:
            facts["version"] = repr(version)
            digest.update(f"version {version!r} for {sorted(self.unknown)}".encode())
            unknown = {}
        return Identity(digest.hexdigest(), dict(sorted(facts.items())), unknown)


def reasons(unknown: Mapping[str, str]) -> str:
    """What cannot be told, in words."""
    shown = [f"{place}: {reason}" for place, reason in list(unknown.items())[:_SHOWN]]
    more = len(unknown) - len(shown)
    return "it cannot be told whether this changes: " + "; ".join(shown) + (f"; and {more} more" if more else "")


def remedies(unknown: Mapping[str, str]) -> str:
    """What a user can do about it."""
    places = ", ".join(repr(place) for place in list(unknown)[:_SHOWN])
    return (
        "Pass version='1', and another one whenever that changes; or ignore=("
        f"{places},) where it makes no difference; or define __identity__ on the object"
    )


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What tells two sets of facts apart, in words; "" where nothing does."""
    found = differences(before, after)
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """All that tells two sets of facts apart, in words, what says most first."""
    found = []
    for place in [*before, *(place for place in after if place not in before)]:
        old, new = before.get(place), after.get(place)
        if old != new:
            found.append((_rank(place, old, new), place, _said(place, old, new)))
    found.sort(key=lambda one: (one[0], len(one[1])))
    return [text for _, _, text in found]


def _rank(place: str, old: str | None, new: str | None) -> int:
    """What says most comes first: values that changed, then code, then what came or went."""
    if old is None or new is None:
        return 2
    return 1 if old.startswith(("code ", "same as ")) else 0


def _said(place: str, old: str | None, new: str | None) -> str:
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
