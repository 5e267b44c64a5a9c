"""Parts: what each host has pushed of one keyed store that many hosts fill, by the segments of its log at the remote.

A segment names chunks that its writer has pushed, each with its sidecar, and chunks that are gone. It names the
description of the store, fields and metadata, by its hash: most hosts have the same.

    heads/s-HASH, heads/hDEPTH-HASH, packs/HASH    the segment log
    about/HASH                                     a description
    chunks/NAME, sidecars/HASH                     a chunk and its sidecar
"""

from __future__ import annotations

import errno
import json
import logging
import platform
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from warmstore.errors import BadArtifact, Damaged, NewerFormat, NotTrusted, StoreExists
from warmstore.records.format.fields import fields_from_json, fields_to_json
from warmstore.records.format.manifest import FORMAT as STORE_FORMAT
from warmstore.records.format.manifest import Manifest, is_generation
from warmstore.remote.mirror import Mirror
from warmstore.remote.objects import Objects
from warmstore.remote.segment_bundles import Segment
from warmstore.remote.segment_log import LogState, SegmentLog
from warmstore.remote.segment_names import Checksums, Signatures, Vouching, hash_of
from warmstore.remote.signing import Keyring
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_snapshot import HEADS, read_heads

_log = logging.getLogger("warmstore")

FORMAT = 3
"""The format of segments. Formats 1 and 2 are numbered heads, which record stores still have."""
FOLDER = "heads"
_PURPOSE = "shared cache"
_MOST_ABOUT = 64 << 20
_MOST_CHUNKS = 1 << 17  # the size of the block table grows with the largest chunk number, here up to 4 GiB
_STORE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class PartChunk:
    """A chunk of a part. log: the hash of its log entries. originals: the chunks that it was merged of, or None."""

    chunk: RemoteChunk
    log: str
    originals: frozenset[int] | None = None


@dataclass(frozen=True)
class Part:
    """What one host has pushed.

    host: its name. manifest: of its store. chunks: by number. gone: numbers of chunks that it no longer has. segments:
    hashes of the segments that say so. abouts: hashes of its description. signed: names of the chunks that signed
    segments name.
    """

    host: str
    manifest: Manifest
    chunks: Mapping[int, PartChunk]
    gone: frozenset[int]
    segments: frozenset[str]
    abouts: frozenset[str]
    signed: frozenset[str]

    @property
    def name(self) -> str:
        """The name of the part, for messages."""
        return f"the part {self.manifest.id[:8]} of {self.host}"


@dataclass(frozen=True)
class PushedParts:
    """All parts at a remote, and the state of the log that they were read from."""

    parts: list[Part]
    state: LogState
    problems: list[str]

    @property
    def filled(self) -> list[Part]:
        """The parts with chunks. A host that was retired has none, so what its outputs were does not count."""
        return [part for part in self.parts if part.chunks]

    def of(self, store: str) -> Part | None:
        """The part of a store's id."""
        return next((part for part in self.parts if part.manifest.id == store), None)


class PartLog:
    """The log of one keyed store at a remote.

    Args:
        mirror: the folder for what was fetched of it; None keeps it in memory.
        sign: sign what is pushed, and use nothing that is not signed by one of this user's keys.
        signed_only: without `sign`: read what is signed by any key, as hosts with this key do.

    Raises:
        NotTrusted: `sign`, and there is no key.
    """

    def __init__(self, mirror: Path | None, *, sign: bool = False, signed_only: bool = False) -> None:
        vouching: Vouching = (
            Signatures(Keyring.from_environment(), _PURPOSE) if sign else Checksums(signed_only=signed_only)
        )
        self.sign = sign
        self.log = SegmentLog(FOLDER, vouching, Mirror(mirror))
        self._abouts = Mirror(None if mirror is None else mirror.with_name(f"{mirror.name}.about"))
        self._reported: set[str] = set()

    def read(self, objects: Objects) -> PushedParts:
        """All parts: one listing, and what is new. Parts that cannot be read are left out with a line in the log.

        Raises:
            StoreExists: the remote has a record store.
            RemoteUnavailable, RemoteRefused: the remote cannot be read.
        """
        state = objects.run(self.log.read(objects))
        problems = [*state.problems]
        if any(HEADS.parse(name) is not None for name in state.others):
            problems += _older(objects)
        contents: list[tuple[Segment, _Content]] = []
        for segment in state.segments:
            try:
                contents.append((segment, _Content.parse(segment, signed=self.sign)))
            except (Damaged, NewerFormat) as error:
                problems.append(str(error))
        newest: dict[str, int] = {}
        for _, content in contents:
            newest[content.store] = max(newest.get(content.store, 0), content.generation)
        by_store: dict[str, list[tuple[Segment, _Content]]] = {}
        for segment, content in contents:
            if content.generation == newest[content.store]:
                by_store.setdefault(content.store, []).append((segment, content))
        hashes = {content.about for listed in by_store.values() for _, content in listed}
        found = objects.run(objects.each(lambda name: self._about(objects, name), hashes)) if hashes else []
        abouts = dict(zip(hashes, found, strict=True))
        parts = []
        for listed in by_store.values():
            try:
                parts.append(_part(listed, abouts))
            except Damaged as error:
                problems.append(str(error))
        for problem in problems:
            if problem not in self._reported:
                self._reported.add(problem)
                _log.warning("%s: %s; it is left out", objects.location.url, problem)
        return PushedParts(parts, state, problems)

    def append(
        self,
        objects: Objects,
        known: PushedParts,
        manifest: Manifest,
        chunks: Mapping[int, PartChunk],
        gone: Iterable[int],
        replaces: Collection[str],
        *,
        anew: bool = False,
        host: str | None = None,
    ) -> None:
        """Push a segment of one store. Its chunks are at the remote already.

        Args:
            replaces: hashes of segments that no longer count.
            anew: send the description again, should the one at the remote be damaged.
            host: the name of the store's host; None for this one.

        Raises:
            NotTrusted, RemoteUnavailable, RemoteRefused: as `SegmentLog.append`.
        """
        about = json.dumps({"fields": fields_to_json(manifest.fields), "metadata": manifest.metadata}, sort_keys=True)
        name = hash_of(about.encode())
        if anew or all(name not in part.abouts for part in known.parts):
            objects.put(f"about/{name}", about.encode())
            self._abouts.put(name, about.encode())
        content = {
            "format": FORMAT,
            "store": manifest.id,
            "generation": manifest.generation,
            "written": manifest.format,
            "about": name,
            "host": platform.node() if host is None else host,
            "once": secrets.token_hex(8),  # the name of a replaced segment does not come back
            "chunks": {
                str(number): [
                    *(listed.chunk.name, listed.chunk.size, listed.chunk.sidecar, listed.log),
                    None if listed.originals is None else sorted(listed.originals),
                ]
                for number, listed in chunks.items()
            },
            "gone": sorted(gone),
        }
        payload = json.dumps(content, separators=(",", ":")).encode()
        objects.run(self.log.append(objects, payload, known.state, replaces=replaces))

    def check_may_forget(self, objects: Objects, chunks: Collection[str]) -> None:
        """Raise NotTrusted if signed segments name chunks that shall be forgotten, and this log does not sign.

        Args:
            chunks: those among `Part.signed`.
        """
        if chunks and not self.sign:
            raise NotTrusted(
                errno.EPERM,
                "parts of it are signed, and hosts that use signed ones alone would not see the change: pass sign=True "
                "(--sign)",
                objects.location.url,
            )

    async def _about(self, objects: Objects, name: str) -> dict[str, Any] | None:
        data = self._abouts.get(name)
        if data is None or hash_of(data) != name:
            try:
                data = await objects.get_async(f"about/{name}", most=_MOST_ABOUT)
            except BadArtifact:
                data = None
            if data is None or hash_of(data) != name:
                return None
            self._abouts.put(name, data)
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None


@dataclass(frozen=True)
class _Content:
    """The content of a segment."""

    store: str
    generation: int
    written: int
    about: str
    host: str
    chunks: dict[int, PartChunk]
    gone: frozenset[int]

    @classmethod
    def parse(cls, segment: Segment, *, signed: bool) -> _Content:
        """Raises NewerFormat and Damaged. `signed`: the names of chunks must resist an adversary."""
        what = f"the segment {segment.name.hash[:16]}"
        try:
            found = json.loads(segment.payload)
            if found["format"] > FORMAT:
                raise NewerFormat.of(what, found["format"], FORMAT)
            chunks = {
                _number(number): PartChunk(
                    RemoteChunk(name, size, sidecar),
                    str(log),
                    None if originals is None else frozenset(_number(original) for original in originals),
                )
                for number, (name, size, sidecar, log, originals) in found["chunks"].items()
            }
            content = cls(
                str(found["store"]),
                int(found["generation"]),
                int(found["written"]),
                str(found["about"]),
                str(found["host"])[:200],
                chunks,
                frozenset(_number(number) for number in found["gone"]),
            )
            is_sound = _STORE.fullmatch(content.store) and is_generation(content.generation)
            if not is_sound or any(listed.chunk.sidecar is None for listed in chunks.values()):
                raise ValueError("it names no store, or a chunk without a sidecar")
            if signed and not all(listed.chunk.is_signed for listed in chunks.values()):
                raise ValueError("it is signed, and names a chunk by a hash that is no signature's")
        except NewerFormat:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Damaged(f"{what} cannot be read: {error!r}") from None
        return content


def log_hash(entries: bytes) -> str:
    """The hash of a chunk's log entries, which tells copies of one folder apart."""
    return xxhash.xxh3_64_hexdigest(entries)


def _part(listed: list[tuple[Segment, _Content]], abouts: Mapping[str, dict[str, Any] | None]) -> Part:
    """One store's part, of the segments of its newest generation. Chunks only grow, and numbers are not used twice."""
    first = listed[-1][1]
    chunks: dict[int, PartChunk] = {}
    for _, content in listed:
        for number, chunk in content.chunks.items():
            if number not in chunks or chunks[number].chunk.size < chunk.chunk.size:
                chunks[number] = chunk
    gone = frozenset(number for _, content in listed for number in content.gone)
    every = {content.about: abouts.get(content.about) for _, content in listed}
    readable = {name: about for name, about in every.items() if about is not None}
    what = f"the part {first.store[:8]} of {first.host}"
    if not readable:
        raise Damaged(f"{what}: its description is missing or damaged")
    try:
        written = min(first.written, STORE_FORMAT)
        fields = next(fields_from_json(about["fields"]) for about in readable.values())
        metadata: dict[str, Any] = {}
        for about in readable.values():  # in any order. Entries are only added: a module's fingerprint replaces None
            metadata |= {name: value for name, value in about["metadata"].items() if metadata.get(name) is None}
        manifest = Manifest(fields, metadata, first.generation, first.store, written)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"{what}: its description cannot be read: {error!r}") from None
    kept = {number: chunk for number, chunk in chunks.items() if number not in gone}
    segments = frozenset(segment.name.hash for segment, _ in listed)
    by_key = [content for segment, content in listed if segment.name.signature is not None]
    unsaid = {number for content in by_key for number in content.gone}
    signed = frozenset(
        chunk.chunk.name for content in by_key for number, chunk in content.chunks.items() if number not in unsaid
    )
    return Part(first.host, manifest, kept, gone, segments, frozenset(readable), signed)


def _older(objects: Objects) -> list[str]:
    """What to say of numbered heads in the place of a keyed store. Raises StoreExists for those of a record store."""
    if not all(head.shared for head in read_heads(objects)):
        raise StoreExists(f"{objects.location.url} holds a record store, not a feature cache; use another URL")
    return ["it has parts in the format of an earlier warmstore, which is not used; push them again"]


def _number(text: str | int) -> int:
    number = int(text)
    if not 0 <= number < _MOST_CHUNKS or str(number) != str(text):
        raise ValueError(f"{text!r} is not the number of a chunk")
    return number


def has_parts(objects: Objects) -> bool:
    """Whether a remote has parts of a keyed store."""
    prefixes = f"{FOLDER}/s-", f"{FOLDER}/h0"
    return any(entry.name.startswith(prefixes) for entry in objects.entries(FOLDER))
