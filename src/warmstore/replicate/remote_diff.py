"""The relation of a store and its copy at a remote: which of the two continues the other."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from warmstore.errors import Damaged, Diverged, NotAStore, StoreExists
from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.format.generation_log import open_log, open_numbers
from warmstore.records.format.manifest import Manifest, read_manifest
from warmstore.records.log.log_entries import (
    ADOPTED,
    BATCH,
    CLOSED,
    COPIED,
    DELETE,
    EVICTED,
    SEALED,
    STAGED,
    UPDATE,
    Entries,
)
from warmstore.records.log.number_lists import Numbers
from warmstore.records.read.live_batches import live_batches
from warmstore.remote.objects import Objects
from warmstore.replicate.parts import has_parts
from warmstore.replicate.remote_snapshot import RemoteSnapshot, read_heads, read_heads_at
from warmstore.storage import checked_json
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, is_locked, is_read_only, read_whole

NOTE = "remote.json"
"""The file in a store's folder with the last push or pull of each remote."""

Relation = Literal["same", "ahead", "behind"]


@dataclass(frozen=True)
class Local:
    """A store in a folder: the entries of its log, and the state of its chunks.

    ends: committed bytes of each chunk. waiting: chunks with live writers. numbers: the bytes of the file `numbers`.
    finished: the entries before the first one of a chunk with a live writer, or of one that is merged or evicted by
    entries behind it.
    """

    path: Path
    manifest: Manifest
    entries: Entries
    ends: dict[int, int]
    waiting: frozenset[int]
    numbers: bytes
    finished: Entries

    @classmethod
    def read(cls, path: Path, files: Files) -> "Local":
        while True:
            manifest = read_manifest(path, files)
            try:
                return cls._of(path, manifest, files)
            except (NotAStore, Damaged, FileNotFoundError):  # another process may rebalance the store meanwhile
                if read_manifest(path, files).generation == manifest.generation:
                    raise

    @classmethod
    def _of(cls, path: Path, manifest: Manifest, files: Files) -> "Local":
        with open_log(path, manifest, files, write=False) as log:
            entries = log.read(0)
            known = len(entries)
            entries = entries[entries["kind"] != CLOSED]
            ends: dict[int, int] = {}
            for entry in entries[np.isin(entries["kind"], (BATCH, UPDATE, DELETE, SEALED, STAGED, COPIED))]:
                end = int(entry["offset"]) + int(entry["header"]) + int(entry["body"])
                ends[int(entry["chunk"])] = max(ends.get(int(entry["chunk"]), 0), end)
            numbers = open_numbers(path, manifest, files)
            gone = _merged_or_evicted(entries, numbers)
            for chunk in gone:
                ends.pop(chunk, None)
            sealed = set(entries["chunk"][entries["kind"] == SEALED].tolist())
            folder = path / manifest.generation_folder
            waiting = {chunk for chunk in ends if chunk not in sealed and is_locked(chunk_path(folder, chunk))}
            late = log.read(known)
        if np.isin(late["chunk"], [*ends.keys() - waiting]).any():  # a writer has committed its last rows, and ended
            return cls._of(path, manifest, files)
        finished = entries[: _first(entries, waiting)]
        # Entries behind these may merge or evict chunks of theirs, whose files are gone then.
        while len(finished) < len(entries) and (lost := gone - _merged_or_evicted(finished, numbers)):
            finished, before = finished[: _first(finished, lost)], finished
            if len(finished) == len(before):
                break
        return cls(path, manifest, entries, ends, frozenset(waiting), numbers.whole(), finished)

    def has_lost_chunks(self, files: Files) -> bool:
        """Whether chunks were rebalanced, merged or evicted since: their files may be gone."""
        now = Local.read(self.path, files)
        return now.manifest.generation != self.manifest.generation or not self.ends.keys() <= now.ends.keys()

    def chunk_path(self, chunk: int) -> Path:
        return chunk_path(self.path / self.manifest.generation_folder, chunk)

    @property
    def adopted(self) -> frozenset[int]:
        """Chunks that were adopted from another host's part of a cache."""
        return self._chunks_of(ADOPTED)

    @property
    def evicted(self) -> frozenset[int]:
        """Chunks that were evicted here. A remote may have them."""
        return self._chunks_of(EVICTED)

    def _chunks_of(self, kind: int) -> frozenset[int]:
        return frozenset(self.entries["chunk"][self.entries["kind"] == kind].tolist())


def _merged_or_evicted(entries: Entries, numbers: Numbers) -> frozenset[int]:
    evicted = entries["chunk"][entries["kind"] == EVICTED].tolist()
    return live_batches(entries, 0, numbers).merged_away.union(evicted)


def _first(entries: Entries, chunks: Collection[int]) -> int:
    """The number of the first entry of one of these chunks; that of all entries if there is none."""
    found = np.flatnonzero(np.isin(entries["chunk"], list(chunks)))
    return int(found[0]) if len(found) else len(entries)


def find_copy(objects: Objects, *, at: int | None = None) -> RemoteSnapshot:
    """The state of the one record store at a remote, after its last push or after the push number `at`.

    Raises:
        NotAStore: the remote has no store. StoreExists: it has a feature cache. Diverged: it has several stores.
    """
    heads = read_heads(objects) if at is None else read_heads_at(objects, at)
    check_kind(heads, objects)
    if not heads and at is not None:
        raise NotAStore(f"{objects.location.url} has no push {at} of a store; the last five are kept")
    if not heads:
        raise NotAStore(f"{objects.location.url} holds no store; push one there")
    if len(heads) > 1:
        raise Diverged(f"{objects.location.url} holds {len(heads)} stores; push each to a URL of its own")
    return heads[0]


def check_kind(heads: list[RemoteSnapshot], objects: Objects) -> None:
    """Raise StoreExists if a remote holds a feature cache instead of a record store with these heads."""
    if any(head.shared for head in heads) or (not heads and has_parts(objects)):
        raise StoreExists(f"{objects.location.url} holds a feature cache, not a record store; use another URL")


def relation(path: Path, objects: Objects, head: RemoteSnapshot, files: Files) -> Relation:
    """Whether a store in a folder is the same as its copy at a remote, ahead of it or behind.

    Raises:
        Diverged: neither continues the other.
    """
    local = Local.read(path, files)
    return relation_of(local.manifest, local.entries.tobytes(), head, read_note(path, objects, files))


def relation_of(manifest: Manifest, log: bytes, head: RemoteSnapshot, note: dict[str, Any]) -> Relation:
    if manifest.id == head.manifest.id:
        local, remote = manifest.generation, head.manifest.generation
        fields = [*manifest.fields.items()]  # logs do not tell: those of empty stores are equal
        are_alike = local == remote and fields == [*head.manifest.fields.items()]
        if are_alike and (log.startswith(head.log) or head.log.startswith(log)):
            return "same" if log == head.log else "ahead" if len(log) > len(head.log) else "behind"
        # The log of an earlier generation is deleted. The note says what was pushed or pulled last.
        if local > remote and (note.get("head") == _digest(head) or note.get("coming") == _whole_digest(head)):
            return "ahead"
        if local < remote and (note.get("generation"), note.get("log")) == (local, len(log)):
            return "behind"
        if local < remote and note.get("pulling") == [local, xxhash.xxh3_128_hexdigest(log)]:
            return "behind"
    raise Diverged(
        f"the local store and {head.name} at the remote were written to separately, so neither continues the other. "
        "Write to one of them at a time, and pull before you write; to keep both, push the local store to another URL"
    )


def with_entries(manifest: Manifest, metadata: dict[str, Any]) -> Manifest:
    """A manifest with further entries of metadata. Entries are only added: the given ones were at the remote first."""
    entries = {name: value for name, value in metadata.items() if value is not None}
    return replace(manifest, metadata={**manifest.metadata, **entries})


# The note of the last push or pull


def read_note(path: Path, objects: Objects, files: Files) -> dict[str, Any]:
    """The note of the last push to a remote, or pull from it; empty if there is none."""
    note = _read_notes(path, files).get(objects.identity)
    return note if isinstance(note, dict) else {}


def _read_notes(path: Path, files: Files) -> dict[str, Any]:
    try:
        return checked_json.from_bytes(read_whole(files, path / NOTE))
    except (OSError, ValueError):
        return {}


def write_note(
    path: Path, objects: Objects, head: RemoteSnapshot, files: Files, *, coming: bool = False, pulling: bool = False
) -> None:
    """Note the last push or pull in a store's folder. A folder that cannot be written needs no note.

    Args:
        coming: the head is not written yet. The process may die between writing the head and the final note.
        pulling: the store does not have the head's rows yet. The process may die between them and the final note.
    """
    old = read_note(path, objects, files)
    note: dict[str, Any] = {"head": _digest(head), "generation": head.manifest.generation, "log": len(head.log)}
    if coming:
        note = {**old, "coming": _whole_digest(head)}
    if pulling:
        note = {**old, "pulling": [head.manifest.generation, xxhash.xxh3_128_hexdigest(head.log)]}
    if note == old:
        return
    notes = {**_read_notes(path, files), objects.identity: note}
    try:
        replace_file(path / NOTE, checked_json.to_bytes(notes, indent=1), durable=True, files=files)
    except OSError as error:
        if not is_read_only(error):
            raise


def _digest(head: RemoteSnapshot) -> str:
    return f"{head.name} {head.manifest.generation} {len(head.log)}"


def _whole_digest(head: RemoteSnapshot) -> str:
    return f"{_digest(head)} {xxhash.xxh3_128_hexdigest(head.log)}"
