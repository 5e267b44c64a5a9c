"""Identities of the samples of a source: one for the source itself, and one for each sample that it holds.

A list is looked at sample by sample, so that growth and edits of files change what they concern and nothing else; other
sources count as a whole. The name of a source does not change with the content of the files that it names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PosixPath
from typing import Any, Protocol

import numpy as np
import xxhash

from warmstore.errors import NoFingerprint
from warmstore.identity import files as files_module
from warmstore.identity.files import Files
from warmstore.identity.identity import Found, Identity, walk_over
from warmstore.identity.plain import ATOMS, NotPlain, Plain
from warmstore.identity.walk import Walk

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
_FIRST = 16
_MOST_FACTS = 500
_STATE = (".<file>", ".<files>", ".<state>", ".filename")
_PATHS = frozenset((str, PosixPath))


class Look(Protocol):
    """Looks at some samples of a source again, which is how it was looked at first."""

    def __call__(self, samples: Sequence[Any]) -> UInt64:
        """Their hashes, uint64 [n]."""


@dataclass(frozen=True)
class Samples:
    """The identity of a source and of its samples.

    name: 16 hex digits. each: uint64 [samples]. identity: of what all samples have in common: their classes, or the
    source as a whole. look: gives the hashes of some samples as they are now; None of a source that counts as a whole,
    and of samples that a step may write into: what it writes is no change of the program's.
    """

    name: str
    each: UInt64 = field(repr=False)
    identity: Identity = field(repr=False)
    look: Look | None = field(default=None, repr=False)


def identify_samples(
    source: Any,
    *,
    version: str | None = None,
    ignore: Collection[str] = (),
    root: str | None = None,
    files: Files = "stat",
    folders: Sequence[str] = (),
) -> Samples:
    """The identity of a source and of each of its samples.

    Args:
        source: has a length and items.
        version, ignore, root, files: as in `identify`.
        folders: where files lie that samples name relative to none in particular.
    """
    count = len(source)
    listed = _listed(source)
    place = files_module.Places(files, None if root is None else os.path.abspath(root), tuple(folders))  # noqa: PTH100
    if listed is not None and version is None and not ignore:
        kinds = set(map(type, listed))
        if kinds <= _PATHS and len(kinds) == 1:
            return _of_paths(listed if kinds == {str} else list(map(str, listed)), source, place)
        found = _one_by_one(listed, source, place, root, files)
        if found is not None:
            return found
    return _as_a_whole(source, count, version, ignore, root, files)


def _listed(source: Any) -> Sequence[Any] | None:
    """The samples of a source that holds them one by one; None of others."""
    if isinstance(source, np.ndarray) and source.ndim == 1 and source.dtype.kind in "OU":
        return source.tolist()  # type: ignore[no-any-return]
    return source if type(source) in (list, tuple) else None


def _nothing() -> Identity:
    return Found.of(Walk("source")).identity()


def _of_paths(texts: Sequence[str], source: Any, places: files_module.Places) -> Samples:
    """Texts, or paths of files: hashed in one go, since there may be millions."""
    hashes = _hashes(texts)
    name = xxhash.xxh3_128(f"{type(source).__name__} of {len(texts)} texts".encode())
    name.update(hashes.data)
    first = texts[:_FIRST]
    look = _Paths(places, any(map(places.stamp, first)) or any(map(_looks_like_a_path, first)))
    if look.are_files:
        hashes = mixed(hashes, _hashes(list(map(places.stamp, texts))))
        if not all(text.startswith("/") for text in first) and places.root is None:
            name.update(os.getcwd().encode())  # noqa: PTH109  relative paths are others elsewhere
    return Samples(name.hexdigest()[:16], hashes, _nothing(), look)


@dataclass(frozen=True)
class _Paths:
    """Looks at texts again, and at the files that they name, if they do."""

    places: files_module.Places
    are_files: bool

    def __call__(self, samples: Sequence[Any]) -> UInt64:
        texts = list(map(str, samples))
        hashes = _hashes(texts)
        return mixed(hashes, _hashes(list(map(self.places.stamp, texts)))) if self.are_files else hashes


def _hashes(texts: Sequence[str]) -> UInt64:
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(texts))


def _looks_like_a_path(text: str) -> bool:
    return "/" in text and files_module.may_be_path(text)


def mixed(one: UInt64, other: UInt64) -> UInt64:
    """Hashes of pairs of hashes: the finisher of SplitMix64 (Steele et al., 2014) over a sum of both."""
    with np.errstate(over="ignore"):
        found = one + other * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(30)
        found *= np.uint64(0xBF58476D1CE4E5B9)
        found ^= found >> np.uint64(27)
        found *= np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def _one_by_one(
    samples: Sequence[Any], source: Any, places: files_module.Places, root: str | None, files: Files
) -> Samples | None:
    """Plain data and simple objects; None where samples are better looked at as a whole."""
    walk = Walk("source")
    plain = Plain(walk.is_simple, by_content=True)
    try:
        texts, states = _texts(samples, plain, places, root, files)
    except _TooMuchError:
        return None
    for cls in plain.classes:
        walk.fact(walk.start + f".<class {plain.classes[cls]}>", walk.cls(cls))
    walk.run()
    identity = Found.of(walk).identity()
    common = "" if not plain.classes and not plain.cycles else identity.digest
    if plain.cycles:  # samples that know each other: a change of one may be a change of all
        common += xxhash.xxh3_128_hexdigest("\n".join(chain(texts, states)).encode("utf-8", "surrogatepass"))
    named_by = xxhash.xxh3_128(f"{type(source).__name__} of {len(texts)}".encode())
    for text in texts:
        named_by.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
    hashes = _hashes([f"{common}{text} {state}" for text, state in zip(texts, states, strict=True)])
    immutable = all(map(_is_immutable, samples))
    look = _Values(places, root, files, common) if immutable else None
    return Samples(named_by.hexdigest()[:16], hashes, identity, look)


def _is_immutable(value: Any) -> bool:
    """Whether nothing can write into a sample."""
    kind = type(value)
    return kind in ATOMS or (kind in (tuple, frozenset) and all(map(_is_immutable, value)))


@dataclass(frozen=True)
class _Values:
    """Looks at values again, and at the files that they name. common: what counts of all of them."""

    places: files_module.Places
    root: str | None
    files: Files
    common: str

    def __call__(self, samples: Sequence[Any]) -> UInt64:
        plain = Plain(Walk("source").is_simple, by_content=True)
        try:
            texts, states = _texts(samples, plain, self.places, self.root, self.files)
        except _TooMuchError:
            return np.zeros(len(samples), np.uint64)  # they are no longer what they were
        return _hashes([f"{self.common}{text} {state}" for text, state in zip(texts, states, strict=True)])


def _texts(
    samples: Sequence[Any], plain: Plain, places: files_module.Places, root: str | None, files: Files
) -> tuple[list[str], list[str]]:
    """Texts of samples, and of the files that each names.

    Raises:
        _TooMuchError: a sample leads far, or something of it cannot be told.
    """
    texts: list[str] = []
    states: list[str] = []
    for sample in samples:
        before = len(plain.strings)
        try:
            text = plain.text(sample)
        except NotPlain:
            del plain.strings[before:]
            text = _walked(sample, root, files)
        texts.append(text)
        named = plain.strings[before:]
        states.append("".join([places.stamp(str(one)) for one in named]) if named else "")
    return texts, states


class _TooMuchError(Exception):
    """A sample leads to so much that the source is better looked at as a whole."""


def _walked(sample: Any, root: str | None, files: Files) -> str:
    walk = walk_over(sample, name="sample", root=root, files=files, called=False, patches={})
    if len(walk.facts) > _MOST_FACTS:
        raise _TooMuchError
    if walk.unknown:
        raise _TooMuchError  # looked at as a whole, it is said where
    return Found.of(walk).identity().digest


def _as_a_whole(
    source: Any, count: int, version: str | None, ignore: Collection[str], root: str | None, files: Files
) -> Samples:
    walk = walk_over(source, name="source", ignore=ignore, root=root, files=files, called=False)
    found = Found.of(walk)
    identity = found.identity(version)
    lasting = {place: text for place, text in found.facts.items() if not _is_state(place)}
    name = replace(found, facts=lasting).identity(version).digest[:16]
    return Samples(name, np.full(count, int(identity.digest[:16], 16), np.uint64), identity)


def _is_state(place: str) -> bool:
    return place.endswith(_STATE) or ".<state>" in place


def unknown_source(samples: Samples) -> NoFingerprint:
    """The error for a source of which something cannot be told."""
    try:
        samples.identity.require()
    except NoFingerprint as error:
        return error
    return NoFingerprint("the source cannot be told from others")
