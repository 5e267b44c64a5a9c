"""Hashes of samples: of texts, of bytes, of rows of arrays, and of the files that they name.

The hash of a sample does not depend on the samples beside it, nor on its position.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, contains, is_
from os import PathLike
from pathlib import PosixPath
from typing import Any

import numpy as np
import xxhash

from warmstore._native import floor, threads_for
from warmstore.identity.named_files import FEW, FileStamps, TooManyFiles, first_parts
from warmstore.identity.plain_data import LONGEST_PATH, contiguous_bytes, text_columns
from warmstore.storage.array_types import Int64
from warmstore.storage.file_times import settle_all

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
"""Hashes of samples, [n, 2]: 128 bits each. With 64, two of 100 million samples share a hash once in 4,000."""

_AT_ONCE = 1 << 12  # files
_FIRST = 16  # texts: if one of them names a file, all are looked up, which takes less time than to choose
_ONE = np.uint64(1)
_KINDS: dict[type, np.uint64] = {str: np.uint64(0x57), bytes: np.uint64(0xB17E5), PosixPath: np.uint64(0x9A78)}
"""Tell the hash of a str, bytes or path from one of the text of other values: `"1"` is no `1`."""
_OF_NUMPY = np.uint64(0x57A00000)


def hashes_of_texts(texts: Sequence[str]) -> UInt64:
    """Hashes of texts, uint64 [n, 2]. Lone surrogates are allowed."""
    try:
        return _pairs(map(xxhash.xxh3_128_digest, map(str.encode, texts)))  # one text encoded at a time stays in caches
    except UnicodeEncodeError:
        return _pairs(xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass")) for text in texts)


def hashes_of_states(states: Sequence[str]) -> UInt64:
    """Hashes of the texts of files, and 0 for no files, whatever samples are beside."""
    if not any(states):
        return np.zeros((len(states), 2), np.uint64)
    hashes = hashes_of_texts(states)
    hashes[[not state for state in states]] = 0
    return hashes


def _pairs(digests: Iterable[bytes]) -> UInt64:
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def mixed(one: UInt64, other: UInt64) -> UInt64:
    """Hashes of pairs of hashes [n, 2]: the finisher of SplitMix64 (Steele et al., 2014) over a sum of both.

    Args:
        other: both halves are 0 where there is no second hash.
    """
    if not other.any():
        return one
    there = other.any(axis=1)
    with np.errstate(over="ignore"):
        found = one + other * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(30)
        found *= np.uint64(0xBF58476D1CE4E5B9)
        found ^= found >> np.uint64(27)
        found *= np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    if not there.all():
        found[~there] = one[~there]
    return found


def state_of(strings: Iterable[str | bytes | PathLike[str]], stamp: Callable[[str], str]) -> str:
    """The text of the files that the strings in a sample name, by which string names which; "" if there are none."""
    stamps = [stamp(os.fsdecode(string)) for string in strings]
    return "\0".join(stamps) if any(stamps) else ""


@dataclass(frozen=True)
class RowHashes:
    """Hashes the rows of an array again, and the files that text in them names.

    layout: The text of an array of one row, without its content.
    """

    layout: str
    files: FileStamps

    def __call__(self, samples: np.ndarray[Any, Any]) -> tuple[UInt64, UInt64]:
        try:
            return self.values(samples), self.stamps(samples)
        except TooManyFiles:
            return _unlike_all(samples)

    def values(self, samples: np.ndarray[Any, Any]) -> UInt64:
        """Hashes of the rows."""
        rows = np.frombuffer(contiguous_bytes(samples), np.uint8)
        hashes = np.empty((len(samples), 2), np.uint64)
        for half, seed in enumerate(hashes_of_texts([self.layout])[0]):
            sums = np.zeros(len(samples), np.uint64)
            if rows.size:
                floor.checksums(rows, len(rows) // len(samples), np.array([seed]), sums, threads_for(rows.nbytes))
            hashes[:, half] = sums
        return mixed(hashes, hashes[:, ::-1])

    def stamps(self, samples: np.ndarray[Any, Any]) -> UInt64:
        """Hashes of the files."""
        columns, stamp = text_columns(samples), self.files.once()
        if not columns or not len(samples):
            return np.zeros((len(samples), 2), np.uint64)
        texts = np.concatenate([column.reshape(len(samples), -1).astype(object) for column in columns], axis=1)
        return hashes_of_states([state_of(row, stamp) for row in texts.tolist()])


def _unlike_all(samples: Sequence[Any] | np.ndarray[Any, Any]) -> tuple[UInt64, UInt64]:
    """The hashes of changed samples, which equal no others."""
    nothing = np.zeros((len(samples), 2), np.uint64)
    return nothing, nothing


@dataclass(frozen=True)
class TextHashes:
    """Hashes strings, bytes or paths again, and the files that they name.

    kind: The type of all samples. is_of_numpy: They are the elements of an array of NumPy.
    """

    files: FileStamps
    kind: type
    is_of_numpy: bool = False

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        if set(map(type, samples)) - {self.kind}:
            return _unlike_all(samples)
        texts = self.texts(samples)
        hashes = self.values(samples, texts)
        try:
            return hashes, self.stamps(texts, hashes)
        except TooManyFiles:
            return _unlike_all(samples)

    def texts(self, samples: Sequence[Any]) -> Sequence[str]:
        """The samples as strings, those that are too long for paths as ""."""
        if self.kind is str:
            return samples
        if self.kind is PosixPath:
            return list(map(str, samples))
        how = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
        return [sample.decode(*how) if len(sample) < LONGEST_PATH else "" for sample in samples]

    def values(self, samples: Sequence[Any], texts: Sequence[str]) -> UInt64:
        """Hashes of the samples. Paths below the root count relative to it."""
        moved = self.files.moved
        if self.kind is bytes:
            if moved is not None:
                samples = [
                    sample if (path := moved(text)) is None else os.fsencode(path)
                    for sample, text in zip(samples, texts, strict=True)
                ]
            hashes = _pairs(map(xxhash.xxh3_128_digest, samples))
        else:
            hashes = hashes_of_texts(texts if moved is None else [moved(text) or text for text in texts])
        hashes ^= _KINDS[self.kind]
        if self.is_of_numpy:
            hashes ^= _OF_NUMPY
        return hashes

    def stamps(self, texts: Sequence[str], hashes: UInt64) -> UInt64:
        """Hashes of the files."""
        may_be = self._may_be_files(texts, hashes)
        if may_be is None:
            return self._stamps_of(texts)
        stamps = np.zeros((len(texts), 2), np.uint64)
        if len(may_be):
            stamps[may_be] = self._stamps_of([texts[at] for at in may_be.tolist()])
        return stamps

    def _may_be_files(self, texts: Sequence[str], hashes: UInt64) -> Int64 | None:
        """The indices of the texts whose first parts are there, among a million texts that may name none.

        None: All texts may name files.
        """
        if len(texts) <= FEW or self.kind is PosixPath or self.files.root is not None:
            return None
        if any(map(self.files.stamp, texts[:_FIRST])):
            return None
        firsts = first_parts((".", *self.files.folders))
        if firsts is None:
            return None
        # Looking up a text in a set takes several times as long as a bit of its hash in a table.
        table = np.zeros(1 << max(16, (16 * len(firsts)).bit_length()), np.bool_)
        last, names = np.uint64(len(table) - 1), list(firsts)
        table[self.values([*map(os.fsencode, names)], names)[:, 0] & last] = True
        may_be = table[hashes[:, 0] & last]
        have_more = np.frombuffer(bytes(map(contains, texts, repeat("/"))), np.bool_)
        for at in np.flatnonzero(have_more).tolist():
            may_be[at] = texts[at].partition("/")[0] in firsts
        return np.flatnonzero(may_be)

    def _stamps_of(self, texts: Sequence[str]) -> UInt64:
        if self.files.files != "stat" or self.files.root is not None or self.files.folders:
            return hashes_of_states([self.files.stamp(text, is_sample=True) for text in texts])
        return np.concatenate([self._stamps(texts[at : at + _AT_ONCE]) for at in range(0, len(texts), _AT_ONCE)])

    def _stamps(self, texts: Sequence[str]) -> UInt64:
        """Hashes of the sizes and times of regular files, and of the texts of everything else."""
        found: list[os.stat_result | _NoFile]
        try:
            found = list(map(os.stat, texts))
        except (OSError, ValueError):
            found = list(map(_stat, texts))
            if all(map(is_, found, repeat(_NO_FILE))):
                return np.zeros((len(texts), 2), np.uint64)
        sizes, times, modes = (
            np.fromiter(map(attrgetter(name), found), np.int64, len(found))
            for name in ("st_size", "st_mtime_ns", "st_mode")
        )
        settle_all(times)
        pairs = np.stack([sizes, times], axis=1).view(np.uint64) + _ONE
        hashes = mixed(pairs, pairs[:, ::-1])
        absolute = np.fromiter(map(str.startswith, texts, repeat("/")), np.bool_, len(texts))
        if not absolute.all():  # relative paths depend on the working directory
            hashes[~absolute] = mixed(hashes[~absolute], hashes_of_texts([os.getcwd()]))  # noqa: PTH109
        hashes[modes == 0] = 0
        others = np.flatnonzero((modes & 0o170000 != stat.S_IFREG) & (modes != 0))
        hashes[others] = hashes_of_states([self.files.stamp(texts[at], is_sample=True) for at in others.tolist()])
        return hashes


@dataclass(frozen=True)
class _NoFile:
    st_mode: int = 0
    st_size = st_mtime_ns = 0


_NO_FILE, _BELOW_HOME = _NoFile(), _NoFile(1)
"""Where nothing has the name itself. A name such as "~/a" may have a file below the home folder."""


def _stat(text: str) -> os.stat_result | _NoFile:
    try:
        return os.stat(text)  # noqa: PTH116  there may be millions
    except (OSError, ValueError):
        return _BELOW_HOME if text.startswith("~/") else _NO_FILE
