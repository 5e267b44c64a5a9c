"""Segments and bundles of segments as bytes: heads and packs of a segment log.

A segment is a line of JSON, which names the segments that it replaces, and its payload. A bundle is compressed: a line
of JSON that lists its segments, and their bytes as they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import zstandard

from warmstore.errors import Damaged, NewerFormat
from warmstore.remote.segment_names import LogName

FORMAT = 1
MOST = 256 << 20
"""The most bytes of a segment, a head or a pack."""
_MOST_UNPACKED = 1 << 30
_LONGEST_LINE = 64 << 20
_PIECE = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Segment:
    """One segment. `replaces`: hashes of the segments that no longer count. `data`: its bytes."""

    name: LogName
    replaces: tuple[str, ...]
    payload: bytes
    data: bytes

    @classmethod
    def parse(cls, name: LogName, data: bytes) -> Segment:
        """Raises Damaged for bytes of another name, or that are no segment."""
        if not name.matches(data):
            raise Damaged(f"{name.text[:20]} does not match its name")
        try:
            line, payload = data.split(b"\n", 1)
            replaces = tuple(_hash(text) for text in json.loads(line)["replaces"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"{name.text[:20]} is no segment: {error!r}") from None
        return cls(name, replaces, payload, data)


def segment_bytes(payload: bytes, replaces: Iterable[str] = ()) -> bytes:
    """The bytes of a segment."""
    return json.dumps({"replaces": sorted(replaces)}).encode() + b"\n" + payload


@dataclass(frozen=True)
class Bundle:
    """The content of a head or a pack.

    heads: names of the heads that a head replaces. packs: hashes and bytes of packs with more segments. segments: with
    the depth of the head in which each was first.
    """

    heads: frozenset[str]
    packs: tuple[tuple[str, int], ...]
    segments: tuple[tuple[Segment, int], ...]
    problems: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes, what: str) -> Bundle:
        """Segments that do not match their names are left out. Raises Damaged for bytes that are no bundle, and
        NewerFormat."""
        try:
            unpacked = _unpacked(data)
            end = unpacked.index(b"\n", 0, _LONGEST_LINE)
            header = json.loads(unpacked[:end])
            if int(header["format"]) > FORMAT:
                raise NewerFormat.of(what, header["format"], FORMAT)
            heads = frozenset(str(text) for text in header["heads"])
            packs = tuple((_hash(digest), int(size)) for digest, size in header["packs"])
            listed = [(LogName.parse(text), int(length), int(depth)) for text, length, depth in header["segments"]]
        except NewerFormat:
            raise
        except (zstandard.ZstdError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise Damaged(f"{what} is no list of segments: {error}") from None
        at, segments, problems = end + 1, [], []
        for name, length, depth in listed:
            part, at = unpacked[at : at + length], at + length
            try:
                if name is None:
                    raise Damaged(f"{what} lists a segment without a name")
                segments.append((Segment.parse(name, part), depth))
            except Damaged as error:
                problems.append(str(error))
        return cls(heads, packs, tuple(segments), tuple(problems))


def bundle_bytes(
    segments: Sequence[tuple[Segment, int]], heads: Iterable[str] = (), packs: Iterable[tuple[str, int]] = ()
) -> bytes:
    """The bytes of a bundle."""
    header = {
        "format": FORMAT,
        "heads": sorted(heads),
        "packs": [list(pack) for pack in packs],
        "segments": [[segment.name.text, len(segment.data), depth] for segment, depth in segments],
    }
    parts = [json.dumps(header).encode(), b"\n", *(segment.data for segment, _ in segments)]
    return zstandard.ZstdCompressor(level=3).compress(b"".join(parts))


def _unpacked(data: bytes) -> bytes:
    """The content of a bundle. In pieces: one read of the most there may be would allocate as much.

    Raises:
        ValueError: there is more.
    """
    pieces, size = [], 0
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        while piece := reader.read(_PIECE):
            size += len(piece)
            if size > _MOST_UNPACKED:
                raise ValueError(f"it unpacks to more than {_MOST_UNPACKED:,} bytes")
            pieces.append(piece)
    return b"".join(pieces)


def _hash(text: object) -> str:
    if not isinstance(text, str) or not _HASH.fullmatch(text):
        raise ValueError(f"{text!r} is no hash")
    return text
