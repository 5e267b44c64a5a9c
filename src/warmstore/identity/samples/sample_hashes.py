"""Hashes of samples: of texts, of rows of arrays, of bytes, and of the files that texts name.

The hash of a sample does not depend on the samples beside it, nor on its position.
"""

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from pathlib import PosixPath
from typing import Any

import numpy as np
import xxhash

from warmstore._native import floor, threads_for
from warmstore.identity.named_files import FileStamps, TooManyFiles
from warmstore.storage.file_times import settle_all

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
"""Hashes of samples, [n, 2]: 128 bits each. With 64, two of 100 million samples share a hash once in 4,000."""

_AT_ONCE = 1 << 12  # files
_ONE = np.uint64(1)
_BYTES = np.uint64(0xB17E5)  # tells bytes from a str of the same content
_KINDS: dict[type, np.uint64] = {str: np.uint64(0), bytes: np.uint64(0xB17E0), PosixPath: np.uint64(0x9A78)}  # of paths


def hashes_of_texts(texts: Sequence[str]) -> UInt64:
    """Hashes of texts, uint64 [n, 2]. Lone surrogates are allowed."""
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return _pairs(map(xxhash.xxh3_128_digest, encoded))


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
    there = other.any(axis=1)
    if not there.any():
        return one
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


def hashes_of_bytes(samples: Sequence[bytes]) -> tuple[UInt64, UInt64]:
    """Hashes of bytes, and of no files: a `Look`."""
    hashes = _pairs(map(xxhash.xxh3_128_digest, samples)) ^ _BYTES
    return hashes, np.zeros_like(hashes)


@dataclass(frozen=True)
class RowHashes:
    """Hashes the rows of an array again. layout: The text of an array of one row, without its content."""

    layout: str

    def __call__(self, samples: Sequence[Any] | np.ndarray[Any, Any]) -> tuple[UInt64, UInt64]:
        rows = np.ascontiguousarray(samples).reshape(-1).view(np.uint8)
        hashes = np.empty((len(samples), 2), np.uint64)
        for half, seed in enumerate(hashes_of_texts([self.layout])[0]):
            sums = np.zeros(len(samples), np.uint64)
            if rows.size:
                floor.checksums(rows, len(rows) // len(samples), np.array([seed]), sums, threads_for(rows.nbytes))
            hashes[:, half] = sums
        return mixed(hashes, hashes[:, ::-1]), np.zeros_like(hashes)


@dataclass(frozen=True)
class PathHashes:
    """Hashes strings, bytes or paths again, and the files that they name, if any.

    kind: The type of all samples.
    """

    files: FileStamps
    are_files: bool
    kind: type

    def __call__(self, samples: Sequence[Any]) -> tuple[UInt64, UInt64]:
        nothing = np.zeros((len(samples), 2), np.uint64)
        if set(map(type, samples)) - {self.kind}:
            return nothing, nothing  # the hashes of changed samples
        texts = self.texts(samples)
        try:
            return self.names(texts), self.stamps(texts) if self.are_files else nothing
        except TooManyFiles:
            return nothing, nothing

    def texts(self, samples: Sequence[Any]) -> Sequence[str]:
        """The samples as strings."""
        return samples if self.kind is str else list(map(os.fsdecode, samples))

    def names(self, texts: Sequence[str]) -> UInt64:
        """Hashes of the strings. Paths below the root count relative to it."""
        moved = self.files.moved
        hashes = hashes_of_texts(texts if moved is None else [moved(text) or text for text in texts])
        hashes ^= _KINDS[self.kind]
        return hashes

    def stamps(self, texts: Sequence[str]) -> UInt64:
        """Hashes of the files."""
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
        others = np.flatnonzero(modes & 0o170000 != stat.S_IFREG)
        hashes[others] = hashes_of_states([self.files.stamp(texts[at], is_sample=True) for at in others.tolist()])
        return hashes


@dataclass(frozen=True)
class _NoFile:
    st_size = st_mtime_ns = st_mode = 0


def _stat(text: str) -> os.stat_result | _NoFile:
    try:
        return os.stat(text)  # noqa: PTH116  there may be millions
    except (OSError, ValueError):
        return _NoFile()
