"""What a remote says about a store: one small object for each push, which names its log and its chunks.

    heads/STORE/00000003.json   what the third push left: store.json, and the names of all else
    logs/NAME                   the log of a store, by its hash, and the file `numbers` of one
    chunks/NAME                 a chunk, and NAME.hashes its blocks' hashes

Everything but the heads is named by what it is, so it never changes and is never overwritten. Of two who push at once
one is refused by the remote; where it cannot refuse, a head's name has its writer in it and all can see both.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from warmstore.errors import Damaged, Diverged, NewerFormat
from warmstore.records.format.manifest import Manifest, manifest_bytes, manifest_of
from warmstore.records.log.log_entries import Entries, entries_of
from warmstore.records.log.number_lists import NumberLists
from warmstore.remote.manifests import Manifests, Numbered, create, remove_older
from warmstore.remote.objects import Objects
from warmstore.replicate.remote_chunk import RemoteChunk

FORMAT = 2
"""Of heads with lists of numbers; others are of format 1."""
HEADS = Manifests("heads", r"(?P<series>[0-9a-f]{32})/(?P<number>[0-9]{8})(?:-[0-9a-f]{16})?\.json")
_LOG = re.compile(r"[0-9a-f]{32}")
_TRIES = 3
_KEPT = 5  # heads of a store that stay in the remote
_LARGEST = 1 << 30
_MOST_CHUNKS = 1 << 17  # what their table takes grows with their numbers, up to 4 GiB for these


@dataclass(frozen=True)
class RemoteSnapshot:
    """One state of one store.

    sequence: of the push, from 1. shared: a part of a cache that several hosts fill, and not a whole store. log: its
    bytes. chunks: those that are there, by number. numbers: the bytes of the file of that name.
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
        """Of the store's generation."""
        return self.manifest.seed

    @functools.cached_property
    def entries(self) -> Entries:
        """Of the log.

        Raises:
            Damaged: it is not the log of this store.
        """
        return entries_of(self.log, self.seed, self.name)

    @property
    def lists(self) -> NumberLists:
        """The lists that entries of the log refer to."""
        return NumberLists(self.numbers, self.seed, self.name)


def read_heads(objects: Objects, *, mend: str | None = None) -> list[RemoteSnapshot]:
    """The newest state of each store at a remote.

    Args:
        mend: a store whose newest state is about to be pushed again: where it is damaged, that is as if it were not.

    Raises:
        RemoteUnavailable, RemoteRefused: it cannot be asked.
        Damaged: what it has is not what was pushed.
        NewerFormat: a newer warmstore pushed it.
        Diverged: two pushed the same store at once, to a remote that cannot refuse one.
    """
    newest = _newest(objects)
    heads = [head for of_store in newest.values() for head in of_store]
    read = dict(zip(heads, objects.run(objects.each(lambda head: _read(objects, head), heads)), strict=True))
    found = []
    for store, of_store in newest.items():
        snapshots = [read[head] for head in of_store]
        damaged = [snapshot for snapshot in snapshots if isinstance(snapshot, Damaged)]
        if not damaged:
            found.append(_latest([snapshot for snapshot in snapshots if isinstance(snapshot, RemoteSnapshot)]))
        elif store != mend:
            raise damaged[0]
    return found


def last_sequence(objects: Objects, store: str) -> int:
    """Of the last push of a store; 0 where there was none."""
    return max((head.number for head in _newest(objects).get(store, ())), default=0)


def _newest(objects: Objects) -> dict[str, list[Numbered]]:
    """The last heads by store: one each, unless two pushed at once to a remote that cannot refuse one."""
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
                f"{head.name} and {longest.name} were pushed at once and went different ways; remove the one that is "
                "not to count, and push again"
            )
    return longest


def write_head(objects: Objects, head: RemoteSnapshot) -> bool:
    """Have a state stand at the remote; False when somebody else pushed that number first, and nothing changed."""
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
    content["checksum"] = _checksum(content)
    return objects.run(create(objects, head.name, json.dumps(content, indent=1).encode()))


def head_name(objects: Objects, store: str, sequence: int) -> str:
    """Where the head of a push is to be."""
    writer = "" if objects.is_conditional else f"-{secrets.token_hex(8)}"
    return f"heads/{store}/{sequence:08d}{writer}.json"


async def remove_older_heads(objects: Objects, store: str) -> None:
    """Remove the heads of a store that nobody needs any more."""
    await remove_older(objects, (await HEADS.by_series(objects, store)).get(store, ()), keep=_KEPT)


async def _read(objects: Objects, head: Numbered) -> RemoteSnapshot | Damaged:
    for left in reversed(range(_TRIES)):  # what is damaged on its way may come whole the next time
        try:
            return await _snapshot_of(objects, head)
        except Damaged as error:
            if not left:
                return error
    raise AssertionError


async def _snapshot_of(objects: Objects, head: Numbered) -> RemoteSnapshot:
    where = f"{objects.location.url}/{head.name}"
    try:
        content = json.loads(await objects.get_async(head.name, most=_LARGEST) or b"")
        checksum = content.pop("checksum")
        if checksum != _checksum(content):
            raise ValueError
        if content["format"] > FORMAT:
            raise NewerFormat(f"{where} has format {content['format']}; this warmstore reads up to {FORMAT}")
        manifest = manifest_of(content["store"], where)
        chunks = {_number(number): RemoteChunk(*chunk) for number, chunk in content["chunks"].items()}
        log, shared, numbers = content["log"], bool(content["shared"]), content.get("numbers")
        sound = type(manifest.generation) is int and 0 < manifest.generation < 10_000
        if not sound or not _LOG.fullmatch(log) or not _LOG.fullmatch(numbers or log) or manifest.id != head.series:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, NewerFormat):
            raise
        raise Damaged(f"{where} does not match its checksum; push the store again from where it is whole") from None
    data = await _hashed(objects, log)
    lists = b"" if numbers is None else await _hashed(objects, numbers)
    return RemoteSnapshot(head.name, head.number, shared, manifest, data, chunks, lists)


async def _hashed(objects: Objects, name: str) -> bytes:
    """A log, or lists of numbers, by the hash that names it."""
    data = await objects.get_async(f"logs/{name}", most=_LARGEST)
    if data is None or xxhash.xxh3_128_hexdigest(data) != name:
        raise Damaged(f"{objects.location.url}/logs/{name} is missing or damaged; push the store again")
    return data


def _number(text: str) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", text) or int(text) >= _MOST_CHUNKS:
        raise ValueError
    return int(text)


def _checksum(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
