"""Identities of a source of samples: one for the source, and one for each of its samples.

Each sample of a list has its own identity, so that a new sample or an edited file leaves the other samples valid. Any
other source counts as a whole. The name of a source does not depend on the content of the files that it names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from operator import attrgetter
from pathlib import PosixPath
from typing import Any, Protocol

import numpy as np
import xxhash

from warmstore.identity.call_effects import effects_of
from warmstore.identity.identity import Identity, WalkResult, walk_over, walking
from warmstore.identity.kinds.dispatch import is_simple
from warmstore.identity.named_files import Files, FileStamps, may_be_path
from warmstore.identity.object_walk import ObjectWalk
from warmstore.identity.patches import Patches
from warmstore.identity.plain_data import ATOMS, NotPlain, PlainTexts, digest_of
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Classes = tuple[tuple[type, int], ...]
"""The classes of samples, with their numbers."""

_FIRST = 16
_AT_ONCE = 1 << 12  # files
_ONE = np.uint64(1)
_MOST_FACTS = 500
_STATE = (".<file>", ".<files>", ".<state>", ".filename")
_PATHS = frozenset((str, PosixPath))


class Look(Protocol):
    """Hashes some samples of a source as they are now."""

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        """Hashes of values and of the files that they name, uint64 [n] each; `mixed` joins both."""


@dataclass(frozen=True)
class SampleIdentities:
    """The identity of a source and of its samples.

    name: 16 hex digits. each: uint64 [samples]. identity: The identity of the classes of samples, or of the source as a
    whole. look: Hashes samples again; None if the source counts as a whole. may_be_written: Whether a step can write
    into a sample. recorded: The recorded identity of the source as a whole, or of the classes of samples.
    """

    name: str
    each: UInt64 = field(repr=False)
    identity: Identity = field(repr=False)
    look: Look | None = field(default=None, repr=False)
    may_be_written: bool = False
    recorded: RecordedIdentity | None = field(default=None, repr=False)


def identify_samples(
    source: Any,
    *,
    version: str | None = None,
    ignore: Collection[str] = (),
    root: str | None = None,
    files: Files = "stat",
    folders: Sequence[str] = (),
    patches: Patches | None = None,
    known: SampleIdentities | None = None,
) -> SampleIdentities:
    """The identity of a source and of each of its samples.

    Args:
        source: The samples. It has a length and items.
        version, ignore, root, files: As in `identify`.
        folders: Folders in which to look for files that samples name by relative paths.
        patches: Functions that the program has put into installed modules. None: they do not count.
        known: An earlier result for the same source.
    """
    patches = Patches() if patches is None else patches
    count = len(source)
    listed = _listed(source)
    stamps = FileStamps(files, None if root is None else os.path.abspath(root), tuple(folders))  # noqa: PTH100
    if listed is not None and version is None and not ignore:
        kinds = set(map(type, listed))
        if kinds <= _PATHS and len(kinds) == 1:
            return _of_paths(listed if kinds == {str} else list(map(str, listed)), source, stamps)
        found = _one_by_one(listed, source, stamps, patches, known)
        if found is not None:
            return found
    recorded = _refreshed(known, None)
    if recorded is None:
        options = {"ignore": tuple(ignore), "root": root, "files": files, "patches": patches}
        look = partial(_look_at_source, source, options)
        recorded = RecordedIdentity(look, version, effects_of(source, ("source", tuple(ignore), root, files)))
    return as_a_whole(recorded, count, version)


def _refreshed(known: SampleIdentities | None, classes: Classes | None) -> RecordedIdentity | None:
    """The recorded identity of an earlier result, refreshed; None if it was made from other classes.

    Args:
        classes: The classes of samples. None: the source as a whole.
    """
    if known is None or known.recorded is None:
        return None
    before = known.look.classes if isinstance(known.look, _Values) else None
    if before != classes:
        return None
    known.recorded.refresh(again=True)
    return known.recorded


def counts_as_a_whole(source: Any) -> bool:
    """Whether a source counts as a whole, so that reading samples may change its identity."""
    return _listed(source) is None and not isinstance(source, np.ndarray)


def _listed(source: Any) -> Sequence[Any] | None:
    """The samples of a list, tuple, or array of strings or objects; None for any other source."""
    if isinstance(source, np.ndarray) and source.ndim == 1 and source.dtype.kind in "OU":
        return source.tolist()  # type: ignore[no-any-return]
    return source if type(source) in (list, tuple) else None


def _nothing() -> Identity:
    return WalkResult.of(ObjectWalk("source")).identity()


def _of_paths(texts: Sequence[str], source: Any, files: FileStamps) -> SampleIdentities:
    """The identities of strings and paths, all hashed in one pass, since there may be millions."""
    hashes = _hashes(texts)
    name = xxhash.xxh3_128(f"{type(source).__name__} of {len(texts)} texts".encode())
    name.update(hashes.data)
    first = texts[:_FIRST]
    look = _Paths(files, any(map(files.stamp, first)) or any("/" in text and may_be_path(text) for text in first))
    if look.are_files:
        hashes = mixed(hashes, look.stamps(texts))
        if not all(text.startswith("/") for text in first) and files.root is None:
            name.update(os.getcwd().encode())  # noqa: PTH109  relative paths are others elsewhere
    return SampleIdentities(name.hexdigest()[:16], hashes, _nothing(), look)


@dataclass(frozen=True)
class _Paths:
    """Hashes strings again, and the files that they name, if any."""

    files: FileStamps
    are_files: bool

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        texts = list(map(str, samples))
        return _hashes(texts), self.stamps(texts) if self.are_files else np.zeros(len(texts), np.uint64)

    def stamps(self, texts: Sequence[str]) -> UInt64:
        """Hashes of the files."""
        if self.files.files != "stat" or self.files.root is not None or self.files.folders:
            return _hashes(list(map(self.files.stamp, texts)))
        return np.concatenate([self._stamps(texts[at : at + _AT_ONCE]) for at in range(0, len(texts), _AT_ONCE)])

    def _stamps(self, texts: Sequence[str]) -> UInt64:
        """Hashes of the sizes and times of regular files, and of the texts of everything else."""
        try:
            found = list(map(os.stat, texts))
        except (OSError, ValueError):
            return _hashes(list(map(self.files.stamp, texts)))
        sizes, times, modes = (
            np.fromiter(map(attrgetter(name), found), np.int64, len(found))
            for name in ("st_size", "st_mtime_ns", "st_mode")
        )
        hashes = mixed(sizes.view(np.uint64) + _ONE, times.view(np.uint64) + _ONE)
        absolute = np.fromiter(map(str.startswith, texts, repeat("/")), np.bool_, len(texts))
        if not absolute.all():  # relative paths depend on the working directory
            hashes[~absolute] = mixed(hashes[~absolute], _hashes([os.getcwd()]))  # noqa: PTH109
        for at in np.flatnonzero(modes & 0o170000 != stat.S_IFREG).tolist():
            hashes[at] = _hashes([self.files.stamp(texts[at])])[0]
        return hashes


def _hashes(texts: Sequence[str]) -> UInt64:
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(texts))


def mixed(first: UInt64, second: UInt64) -> UInt64:
    """Hashes of pairs of hashes: the finisher of SplitMix64 (Steele et al., 2014) over a sum of both.

    Args:
        second: 0 where a pair has no second hash.
    """
    if not second.any():
        return first
    with np.errstate(over="ignore"):
        found = first + second * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(30)
        found *= np.uint64(0xBF58476D1CE4E5B9)
        found ^= found >> np.uint64(27)
        found *= np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def _one_by_one(
    samples: Sequence[Any], source: Any, stamps: FileStamps, patches: Patches, known: SampleIdentities | None
) -> SampleIdentities | None:
    """The identities of plain data and simple objects; None if the source is to count as a whole."""
    plain = _plain()
    try:
        texts, states = _texts(samples, plain, stamps)
    except _TooMuchError:
        return None
    if plain.cycles:  # samples refer to each other: a change of one may change all
        look_at_all = partial(_look_at_all, samples, stamps, patches)
        return as_a_whole(_refreshed(known, None) or RecordedIdentity(look_at_all), len(samples), None)
    classes, recorded = tuple(plain.classes.items()), None
    if classes:
        recorded = _refreshed(known, classes) or RecordedIdentity(partial(_look_at_classes, classes, patches))
    look = _Values(stamps, classes, recorded)
    named_by = xxhash.xxh3_128(f"{type(source).__name__} of {len(texts)}".encode())
    for text in texts:
        named_by.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
    identity = _nothing() if recorded is None else recorded.identity
    may_be_written = not all(map(_is_immutable, samples))
    return SampleIdentities(
        named_by.hexdigest()[:16], mixed(*look.hashes(texts, states)), identity, look, may_be_written, recorded
    )  # fmt: skip


def _look_at_classes(classes: Classes, patches: Patches, watch: Watch) -> Walk:
    with walking("source", watch, patches=patches) as walk:
        for cls, number in classes:
            walk.fact(walk.start + f".<class {number}>", walk.cls(cls))
    return walk


def _look_at_all(samples: Sequence[Any], stamps: FileStamps, patches: Patches, watch: Watch) -> Walk:
    plain = _plain()
    with walking("source", watch, patches=patches) as walk:
        try:
            texts, states = _texts(samples, plain, stamps)
            for part, lines in (("<samples>", texts), ("<state>", states)):
                walk.fact(walk.start + f".{part}", f"{len(lines)} {digest_of(chr(10).join(lines))}")
        except _TooMuchError:
            walk.whole(walk.start, samples)
        for cls, number in plain.classes.items():
            walk.fact(walk.start + f".<class {number}>", walk.cls(cls))
    return walk


def _plain() -> PlainTexts:
    return PlainTexts(is_simple, by_content=True)


def _is_immutable(value: Any) -> bool:
    """Whether nothing can write into a sample."""
    kind = type(value)
    return kind in ATOMS or (kind in (tuple, frozenset) and all(map(_is_immutable, value)))


@dataclass(frozen=True)
class _Values:
    """Hashes values again, and the files that they name. recorded: The identity of the classes of objects."""

    stamps: FileStamps
    classes: Classes
    recorded: RecordedIdentity | None

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        plain = _plain()
        plain.classes.update(self.classes)
        nothing = np.zeros(len(samples), np.uint64)
        try:
            texts, states = _texts(samples, plain, self.stamps)
        except _TooMuchError:
            return nothing, nothing  # the hashes of changed samples
        if plain.cycles or len(plain.classes) > len(self.classes):
            return nothing, nothing
        return self.hashes(texts, states)

    def hashes(self, texts: Sequence[str], states: Sequence[str]) -> tuple[UInt64, UInt64]:
        """Hashes of samples from their texts, and hashes of the files that they name; 0 for no files."""
        common = "" if self.recorded is None else self.recorded.identity.digest
        stamps = _hashes(states) if any(states) else np.zeros(len(texts), np.uint64)
        return _hashes([common + text for text in texts] if common else texts), stamps


def _texts(samples: Sequence[Any], plain: PlainTexts, stamps: FileStamps) -> tuple[list[str], list[str]]:
    """Texts of samples, and texts of the files that each names.

    Raises:
        _TooMuchError: A sample has too many facts, or unknown ones.
    """
    texts: list[str] = []
    states: list[str] = []
    strings, stamp = plain.strings, stamps.stamp
    for sample in samples:
        try:
            text = plain.text(sample)
        except NotPlain:
            strings.clear()
            text = _walked(sample, stamps)
        texts.append(text)
        states.append("".join([stamp(str(string)) for string in strings]) if strings else "")
        strings.clear()
    return texts, states


class _TooMuchError(Exception):
    """A sample has too many facts or unknown ones, so that the source is to count as a whole."""


def _walked(sample: Any, stamps: FileStamps) -> str:
    walk = walk_over(sample, name="sample", root=stamps.root, files=stamps.files, called=False, patches=Patches())
    if len(walk.facts) > _MOST_FACTS or walk.unknown:
        raise _TooMuchError  # the identity of the source as a whole names the unknown places
    return WalkResult.of(walk).identity().digest


def _look_at_source(source: Any, options: Mapping[str, Any], watch: Watch) -> Walk:
    return walk_over(source, name="source", called=False, watch=watch, **options)


def as_a_whole(recorded: RecordedIdentity, count: int, version: str | None) -> SampleIdentities:
    """The identities of the samples of a source that counts as a whole: the same for each."""
    found, identity = recorded.found, recorded.identity
    lasting = {
        place: text for place, text in found.facts.items() if not place.endswith(_STATE) and ".<state>" not in place
    }
    name = replace(found, facts=lasting).identity(version).digest[:16]
    each = np.full(count, int(identity.digest[:16], 16), np.uint64)
    return SampleIdentities(name, each, identity, recorded=recorded)
