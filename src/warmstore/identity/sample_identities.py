"""Identities of the samples of a source: one for the source itself, and one for each sample that it holds.

A list is looked at sample by sample, so that growth and edits of files change what they concern and nothing else; other
sources count as a whole. The name of a source does not change with the content of the files that it names.
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

from warmstore.errors import NoFingerprint
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
"""Of samples, with their numbers."""

_FIRST = 16
_AT_ONCE = 1 << 12  # files
_ONE = np.uint64(1)
_MOST_FACTS = 500
_STATE = (".<file>", ".<files>", ".<state>", ".filename")
_PATHS = frozenset((str, PosixPath))


class Look(Protocol):
    """Looks at some samples of a source again, as at all of them first."""

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        """Hashes of their values and of the files that these name, uint64 [n] each; `mixed` gives those of both."""


@dataclass(frozen=True)
class SampleIdentities:
    """The identity of a source and of its samples.

    name: 16 hex digits. each: uint64 [samples]. identity: of what all samples have in common: their classes, or the
    source as a whole. look: gives the hashes of some samples as they are now; None of a source that counts as a whole.
    may_be_written: whether a step can write into a sample. recorded: what is known of a source that counts as a whole,
    or of the classes of samples.
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
        source: has a length and items.
        version, ignore, root, files: as in `identify`.
        folders: where files lie that samples name relative to none in particular.
        patches: what the program has put into installed modules; None: that does not count.
        known: what was found when the source was looked at before.
    """
    patches = Patches() if patches is None else patches
    count = len(source)
    listed = _listed(source)
    place = FileStamps(files, None if root is None else os.path.abspath(root), tuple(folders))  # noqa: PTH100
    if listed is not None and version is None and not ignore:
        kinds = set(map(type, listed))
        if kinds <= _PATHS and len(kinds) == 1:
            return _of_paths(listed if kinds == {str} else list(map(str, listed)), source, place)
        found = _one_by_one(listed, source, place, root, files, patches, known)
        if found is not None:
            return found
    recorded = _refreshed(known, None)
    if recorded is None:
        options = {"ignore": tuple(ignore), "root": root, "files": files, "patches": patches}
        look = partial(_look_at_source, source, options)
        recorded = RecordedIdentity(look, version, effects_of(source, ("source", tuple(ignore), root, files)))
    return as_a_whole(recorded, count, version)


def _refreshed(known: SampleIdentities | None, classes: Classes | None) -> RecordedIdentity | None:
    """What was known of the source, or of these classes of samples, as it is now; None where nothing was.

    Args:
        classes: None stands for the source as a whole.
    """
    if known is None or known.recorded is None:
        return None
    before = known.look.classes if isinstance(known.look, _Values) else None
    if before != classes:
        return None
    known.recorded.refresh(again=True)
    return known.recorded


def counts_as_a_whole(source: Any) -> bool:
    """Whether a source holds no samples one by one, so that reading some may change what it is."""
    return _listed(source) is None and not isinstance(source, np.ndarray)


def _listed(source: Any) -> Sequence[Any] | None:
    """The samples of a source that holds them one by one; None of others."""
    if isinstance(source, np.ndarray) and source.ndim == 1 and source.dtype.kind in "OU":
        return source.tolist()  # type: ignore[no-any-return]
    return source if type(source) in (list, tuple) else None


def _nothing() -> Identity:
    return WalkResult.of(ObjectWalk("source")).identity()


def _of_paths(texts: Sequence[str], source: Any, places: FileStamps) -> SampleIdentities:
    """Texts, or paths of files: hashed in one go, since there may be millions."""
    hashes = _hashes(texts)
    name = xxhash.xxh3_128(f"{type(source).__name__} of {len(texts)} texts".encode())
    name.update(hashes.data)
    first = texts[:_FIRST]
    look = _Paths(places, any(map(places.stamp, first)) or any(map(_looks_like_a_path, first)))
    if look.are_files:
        hashes = mixed(hashes, look.stamps(texts))
        if not all(text.startswith("/") for text in first) and places.root is None:
            name.update(os.getcwd().encode())  # noqa: PTH109  relative paths are others elsewhere
    return SampleIdentities(name.hexdigest()[:16], hashes, _nothing(), look)


@dataclass(frozen=True)
class _Paths:
    """Looks at texts again, and at the files that they name, if they do."""

    places: FileStamps
    are_files: bool

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        texts = list(map(str, samples))
        return _hashes(texts), self.stamps(texts) if self.are_files else np.zeros(len(texts), np.uint64)

    def stamps(self, texts: Sequence[str]) -> UInt64:
        """Hashes of the files."""
        if self.places.files != "stat" or self.places.root is not None or self.places.folders:
            return _hashes(list(map(self.places.stamp, texts)))
        return np.concatenate([self._stamps(texts[at : at + _AT_ONCE]) for at in range(0, len(texts), _AT_ONCE)])

    def _stamps(self, texts: Sequence[str]) -> UInt64:
        """Hashes of sizes and times of regular files; of what else there is, those of texts."""
        try:
            found = list(map(os.stat, texts))
        except (OSError, ValueError):
            return _hashes(list(map(self.places.stamp, texts)))
        sizes, times, modes = (
            np.fromiter(map(attrgetter(name), found), np.int64, len(found))
            for name in ("st_size", "st_mtime_ns", "st_mode")
        )
        hashes = mixed(sizes.view(np.uint64) + _ONE, times.view(np.uint64) + _ONE)
        absolute = np.fromiter(map(str.startswith, texts, repeat("/")), np.bool_, len(texts))
        if not absolute.all():  # they are others elsewhere
            hashes[~absolute] = mixed(hashes[~absolute], _hashes([os.getcwd()]))  # noqa: PTH109
        for at in np.flatnonzero(modes & 0o170000 != stat.S_IFREG).tolist():
            hashes[at] = _hashes([self.places.stamp(texts[at])])[0]
        return hashes


def _hashes(texts: Sequence[str]) -> UInt64:
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(texts))


def _looks_like_a_path(text: str) -> bool:
    return "/" in text and may_be_path(text)


def mixed(one: UInt64, other: UInt64) -> UInt64:
    """Hashes of pairs of hashes: the finisher of SplitMix64 (Steele et al., 2014) over a sum of both.

    Args:
        other: 0 where there is nothing to mix.
    """
    if not other.any():
        return one
    with np.errstate(over="ignore"):
        found = one + other * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(30)
        found *= np.uint64(0xBF58476D1CE4E5B9)
        found ^= found >> np.uint64(27)
        found *= np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def _one_by_one(
    samples: Sequence[Any],
    source: Any,
    places: FileStamps,
    root: str | None,
    files: Files,
    patches: Patches,
    known: SampleIdentities | None,
) -> SampleIdentities | None:
    """Plain data and simple objects; None where samples are better looked at as a whole."""
    plain = _plain()
    try:
        texts, states = _texts(samples, plain, places, root, files)
    except _TooMuchError:
        return None
    if plain.cycles:  # samples that know each other: a change of one may be a change of all
        look_at_all = partial(_look_at_all, samples, places, root, files, patches)
        return as_a_whole(_refreshed(known, None) or RecordedIdentity(look_at_all), len(samples), None)
    classes, recorded = tuple(plain.classes.items()), None
    if classes:
        recorded = _refreshed(known, classes) or RecordedIdentity(partial(_look_at_classes, classes, patches))
    look = _Values(places, root, files, classes, recorded)
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


def _look_at_all(
    samples: Sequence[Any],
    places: FileStamps,
    root: str | None,
    files: Files,
    patches: Patches,
    watch: Watch,
) -> Walk:
    plain = _plain()
    with walking("source", watch, patches=patches) as walk:
        try:
            texts, states = _texts(samples, plain, places, root, files)
            for part, said in (("<samples>", texts), ("<state>", states)):
                digest = digest_of("\n".join(said))
                walk.fact(walk.start + f".{part}", f"{len(said)} {digest}")
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
    """Looks at values again, and at the files that they name. recorded: what is known of the classes of objects."""

    places: FileStamps
    root: str | None
    files: Files
    classes: Classes
    recorded: RecordedIdentity | None

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        plain = _plain()
        plain.classes.update(self.classes)
        nothing = np.zeros(len(samples), np.uint64)
        try:
            texts, states = _texts(samples, plain, self.places, self.root, self.files)
        except _TooMuchError:
            return nothing, nothing  # they are no longer what they were
        if plain.cycles or len(plain.classes) > len(self.classes):
            return nothing, nothing
        return self.hashes(texts, states)

    def hashes(self, texts: Sequence[str], states: Sequence[str]) -> tuple[UInt64, UInt64]:
        """Hashes of samples from their texts, and those of the files that they name; 0 where they name none."""
        common = "" if self.recorded is None else self.recorded.identity.digest
        stamps = _hashes(states) if any(states) else np.zeros(len(texts), np.uint64)
        return _hashes([common + text for text in texts] if common else texts), stamps


def _texts(
    samples: Sequence[Any], plain: PlainTexts, places: FileStamps, root: str | None, files: Files
) -> tuple[list[str], list[str]]:
    """Texts of samples, and of the files that each names.

    Raises:
        _TooMuchError: a sample leads far, or something of it cannot be told.
    """
    texts: list[str] = []
    states: list[str] = []
    strings, stamp = plain.strings, places.stamp
    for sample in samples:
        try:
            text = plain.text(sample)
        except NotPlain:
            strings.clear()
            text = _walked(sample, root, files)
        texts.append(text)
        states.append("".join([stamp(str(one)) for one in strings]) if strings else "")
        strings.clear()
    return texts, states


class _TooMuchError(Exception):
    """A sample leads to so much that the source is better looked at as a whole."""


def _walked(sample: Any, root: str | None, files: Files) -> str:
    walk = walk_over(sample, name="sample", root=root, files=files, called=False, patches=Patches())
    if len(walk.facts) > _MOST_FACTS:
        raise _TooMuchError
    if walk.unknown:
        raise _TooMuchError  # looked at as a whole, it is said where
    return WalkResult.of(walk).identity().digest


def _look_at_source(source: Any, options: Mapping[str, Any], watch: Watch) -> Walk:
    return walk_over(source, name="source", called=False, watch=watch, **options)


def as_a_whole(recorded: RecordedIdentity, count: int, version: str | None) -> SampleIdentities:
    """The samples of a source that counts as a whole: each changes as it does."""
    found, identity = recorded.found, recorded.identity
    lasting = {place: text for place, text in found.facts.items() if not _is_state(place)}
    name = replace(found, facts=lasting).identity(version).digest[:16]
    each = np.full(count, int(identity.digest[:16], 16), np.uint64)
    return SampleIdentities(name, each, identity, recorded=recorded)


def _is_state(place: str) -> bool:
    return place.endswith(_STATE) or ".<state>" in place


def unknown_source(samples: SampleIdentities) -> NoFingerprint:
    """The error for a source of which something cannot be told."""
    try:
        samples.identity.require()
    except NoFingerprint as error:
        return error
    return NoFingerprint("the source cannot be told from others")
