"""Identities of a source of samples: one for the source, and one for each of its samples.

Each sample of a list or an array has its own identity: a hash of its value and of the files that it names. The
identity does not depend on the position, so lists that share samples share their identities. The samples of any other
source are identified by the source as a whole and their position. The name of a source does not depend on the content
of the files that it names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import PosixPath
from typing import Any, Protocol

import numpy as np
import xxhash

from warmstore.identity.call_effects import effects_of
from warmstore.identity.identity import Identity, WalkResult, walk_over, walking
from warmstore.identity.kinds.arrays import is_mapped
from warmstore.identity.kinds.dispatch import is_simple
from warmstore.identity.named_files import Files, FileStamps, TooManyFiles
from warmstore.identity.object_state import full_name
from warmstore.identity.object_walk import ObjectWalk
from warmstore.identity.patches import Patches
from warmstore.identity.plain_data import ATOMS, NotPlain, PlainTexts, digest_of, layout_text
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.samples.sample_hashes import (
    RowHashes,
    TextHashes,
    UInt64,
    hashes_of_states,
    hashes_of_texts,
    mixed,
    state_of,
)
from warmstore.identity.samples.selected_samples import SelectedSamples
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch

Classes = tuple[tuple[type, int], ...]
"""The classes of samples, with their numbers."""

EachOf = Callable[[Identity], UInt64]
"""Makes the hashes of samples, [n, 2], from the identity of their source."""

_AT_ONCE = 1 << 12  # samples whose texts are held at once
_MOST_FACTS = 500
_STATE = (".<file>", ".<files>", ".<state>", ".filename")
_TEXTS: frozenset[type] = frozenset((str, bytes, PosixPath))


class Look(Protocol):
    """Hashes some samples of a source as they are now."""

    def __call__(self, samples: Any) -> tuple[UInt64, UInt64]:
        """Hashes of a sequence or array of values and of the files that they name, uint64 [n, 2] each; see `mixed`."""


@dataclass(frozen=True)
class SampleIdentities:
    """The identity of a source and of its samples.

    name: 16 hex digits. each: uint64 [samples, 2]. identity: The identity of the classes of samples, or of the source
    as a whole. look: Hashes samples again; None if the source counts as a whole. may_be_written: Whether a step can
    write into a sample. recorded: The recorded identity of the source as a whole, or of the classes of samples.
    each_of: Makes `each` from the identity of a source that counts as a whole.
    """

    name: str
    each: UInt64 = field(repr=False)
    identity: Identity = field(repr=False)
    look: Look | None = field(default=None, repr=False)
    may_be_written: bool = False
    recorded: RecordedIdentity | None = field(default=None, repr=False)
    each_of: EachOf | None = field(default=None, repr=False)

    def select(self, indices: np.ndarray[Any, np.dtype[np.int64]], each: UInt64) -> SampleIdentities:
        """The identities of some of the samples.

        Args:
            indices: int64 [m]. each: their hashes, [m, 2].
        """
        name = xxhash.xxh3_128(f"{self.name} {len(self.each)} selected".encode())
        name.update(np.ascontiguousarray(indices).data)
        each_of = None if self.each_of is None else partial(_selected, self.each_of, indices)
        return replace(self, name=name.hexdigest()[:16], each=each, each_of=each_of)

    def as_now(self, version: str | None) -> SampleIdentities:
        """The identities of a source that counts as a whole, after its `recorded` identity was refreshed."""
        assert self.recorded is not None
        assert self.each_of is not None
        return as_a_whole(self.recorded, self.each_of, version)


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
        patches: What the program has put into installed modules. None: they do not count.
        known: An earlier result for the same source.
    """
    patches = Patches() if patches is None else patches
    count = len(source)
    listed = listed_samples(source)
    stamps = FileStamps(files, None if root is None else os.path.abspath(root), tuple(folders))  # noqa: PTH100
    if listed is not None and version is None and not ignore:
        try:
            if isinstance(listed, np.ndarray):
                return _of_rows(listed, stamps)
            found = _of_listed(listed, source, stamps, patches, known)
        except TooManyFiles as error:
            walk = ObjectWalk("source")
            walk.cannot_tell(walk.start, str(error))
            unknown = WalkResult.of(walk).identity()
            return SampleIdentities(unknown.digest[:16], np.zeros((count, 2), np.uint64), unknown)
        if found is not None:
            return found
    recorded = _refreshed(known, None)
    if recorded is None:
        options = {"ignore": tuple(ignore), "root": root, "files": files, "patches": patches}
        look = partial(_look_at_source, source, options)
        recorded = RecordedIdentity(look, version, effects_of(source, ("source", tuple(ignore), root, files)))
    parts = partial(
        identify_samples, version=version, ignore=ignore, root=root, files=files, folders=folders, patches=patches
    )
    return as_a_whole(recorded, _composed(source, parts) or partial(_by_position, count), version)


def _of_listed(
    samples: Sequence[Any], source: Any, stamps: FileStamps, patches: Patches, known: SampleIdentities | None
) -> SampleIdentities | None:
    """The identities of the samples of a list; None if the source is to count as a whole.

    Raises:
        TooManyFiles: A sample is a folder with too many files.
    """
    kinds = set(map(type, samples))
    (kind,) = kinds if len(kinds) == 1 else (object,)
    if kind in _TEXTS:
        return _of_texts(samples, source, TextHashes(stamps, kind, _is_text_of_numpy(source)))
    return _one_by_one(samples, source, stamps, patches, known)


def _refreshed(known: SampleIdentities | None, classes: Classes | None) -> RecordedIdentity | None:
    """The recorded identity of an earlier result, refreshed; None if there is none for these classes.

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
    return listed_samples(source) is None and not isinstance(source, np.ndarray)


def listed_samples(source: Any) -> Sequence[Any] | np.ndarray[Any, Any] | None:
    """The samples of a list, tuple, range or array in memory; None for a source that counts as a whole."""
    if type(source) is SelectedSamples:
        listed = listed_samples(source.of)
        return None if listed is None or isinstance(listed, np.ndarray) else source.selected(listed)
    if type(source) is np.ndarray and source.ndim and not is_mapped(source):
        found = _rows(source)
        return None if isinstance(found, np.ndarray) and found.dtype.hasobject else found
    if type(source) is range:
        return list(source)
    return source if type(source) in (list, tuple) else None


def samples_at(source: Any, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Sequence[Any] | np.ndarray[Any, Any]:
    """Some samples, in the form in which `listed_samples` gives them.

    Raises:
        IndexError: There are fewer samples.
    """
    if type(source) is SelectedSamples:
        return samples_at(source.of, source.indices[indices])
    if type(source) is np.ndarray:
        return _rows(source[indices])
    return [source[at] for at in indices.tolist()]


def _rows(array: np.ndarray[Any, Any]) -> Sequence[Any] | np.ndarray[Any, Any]:
    """The rows of an array; its elements, if they are objects or text."""
    return array.tolist() if array.ndim == 1 and array.dtype.kind in "OUST" else array


def _is_text_of_numpy(source: Any) -> bool:
    """Whether samples are `np.str_` or `np.bytes_`, which `listed_samples` gives as str or bytes."""
    if type(source) is SelectedSamples:
        return _is_text_of_numpy(source.of)
    return type(source) is np.ndarray and source.dtype.kind in "US"


def _of_rows(array: np.ndarray[Any, Any], stamps: FileStamps) -> SampleIdentities:
    """The identities of an array's rows: hashes of their content and layout, and of the files that their text names.

    Raises:
        TooManyFiles: A row names a folder with too many files.
    """
    look = RowHashes(layout_text(array[:1]), stamps)
    hashes = look.values(array)
    name = xxhash.xxh3_128(f"{look.layout} of {len(array)} rows".encode())
    name.update(np.ascontiguousarray(hashes).data)
    each = mixed(hashes, look.stamps(array))
    return SampleIdentities(name.hexdigest()[:16], each, _nothing(), look, may_be_written=True)


def _composed(source: Any, identify: Callable[..., SampleIdentities]) -> EachOf | None:
    """How the samples of a source are those of other sources: of subsets, concatenations and stores; None for others.

    So a sample has the same identity in a data set, in its subsets, and where the data set is a part of a larger one;
    and a record has one whatever is appended to its store.
    """
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    if kind == "torch.utils.data.dataset.Subset":
        return lambda _: identify(source.dataset).each[np.asarray(source.indices, np.int64)]
    if kind == "torch.utils.data.dataset.ConcatDataset":
        return lambda _: np.concatenate([identify(part).each for part in source.datasets])
    if type(source) is SelectedSamples:
        return partial(_selected, lambda _: identify(source.of).each, source.indices)
    if hasattr(type(source), "__sample_hashes__"):
        return partial(_by_record, source, len(source))
    return None


def _selected(each_of: EachOf, indices: np.ndarray[Any, np.dtype[np.int64]], identity: Identity) -> UInt64:
    chosen: UInt64 = each_of(identity)[indices]
    return chosen


def _by_record(source: Any, count: int, identity: Identity) -> UInt64:
    """Hashes of the records of a store, and of what else decides them: a field's name, a format. 0 without a record."""
    hashes = source.__sample_hashes__()[:count]
    facts = [f"{len(place)} {place} {text}" for place, text in identity.facts.items() if not _is_state(place)]
    hashes = mixed(hashes, np.broadcast_to(hashes_of_texts(["\n".join(facts)]), hashes.shape))
    return np.concatenate((hashes, np.zeros((count - len(hashes), 2), np.uint64)))


def _by_position(count: int, identity: Identity) -> UInt64:
    """Hashes of an identity and positions."""
    digest = np.array([[int(identity.digest[:16], 16), int(identity.digest[16:], 16)]], np.uint64)
    return mixed(np.broadcast_to(digest, (count, 2)), np.arange(1, count + 1, dtype=np.uint64)[:, None])


def _nothing() -> Identity:
    return WalkResult.of(ObjectWalk("source")).identity()


def _of_texts(samples: Sequence[Any], source: Any, look: TextHashes) -> SampleIdentities:
    """The identities of strings, paths or bytes, all hashed in one pass, since there may be millions.

    Raises:
        TooManyFiles: A sample is a folder with too many files.
    """
    texts = look.texts(samples)
    hashes = look.values(samples, texts)
    stamps = look.stamps(texts, hashes)
    name = xxhash.xxh3_128(f"{type(source).__name__} of {len(texts)} texts".encode())
    name.update(hashes.data)
    if look.files.root is None and stamps.any():
        named = np.flatnonzero(stamps.any(axis=1)).tolist()
        if not all(texts[at].startswith("/") for at in named):
            name.update(os.getcwd().encode())  # noqa: PTH109  relative paths are others elsewhere
    return SampleIdentities(name.hexdigest()[:16], mixed(hashes, stamps), _nothing(), look)


def _one_by_one(
    samples: Sequence[Any],
    source: Any,
    stamps: FileStamps,
    patches: Patches,
    known: SampleIdentities | None,
) -> SampleIdentities | None:
    """The identities of plain data and simple objects; None if the source is to count as a whole."""
    plain = _plain(stamps)
    named_by = xxhash.xxh3_128(f"{type(source).__name__} of {len(samples)}".encode())
    blocks = []
    try:
        for first in range(0, len(samples), _AT_ONCE):  # the texts of all samples take several times their memory
            texts, states = _texts(samples[first : first + _AT_ONCE], plain, stamps)
            for text in texts:
                named_by.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
            blocks.append((hashes_of_texts(texts), hashes_of_states(states)))
            if plain.cycles:
                break
    except _TooMuchError:
        return None
    if plain.cycles:  # samples refer to each other: a change of one may change all
        look_at_all = partial(_look_at_all, samples, stamps, patches)
        whole = _refreshed(known, None) or RecordedIdentity(look_at_all)
        return as_a_whole(whole, partial(_by_position, len(samples)), None)
    classes = tuple(sorted(plain.classes.items(), key=lambda found: full_name(found[0])))
    recorded: RecordedIdentity | None = None
    if classes:
        recorded = _refreshed(known, classes) or RecordedIdentity(partial(_look_at_classes, classes, patches))
    look = _Values(stamps, classes, recorded)
    nothing = np.empty((0, 2), np.uint64)
    hashes = np.concatenate([nothing, *(mixed(look.of_class(values), files) for values, files in blocks)])
    identity = _nothing() if recorded is None else recorded.identity
    may_be_written = not all(map(_is_immutable, samples))
    return SampleIdentities(named_by.hexdigest()[:16], hashes, identity, look, may_be_written, recorded)


def _look_at_classes(classes: Classes, patches: Patches, watch: Watch) -> Walk:
    with walking("source", watch, patches=patches) as walk:
        for cls, _ in classes:
            walk.fact(walk.start + f".<class {full_name(cls)}>", walk.cls(cls))
    return walk


def _look_at_all(
    samples: Sequence[Any],
    stamps: FileStamps,
    patches: Patches,
    watch: Watch,
) -> Walk:
    plain = _plain(stamps)
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


def _plain(stamps: FileStamps) -> PlainTexts:
    return PlainTexts(is_simple, by_content=True, moved=stamps.moved)


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
        plain = _plain(self.stamps)
        plain.classes.update(self.classes)
        nothing = np.zeros((len(samples), 2), np.uint64)
        try:
            texts, states = _texts(samples, plain, self.stamps)
        except (_TooMuchError, TooManyFiles):
            return nothing, nothing  # the hashes of changed samples
        if plain.cycles or len(plain.classes) > len(self.classes):
            return nothing, nothing
        return self.of_class(hashes_of_texts(texts)), hashes_of_states(states)

    def of_class(self, hashes: UInt64) -> UInt64:
        """Hashes of samples, from those of their texts and the identity of their classes."""
        return hashes if self.recorded is None else mixed(hashes, hashes_of_texts([self.recorded.identity.digest]))


def _texts(samples: Sequence[Any], plain: PlainTexts, stamps: FileStamps) -> tuple[list[str], list[str]]:
    """Texts of samples, and texts of the files that each names.

    Raises:
        _TooMuchError: A sample has too many facts, or unknown ones.
    """
    texts: list[str] = []
    states: list[str] = []
    strings, stamp = plain.strings, stamps.once()
    for sample in samples:
        try:
            text = plain.text(sample)
        except NotPlain:
            strings.clear()
            text = _walked(sample, stamps)
        texts.append(text)
        states.append(state_of(strings, stamp) if strings else "")
        strings.clear()
    if plain.has_decimals:
        plain.classes.setdefault(Decimal, len(plain.classes))  # its identity has the decimal context
    return texts, states


class _TooMuchError(Exception):
    """A sample has too many facts or unknown ones, so that the source is to count as a whole."""


def _walked(sample: Any, stamps: FileStamps) -> str:
    walk = walk_over(
        sample,
        name="sample",
        root=stamps.root,
        files=stamps.files,
        called=False,
        patches=Patches(),
        read_elsewhere=True,
    )
    if len(walk.facts) > _MOST_FACTS:
        raise _TooMuchError
    if walk.unknown:
        raise _TooMuchError  # the identity of the source as a whole names the places
    return WalkResult.of(walk).identity().digest


def _look_at_source(source: Any, options: Mapping[str, Any], watch: Watch) -> Walk:
    return walk_over(source, name="source", called=False, watch=watch, read_elsewhere=True, **options)


def as_a_whole(recorded: RecordedIdentity, each_of: EachOf, version: str | None) -> SampleIdentities:
    """The identities of the samples of a source that counts as a whole."""
    found, identity = recorded.found, recorded.identity
    lasting = {place: text for place, text in found.facts.items() if not _is_state(place)}
    name = replace(found, facts=lasting).identity(version).digest[:16]
    return SampleIdentities(name, each_of(identity), identity, recorded=recorded, each_of=each_of)


def _is_state(place: str) -> bool:
    return place.endswith(_STATE) or ".<state>" in place
