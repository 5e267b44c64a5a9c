"""`push`: copy to a remote the rows of a local store that the remote lacks.

A push sends chunks that no process writes to, and then one head that names them. So an interrupted push leaves the
remote's store unchanged, and the next push does not send the same chunks again.
"""

import asyncio
import contextlib
import mmap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warmstore.errors import Damaged, Diverged, WarmstoreError
from warmstore.remote.objects import Entry, Objects
from warmstore.remote.requests import aside
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_diff import Local, check_kind, read_note, relation_of, with_entries, write_note
from warmstore.replicate.remote_snapshot import (
    RemoteSnapshot,
    head_name,
    last_sequence,
    read_heads,
    remove_older_heads,
    write_head,
)
from warmstore.storage.files import Files, opened
from warmstore.storage.progress import progress_bar

_AT_ONCE = 4  # chunks that are sent at once
_LASTING = 12 * 3600.0  # seconds, half of the least age of what `gc` removes
TRIES = 5
"""How often a push begins anew because other processes have pushed, or removed chunks, meanwhile."""


@dataclass(frozen=True)
class PushResult:
    """The result of a push.

    chunks, size: sent chunks and their bytes. present: chunks that the remote had already. waiting: chunks with live
    writers. A later push sends them, and all rows after their first one.
    """

    chunks: int
    size: int
    present: int
    waiting: int


def push(
    path: Path,
    objects: Objects,
    files: Files,
    *,
    verify: bool = False,
    progress: bool | None = None,
) -> PushResult:
    """Copy the store in a folder to a remote.

    Args:
        verify: read the chunks that the remote has already, and send damaged ones again.

    Raises:
        Diverged: the remote has another store, or rows that this one lacks. StoreExists: it has the other kind.
        Damaged: a chunk is shorter than the log says, or the remote's bytes are not those that were pushed.
        RemoteUnavailable, RemoteRefused: the remote's store is unchanged. It may have some new chunks already.
    """
    for _ in range(TRIES):
        local = Local.read(path, files)
        # Before the heads: one that another process pushes afterwards has the number of this one's, which is refused.
        last = last_sequence(objects, local.manifest.id) if verify else 0
        heads = read_heads(objects, mend=local.manifest.id if verify else None)
        entries = local.finished
        head = next((head for head in heads if head.manifest.id == local.manifest.id), None)
        check_kind(heads, objects)
        if any(other is not head for other in heads):
            raise _other_store(path, objects)
        in_log = set(entries["chunk"].tolist())
        numbers = [chunk for chunk in local.ends if chunk in in_log and chunk not in local.waiting]
        log = entries.tobytes()
        waiting = len(local.waiting)
        note = read_note(path, objects, files)
        if head is not None and relation_of(local.manifest, log, head, note) == "behind":
            return PushResult(0, 0, len(numbers), waiting)
        # Metadata is in no log: another copy may have been annotated and pushed.
        manifest = local.manifest if head is None else with_entries(local.manifest, head.manifest.metadata)
        known = head.chunks if head is not None and head.manifest.generation == local.manifest.generation else {}
        try:
            chunks, sent = _send(local, numbers, known, objects, files, verify=verify, progress=progress)
        except FileNotFoundError:
            if not local.has_lost_chunks(files):
                raise
            continue  # another process has rebalanced the store
        result = PushResult(len(sent), sum(sent), len(numbers) - len(sent), waiting)
        if head is not None and (head.log, dict(head.chunks), head.manifest) == (log, chunks, manifest):
            write_note(path, objects, head, files)  # the process that sent the head may have died before its note
            return result
        sequence = (last if head is None else head.sequence) + 1
        name = head_name(objects, local.manifest.id, sequence)
        new_head = RemoteSnapshot(name, sequence, False, manifest, log, chunks, local.numbers)
        write_note(path, objects, new_head, files, coming=True)
        if write_head(objects, new_head):
            if head is None or not objects.is_conditional:
                try:
                    heads = read_heads(objects)  # raises if another process pushed at the same time
                except Damaged:
                    objects.delete([name])  # else the next push could not read what arrived of this one
                    raise
                if any(other.manifest.id != local.manifest.id for other in heads):
                    objects.delete([name])  # of two first pushes of different stores at least one does so
                    raise _other_store(path, objects)
            write_note(path, objects, new_head, files)
            with contextlib.suppress(WarmstoreError):  # the push is complete; removing may not be permitted
                objects.run(remove_older_heads(objects, local.manifest.id))
            return result
    raise Diverged(f"other processes keep pushing to {objects.location.url}, or rebalancing {path}; try again later")


def _other_store(path: Path, objects: Objects) -> Diverged:
    return Diverged(f"{objects.location.url} holds another store than {path}; push it to a URL of its own")


def _send(
    local: Local,
    numbers: list[int],
    known: Mapping[int, RemoteChunk],
    objects: Objects,
    files: Files,
    *,
    verify: bool,
    progress: bool | None,
) -> tuple[dict[int, RemoteChunk], list[int]]:
    """Send the chunks that the remote lacks. Returns all chunks by number, and the sizes of the sent ones."""
    present = {entry.name: entry for entry in objects.entries("chunks")}
    named = {chunk.name for chunk in known.values()}
    done: dict[int, RemoteChunk] = {}
    sent: list[int] = []
    slots = asyncio.Semaphore(_AT_ONCE)
    clock = RemoteClock(objects)

    async def is_there(chunk: RemoteChunk) -> bool:
        if not _is_present(chunk, present):
            return False
        entries = present[chunk.object], present[chunk.hashes_object]
        if chunk.name not in named and not await are_lasting(clock, *entries):
            return False
        return not verify or (await _has_hashes(objects, chunk) and await is_intact(objects, chunk))

    with progress_bar(None, sum(local.ends[number] for number in numbers), 0, "push", progress) as advance:

        async def send_one(number: int) -> None:
            chunk = known.get(number)
            if chunk is None or chunk.size != local.ends[number] or verify or not _is_present(chunk, present):
                async with slots:
                    data = mapped(local.chunk_path(number), local.ends[number], files)
                    new, hashes = await aside(RemoteChunk.of, data)
                    if not await is_there(new):
                        await objects.put_async(new.object, data)
                        await objects.put_async(new.hashes_object, hashes)
                        sent.append(new.size)
                chunk = new
            done[number] = chunk
            advance(0, sum(chunk.size for chunk in done.values()))

        objects.run(objects.each(send_one, numbers))
    return done, sent


def _is_present(chunk: RemoteChunk, present: Mapping[str, Entry]) -> bool:
    listed = [present.get(name) for name in (chunk.object, chunk.hashes_object)]
    return [entry.size for entry in listed if entry is not None] == [chunk.size, 8 * chunk.blocks]


class RemoteClock:
    """The clock of a remote, which writes an object to tell the time. It is asked once, when it is first needed."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._asking = asyncio.Lock()
        self._ahead: float | None = None  # seconds that it is ahead of `time.monotonic`

    async def now(self) -> float:
        """Seconds since 1970, as `Entry.modified` has them."""
        async with self._asking:
            if self._ahead is None:
                before = time.monotonic()
                self._ahead = await self._objects.clock_async() - before
        return time.monotonic() + self._ahead


async def are_lasting(clock: RemoteClock, *unnamed: Entry) -> bool:
    """Whether objects that nothing names stay long enough for a push to name them: `gc` removes old ones at any time.

    Their age is by the clock of the remote.
    """
    return min(entry.modified for entry in unnamed) > await clock.now() - _LASTING


async def is_intact(objects: Objects, chunk: RemoteChunk) -> bool:
    """Whether a remote has the bytes of a chunk, all of them."""
    data = await objects.get_async(chunk.object)
    if data is None:
        return False
    found, _ = await aside(lambda: RemoteChunk.of(memoryview(data), signed=chunk.is_signed))
    return (found.name, found.size) == (chunk.name, chunk.size)


async def _has_hashes(objects: Objects, chunk: RemoteChunk) -> bool:
    return chunk.hashes(await objects.get_async(chunk.hashes_object)) is not None


def mapped(path: Path, size: int, files: Files) -> memoryview:
    """The first `size` bytes of a file. The mapping is never closed: requests that outlive an interrupt read it."""
    with opened(path, files) as descriptor:
        if files.size(descriptor) < size:
            raise Damaged(f"{path} is shorter than the log says; restore it from a copy")
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
