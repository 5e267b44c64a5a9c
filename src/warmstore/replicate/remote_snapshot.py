"""RemoteSnapshot: the state of a store at a remote. Each push writes one small head, which names a log and chunks.

    heads/STORE/00000003.json   the head of the third push: store.json, and the names of the other objects
    logs/NAME                   the log of a store, or its file `numbers`, named by a hash
    chunks/NAME                 a chunk; NAME.hashes has the hashes of its blocks

Logs and chunks are named by their content, so they never change. When two processes push at once, the remote refuses
one of the heads. A remote that cannot refuse keeps both: their names contain a random number of the writer.
"""

import json
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from warmstore.errors import BadArtifact, Damaged, Diverged, NewerFormat
from warmstore.records.format.manifest import Manifest, manifest_bytes, manifest_of
from warmstore.records.log.log_entries import Entries, entries_of
from warmstore.records.log.number_lists import NumberLists
from warmstore.remote.manifests import Manifests, Numbered, create, remove_older
from warmstore.remote.objects import Objects
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.storage.cached_property import cached_property
from warmstore.storage.checked_json import checksum_of

_log = logging.getLogger("warmstore")

FORMAT = 2
"""The format of heads with lists of numbers; heads without have format 1."""
HEADS = Manifests("heads", r"(?P<series>[0-9a-f]{32})/(?P<number>[0-9]{8})(?:-[0-9a-f]{16})?\.json")
_LOG = re.compile(r"[0-9a-f]{32}")
_TRIES = 3
_KEPT = 5  # heads of a store that are not removed
_LARGEST = 1 << 30
_MOST_CHUNKS = 1 << 17  # the size of the block table grows with the largest chunk number, here up to 4 GiB


@dataclass(frozen=True)
class RemoteSnapshot:
    """One state of one store.

    sequence: the number of the push, from 1. shared: one host's part of a cache that several hosts fill, instead of a
    whole store. log: the bytes of the log. chunks: the chunks at the remote, by number. numbers: the bytes of the file
    `numbers`.
    """

    name: str
    sequence: int
    shared: bool
    manifest: Manifest
    log: bytes
    chunks: Mapping[int, RemoteChunk]
    numbers: bytes = b""

    @property
    def seed(self) -> int:
        """The seed of the store's generation."""
        return self.manifest.seed

    @cached_property
    def entries(self) -> Entries:
        """The entries of the log.

        Raises:
            Damaged: it is not the log of this store.
        """
        return entries_of(self.log, self.seed, self.name)

    @property
    def logs(self) -> list[str]:
        """The names of the objects with its log and its numbers."""
        return [xxhash.xxh3_128_hexdigest(data) for data in (self.log, self.numbers) if data or data is self.log]

    @property
    def lists(self) -> NumberLists:
        """The lists of numbers that log entries refer to."""
        return NumberLists(self.numbers, self.seed, self.name)


def read_heads(objects: Objects, *, mend: str | None = None) -> list[RemoteSnapshot]:
    """The newest state of each store at a remote.

    A part of a cache that cannot be read is left out with a warning: it is a host's part among others. The one store of
    another remote must be read.

    Args:
        mend: the id of a store that is about to be pushed again. Its newest state is left out if it is damaged.

    Raises:
        RemoteUnavailable, RemoteRefused: the remote cannot be read.
        Damaged: the remote's bytes are not those that were pushed, and it has no part of a cache that can be read.
        NewerFormat: a newer warmstore pushed the store.
        Diverged: two processes pushed the same store at once, to a remote that cannot refuse one of them.
    """
    found, bad = _told_apart(objects, mend)
    try:
        if bad and not any(head.shared for head in found):
            raise bad[0]
        for error in map(str, bad):
            _log.warning("%s; the part of this host is left out", error)
    finally:
        del bad  # else its errors would keep this frame, and those of the callers
    return found


def _told_apart(objects: Objects, mend: str | None) -> tuple[list[RemoteSnapshot], list[Damaged | NewerFormat]]:
    """The newest states that can be read, and why others cannot."""
    newest = _newest(objects)
    heads = [head for of_store in newest.values() for head in of_store]
    read = dict(zip(heads, objects.run(objects.each(lambda head: _read(objects, head), heads)), strict=True))
    found, bad = [], []
    for store, of_store in newest.items():
        snapshots = [read[head] for head in of_store]
        errors = [snapshot for snapshot in snapshots if not isinstance(snapshot, RemoteSnapshot)]
        if not errors:
            found.append(_latest([snapshot for snapshot in snapshots if isinstance(snapshot, RemoteSnapshot)]))
        elif store != mend:
            bad.append(errors[0])
    return found, bad


def read_heads_at(objects: Objects, number: int) -> list[RemoteSnapshot]:
    """The states that the push of this number left; none if its head is no longer kept.

    Raises:
        Damaged, NewerFormat: as `read_heads`.
    """
    listed = [head for heads in objects.run(HEADS.by_series(objects)).values() for head in heads]
    found = []
    for head in listed:
        if head.number == number:
            found.append(objects.run(_read_or_raise(objects, head)))
    return found


def read_all_heads(objects: Objects) -> tuple[list[RemoteSnapshot], list[str]]:
    """All heads of record stores at a remote, old ones included; and why others cannot be read."""
    listed = [head for heads in objects.run(HEADS.by_series(objects)).values() for head in heads]
    read = objects.run(objects.each(lambda head: _read(objects, head), listed))
    heads = [head for head in read if isinstance(head, RemoteSnapshot)]
    return heads, [str(error) for error in read if not isinstance(error, RemoteSnapshot)]


def last_sequence(objects: Objects, store: str) -> int:
    """The sequence number of the last push of a store; 0 before the first."""
    return max((head.number for head in _newest(objects).get(store, ())), default=0)


def _newest(objects: Objects) -> dict[str, list[Numbered]]:
    """The last head of each store, or several heads where processes pushed at once."""
    return {
        store: [head for head in heads if head.number == heads[0].number]
        for store, heads in objects.run(HEADS.by_series(objects)).items()
    }


def _latest(heads: list[RemoteSnapshot]) -> RemoteSnapshot:
    longest = max(heads, key=lambda head: (head.manifest.generation, len(head.log), head.name))
    for head in heads:
        same = head.manifest.generation == longest.manifest.generation
        if not head.shared and (not same or not longest.log.startswith(head.log)):
            raise Diverged(
                f"{head.name} and {longest.name} were pushed at once and hold different rows; remove the wrong one, "
                "and push again"
            )
    return longest


def write_head(objects: Objects, head: RemoteSnapshot) -> bool:
    """Write the head of a state; False if another process wrote a head with the same sequence number first."""
    log = xxhash.xxh3_128_hexdigest(head.log)
    objects.put(f"logs/{log}", head.log)
    content: dict[str, Any] = {
        "format": 1,
        "shared": head.shared,
        "store": manifest_bytes(head.manifest).decode(),
        "log": log,
        "chunks": {str(number): [chunk.name, chunk.size] for number, chunk in head.chunks.items()},
    }
    if head.numbers:
        content["format"], content["numbers"] = FORMAT, xxhash.xxh3_128_hexdigest(head.numbers)
        objects.put(f"logs/{content['numbers']}", head.numbers)
    content["checksum"] = checksum_of(content)
    return objects.run(create(objects, head.name, json.dumps(content, indent=1).encode()))


def add_head(objects: Objects, head: RemoteSnapshot) -> bool:
    """`write_head`. At a remote that cannot refuse, the head is taken back if it is not the only one of its number."""
    if not write_head(objects, head):
        return False
    try:
        if not objects.is_conditional:
            read_heads(objects)
    except Diverged:
        objects.delete([head.name])
        return False
    return True


def head_name(objects: Objects, store: str, sequence: int) -> str:
    """The name of the head of a push."""
    writer = "" if objects.is_conditional else f"-{secrets.token_hex(8)}"
    return f"heads/{store}/{sequence:08d}{writer}.json"


async def remove_older_heads(objects: Objects, store: str) -> None:
    """Remove all heads of a store but the last few."""
    await remove_older(objects, (await HEADS.by_series(objects, store)).get(store, ()), keep=_KEPT)


async def _read(objects: Objects, head: Numbered) -> RemoteSnapshot | Damaged | NewerFormat:
    for left in reversed(range(_TRIES)):  # bytes that were damaged in transit may arrive undamaged on a retry
        try:
            return await _snapshot_of(objects, head)
        except NewerFormat as error:
            return error
        except Damaged as error:
            if not left:
                return error
    raise AssertionError


async def _read_or_raise(objects: Objects, head: Numbered) -> RemoteSnapshot:
    found = await _read(objects, head)
    try:
        if isinstance(found, RemoteSnapshot):
            return found
        raise found
    finally:
        del found  # as above


async def _snapshot_of(objects: Objects, head: Numbered) -> RemoteSnapshot:
    where = f"{objects.location.url}/{head.name}"
    try:
        content = json.loads(await objects.get_async(head.name, most=_LARGEST) or b"")
        checksum = content.pop("checksum")
        if checksum != checksum_of(content):
            raise ValueError
        if content["format"] > FORMAT:
            raise NewerFormat.of(where, content["format"], FORMAT)
        manifest = manifest_of(content["store"], where)
        chunks = {_number(number): RemoteChunk(*chunk) for number, chunk in content["chunks"].items()}
        log, shared, numbers = content["log"], bool(content["shared"]), content.get("numbers")
        if not _LOG.fullmatch(log) or not _LOG.fullmatch(numbers or log) or manifest.id != head.series:
            raise ValueError
    except NewerFormat:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Damaged(f"{where} does not match its checksum; push the store again from an undamaged copy") from None
    data = await _hashed(objects, log)
    lists = b"" if numbers is None else await _hashed(objects, numbers)
    return RemoteSnapshot(head.name, head.number, shared, manifest, data, chunks, lists)


async def _hashed(objects: Objects, name: str) -> bytes:
    """The bytes of a log, or of a file `numbers`, checked against the hash that names it."""
    try:
        data = await objects.get_async(f"logs/{name}", most=_LARGEST)
    except BadArtifact:
        data = None
    if data is None or xxhash.xxh3_128_hexdigest(data) != name:
        raise Damaged(f"{objects.location.url}/logs/{name} is missing or damaged; push the store again")
    return data


def _number(text: str) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", text) or int(text) >= _MOST_CHUNKS:
        raise ValueError
    return int(text)
