"""A store and its copy at a remote: `push` makes the remote go on, `pull` the folder, and neither ever goes back.

What is sent are chunks that nobody writes to any more, and then one head that names them. So whatever breaks off leaves
the remote as it was, with some chunks that the next push finds there. Coming back, every block is checked on arrival,
and a chunk gets its name when all of it is on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warmstore.errors import Damaged, Diverged, NotAStore, StoreExists
from warmstore.records.checksums import generation_seed
from warmstore.records.files import FileLock, Files, is_locked, write_all
from warmstore.records.heads import Head, head_name, last_sequence, read_heads, remove_older, write_head
from warmstore.records.log import (
    ADOPTED,
    BATCH,
    CLOSED,
    DELETE,
    EVICTED,
    SEALED,
    UPDATE,
    Entries,
    GenerationClosed,
    Log,
    create_log,
    new_entry,
)
from warmstore.records.manifest import NAME, Manifest, read_manifest, remove_leftovers, write_manifest
from warmstore.records.pages import Pages, RemoteChunk
from warmstore.records.progress import progress_bar
from warmstore.remote.objects import Objects

NOTE = "remote.json"
"""In a store's folder: what was pushed or pulled last, by URL."""

_AT_ONCE = 4  # chunks
_TRIES = 5

Relation = Literal["same", "ahead", "behind"]


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    chunks, size: sent, and their bytes. present: chunks that were there already. waiting: chunks that live writers
    still write to: they, and rows after theirs, go with a later push.
    """

    chunks: int
    size: int
    present: int
    waiting: int


@dataclass(frozen=True)
class Pulled:
    """What a pull did. chunks, size: fetched, and their bytes. records: that came with them."""

    chunks: int
    size: int
    records: int


@dataclass(frozen=True)
class Local:
    """A store as it lies in a folder: what its log says, and which of its chunks nobody writes to any more.

    ends: bytes of each chunk that are committed. waiting: chunks with live writers.
    """

    path: Path
    manifest: Manifest
    entries: Entries
    ends: dict[int, int]
    waiting: frozenset[int]

    @classmethod
    def read(cls, path: Path, files: Files) -> Local:
        manifest = read_manifest(path, files)
        log = Log(
            path / manifest.generation_folder / "log",
            files,
            generation_seed(manifest.id, manifest.generation),
            write=False,
        )
        try:
            entries = log.read(0)
        finally:
            log.close()
        entries = entries[entries["kind"] != CLOSED]
        ends: dict[int, int] = {}
        for entry in entries[np.isin(entries["kind"], (BATCH, UPDATE, DELETE, SEALED))]:
            end = int(entry["offset"]) + int(entry["header"]) + int(entry["body"])
            ends[int(entry["chunk"])] = max(ends.get(int(entry["chunk"]), 0), end)
        for chunk in entries["chunk"][entries["kind"] == EVICTED].tolist():
            ends.pop(chunk, None)
        sealed = set(entries["chunk"][entries["kind"] == SEALED].tolist())
        folder = path / manifest.generation_folder
        waiting = {chunk for chunk in ends if chunk not in sealed and is_locked(folder / f"{chunk:06d}.arrow")}
        return cls(path, manifest, entries, ends, frozenset(waiting))

    @property
    def folder(self) -> Path:
        return self.path / self.manifest.generation_folder

    def chunk_path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:06d}.arrow"

    @property
    def finished(self) -> Entries:
        """The entries before the first that speaks of a chunk somebody writes to."""
        late = np.flatnonzero(np.isin(self.entries["chunk"], list(self.waiting)))
        return self.entries[: late[0]] if len(late) else self.entries

    @property
    def adopted(self) -> frozenset[int]:
        """Chunks that came from another host's part of a cache."""
        return frozenset(self.entries["chunk"][self.entries["kind"] == ADOPTED].tolist())


def push(
    path: Path, objects: Objects, files: Files, *, shared: bool, verify: bool = False, progress: bool | None = None
) -> Pushed:
    """Have the remote hold what a store's folder holds.

    Args:
        shared: as one host's part of a cache that many fill, and without what came from the others.
        verify: read what is there already, and send anew what is damaged.

    Raises:
        Diverged: the remote has another store, or has what this one lacks. StoreExists: it has the other kind.
        Damaged: a chunk is shorter than the log says, or the remote does not have what it should.
        RemoteUnavailable, RemoteRefused: the remote as it was, but for some chunks that the next push finds there.
    """
    for _ in range(_TRIES):
        local = Local.read(path, files)
        heads = read_heads(objects, mend=local.manifest.id if verify else None)
        entries = local.entries if shared else local.finished
        head = next((head for head in heads if head.manifest.id == local.manifest.id), None)
        _check_kind(heads, objects, shared=shared)
        if not shared and head is None and heads:
            raise Diverged(f"{objects.location.url} holds another store than {path}; push it to a URL of its own")
        said = set(entries["chunk"].tolist())
        numbers = [
            chunk
            for chunk in local.ends
            if chunk in said and chunk not in local.waiting and not (shared and chunk in local.adopted)
        ]
        continues = head is None or _relation(local.manifest, entries.tobytes(), head, _note(path, objects))
        if continues == "behind":
            return Pushed(0, 0, len(numbers), len(local.waiting))
        known = head.chunks if head is not None and head.manifest.generation == local.manifest.generation else {}
        sent = _send(local, numbers, known, objects, verify=verify, progress=progress)
        waiting = len(local.waiting)
        result = Pushed(sent.count, sent.size, len(numbers) - sent.count, waiting)
        same = head is not None and head.log == entries.tobytes() and dict(head.chunks) == sent.chunks
        if head is not None and same and head.manifest == local.manifest:
            return result
        sequence = (last_sequence(objects, local.manifest.id) if head is None else head.sequence) + 1
        name = head_name(objects, local.manifest.id, sequence)
        made = Head(name, sequence, shared, local.manifest, entries.tobytes(), sent.chunks)
        if write_head(objects, made):
            if not objects.is_conditional:
                read_heads(objects)  # raises where somebody else pushed in this moment
            _write_note(path, objects, made, files)
            remove_older(objects, made)
            return result
    raise Diverged(f"others push to {objects.location.url} all the time; try again later")


def _check_kind(heads: list[Head], objects: Objects, *, shared: bool) -> None:
    for head in heads:
        if head.shared != shared:
            is_, other = ("a feature cache", "a record store") if head.shared else ("a record store", "a feature cache")
            raise StoreExists(f"{objects.location.url} holds {is_} and no {other}; use a URL of its own")


def relation(path: Path, objects: Objects, head: Head, files: Files) -> Relation:
    """What a store in a folder is to its copy at a remote.

    Raises:
        Diverged: neither continues the other.
    """
    local = Local.read(path, files)
    return _relation(local.manifest, local.entries.tobytes(), head, _note(path, objects))


def _relation(manifest: Manifest, log: bytes, head: Head, note: dict[str, Any]) -> Relation:
    if manifest.id == head.manifest.id:
        mine, theirs = manifest.generation, head.manifest.generation
        if mine == theirs and (log.startswith(head.log) or head.log.startswith(log)):
            return "same" if log == head.log else "ahead" if len(log) > len(head.log) else "behind"
        # Of an earlier generation nothing is left to compare with, but what was pushed or pulled last was in it.
        if mine > theirs and note.get("head") == _digest(head):
            return "ahead"
        if mine < theirs and (note.get("generation"), note.get("log")) == (mine, len(log)):
            return "behind"
    raise Diverged(
        f"the store here and {head.name} at the remote were written to separately, so neither continues the other. "
        "Write to one of them at a time, and pull before you write; to keep both, push this one to another URL"
    )


@dataclass(frozen=True)
class _Sent:
    chunks: dict[int, RemoteChunk]
    count: int
    size: int


def _send(
    local: Local,
    numbers: list[int],
    known: Any,
    objects: Objects,
    *,
    verify: bool,
    progress: bool | None,
) -> _Sent:
    """Send chunks that are not there yet."""
    there = {entry.name: entry.size for entry in objects.entries("chunks")}
    done: dict[int, RemoteChunk] = {}
    sent: list[int] = []
    with progress_bar(None, sum(local.ends[number] for number in numbers), 0, "push", progress) as advance:

        async def one(number: int) -> None:
            chunk = known.get(number)
            if chunk is None or chunk.size != local.ends[number] or verify or not _is_there(chunk, there):
                with _mapped(local.chunk_path(number), local.ends[number]) as data:
                    chunk, hashes = await asyncio.to_thread(RemoteChunk.of, data)
                    whole = _is_there(chunk, there) and (not verify or await _is_whole(objects, chunk))
                    if not whole:
                        await objects.put_async(chunk.object, data)
                        await objects.put_async(chunk.hashes_object, hashes.astype("<u8").tobytes())
                        sent.append(chunk.size)
            done[number] = chunk
            advance(0, sum(one.size for one in done.values()))

        async def all_of_them() -> None:
            room = asyncio.Semaphore(_AT_ONCE)

            async def in_turn(number: int) -> None:
                async with room:
                    await one(number)

            await objects.each(in_turn, numbers)

        objects.run(all_of_them())
    return _Sent(done, len(sent), sum(sent))


def _is_there(chunk: RemoteChunk, there: dict[str, int]) -> bool:
    return there.get(chunk.object) == chunk.size and there.get(chunk.hashes_object) == 8 * chunk.blocks


async def _is_whole(objects: Objects, chunk: RemoteChunk) -> bool:
    hashes, data = await objects.get_async(chunk.hashes_object), await objects.get_async(chunk.object)
    if data is None or chunk.hashes(hashes) is None:
        return False
    return (await asyncio.to_thread(RemoteChunk.of, memoryview(data)))[0] == chunk


@contextlib.contextmanager
def _mapped(path: Path, size: int) -> Iterator[memoryview]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < size:
            raise Damaged(f"{path} is shorter than the log says; restore it from a copy")
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    yield memoryview(mapping)  # closed with the last who looks at it: requests may outlive an interrupt


def find_copy(objects: Objects) -> Head:
    """The state of the one record store at a remote.

    Raises:
        NotAStore: there is none. StoreExists: it is a feature cache, or there are several.
    """
    heads = read_heads(objects)
    if not heads:
        raise NotAStore(f"{objects.location.url} holds no store; push one there")
    _check_kind(heads, objects, shared=False)
    if len(heads) > 1:
        raise Diverged(f"{objects.location.url} holds {len(heads)} stores; push each to a URL of its own")
    return heads[0]


def pull(path: Path, objects: Objects, files: Files, *, progress: bool | None = None) -> Pulled:
    """Have a folder hold what the remote holds: a new copy of its store, or what an older one lacks.

    Raises:
        Diverged: the store in the folder has what the remote lacks. NotAStore: the remote has none.
        StoreExists: the folder holds something else, or the remote a feature cache.
        Damaged: what the remote has is not what was pushed.
        RemoteUnavailable, RemoteRefused: the folder as it was; what came already waits beside for the next pull.
    """
    head = find_copy(objects)
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.name}.pull", files):
        if not (path / NAME).exists():
            if path.exists() and any(path.iterdir()):
                raise StoreExists(f"{path} is not empty and holds no store; name a new folder")
            return _pull_new(path, head, objects, files, progress)
        if relation(path, objects, head, files) != "behind":
            return Pulled(0, 0, 0)
        return _pull_more(path, head, objects, files, progress)


def sync(path: Path, objects: Objects, files: Files, *, progress: bool | None = None) -> tuple[Pulled, Pushed]:
    """`pull` where the remote is ahead, then `push` where it is behind."""
    pulled = Pulled(0, 0, 0)
    if read_heads(objects):
        pulled = pull(path, objects, files, progress=progress)
    return pulled, push(path, objects, files, shared=False, progress=progress)


def _pull_new(path: Path, head: Head, objects: Objects, files: Files, progress: bool | None) -> Pulled:
    draft = path.parent / f".{path.name}.{head.manifest.id}.pull.tmp"
    folder = draft / head.manifest.generation_folder
    for old in draft.glob("g[0-9]*"):
        if old != folder:
            files.remove_folder(old)
    pulled = _fetch(folder, folder, head, dict(head.chunks), objects, files, progress)
    files.remove(folder / "log")
    create_log(folder, files, head.log)
    write_manifest(draft, head.manifest, files)
    _write_note(draft, objects, head, files)
    if path.exists():
        path.rmdir()
    files.rename(draft, path)
    files.sync_folder(path.parent)
    return Pulled(*pulled, _rows(head.entries))


def _pull_more(path: Path, head: Head, objects: Objects, files: Files, progress: bool | None) -> Pulled:
    with FileLock(path / "edit.lock", files):
        local = Local.read(path, files)
        new = head.manifest.generation != local.manifest.generation
        target = path / head.manifest.generation_folder
        if new:
            remove_leftovers(path, local.manifest, files)
            target.mkdir(exist_ok=True)
        wanted = {number: chunk for number, chunk in head.chunks.items() if new or number not in local.ends}
        for number in wanted:
            if (target / f"{number:06d}.arrow").exists() and is_locked(target / f"{number:06d}.arrow"):
                raise Diverged(f"{path} is being written to; close its writers, and then pull")
        pulled = _fetch(path / ".pull", target, head, wanted, objects, files, progress)
        log = Log(local.folder / "log", files, generation_seed(head.manifest.id, local.manifest.generation), write=True)
        try:
            with log.locked():
                if new:
                    create_log(target, files, head.log)
                    went = log.read(0).tobytes() != local.entries.tobytes()
                    if not went:
                        log.append_locked(new_entry(CLOSED, 0))
                else:
                    went = not log.extend_locked(head.log)
                if went:
                    raise Diverged(f"{path} was written to while it was being pulled; close its writers, and then pull")
                write_manifest(path, head.manifest, files)
        except GenerationClosed:
            raise Diverged(f"{path} was rebalanced while it was being pulled; pull again") from None
        finally:
            log.close()
        _write_note(path, objects, head, files)
        remove_leftovers(path, head.manifest, files)
        return Pulled(*pulled, _rows(head.entries) - (0 if new else _rows(local.entries)))


def _fetch(
    staging: Path,
    target: Path,
    head: Head,
    wanted: dict[int, RemoteChunk],
    objects: Objects,
    files: Files,
    progress: bool | None,
) -> tuple[int, int]:
    """Fetch chunks into one folder and move them, whole and on the disk, to another; how many, and bytes."""
    targets = {number: target / f"{number:06d}.arrow" for number in wanted}
    fetch_chunks(staging, wanted, objects, files, targets, progress)
    if staging != target:
        files.remove_folder(staging)
    else:
        for path in (*staging.glob("*.hashes"), staging / "pages", staging / "pages.lock"):
            files.remove(path)
    files.sync_folder(target)
    return len(wanted), sum(chunk.size for chunk in wanted.values())


def fetch_chunks(
    staging: Path,
    wanted: dict[int, RemoteChunk],
    objects: Objects,
    files: Files,
    targets: dict[int, Path],
    progress: bool | None,
) -> None:
    """Fetch chunks into files in `staging`, and have each where it belongs once it is on the disk."""
    staging.mkdir(parents=True, exist_ok=True)
    pages = Pages(staging, wanted, objects, files, None)
    done = 0
    with progress_bar(None, sum(chunk.size for chunk in wanted.values()), 0, "pull", progress) as advance:

        def came(size: int) -> None:
            nonlocal done
            done += size
            advance(0, done)

        def one(number: int) -> None:
            pages.bring_whole([number], came)
            descriptor = files.open(pages.path(number), write=True)
            try:
                files.sync(descriptor)
            finally:
                files.close(descriptor)
            if pages.path(number) != targets[number]:
                files.rename(pages.path(number), targets[number])

        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="warmstore-pull")
        try:
            for done_one in as_completed([pool.submit(one, number) for number in wanted]):
                done_one.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _rows(entries: Entries) -> int:
    return int(entries["rows"][np.isin(entries["kind"], (BATCH, UPDATE))].sum())


# What was pushed or pulled last


def _note(path: Path, objects: Objects) -> dict[str, Any]:
    try:
        note = json.loads((path / NOTE).read_bytes()).get(objects.location.url, {})
    except (OSError, ValueError, AttributeError):
        return {}
    return note if isinstance(note, dict) else {}


def _write_note(path: Path, objects: Objects, head: Head, files: Files) -> None:
    try:
        notes = json.loads((path / NOTE).read_bytes())
    except (OSError, ValueError):
        notes = {}
    note = {"head": _digest(head), "generation": head.manifest.generation, "log": len(head.log)}
    notes = {**(notes if isinstance(notes, dict) else {}), objects.location.url: note}
    draft = path / f"{NOTE}.{os.getpid()}.tmp"
    draft.unlink(missing_ok=True)
    descriptor = files.create(draft)
    try:
        write_all(files, descriptor, [json.dumps(notes, indent=1).encode()], 0)
    finally:
        files.close(descriptor)
    files.rename(draft, path / NOTE)


def _digest(head: Head) -> str:
    return f"{head.name} {head.manifest.generation} {len(head.log)}"
