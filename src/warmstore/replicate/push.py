"""`push`: copy to a remote what the store in a folder has in addition.

A push sends chunks that no process writes to, and then one head that names them. So an interrupted push leaves the
remote's store unchanged, and the next push does not send the same chunks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmstore.errors import Damaged, Diverged, WarmstoreError
from warmstore.remote.objects import Objects
from warmstore.remote.requests import aside
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_diff import Local, check_kind, read_note, relation_of, write_note
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
_TRIES = 5


@dataclass(frozen=True)
class PushResult:
    """The result of a push.

    chunks, size: sent chunks and their bytes. present: chunks that the remote had already. waiting: chunks that live
    writers still write to. They, and all rows after their first one, are sent by a later push.
    """

    chunks: int
    size: int
    present: int
    waiting: int


def push(
    path: Path, objects: Objects, files: Files, *, shared: bool, verify: bool = False, progress: bool | None = None
) -> PushResult:
    """Copy the store in a folder to a remote.

    Args:
        shared: push one host's part of a cache that several hosts fill, without the chunks of other hosts.
        verify: read the chunks that the remote has already, and send damaged ones again.

    Raises:
        Diverged: the remote has another store, or rows that this one lacks. StoreExists: it has the other kind.
        Damaged: a chunk is shorter than the log says, or the remote's bytes are not those that were pushed.
        RemoteUnavailable, RemoteRefused: the remote's store is unchanged. It may have some new chunks already.
    """
    for _ in range(_TRIES):
        local = Local.read(path, files)
        heads = read_heads(objects, mend=local.manifest.id if verify else None)
        entries = local.entries if shared else local.finished
        head = next((head for head in heads if head.manifest.id == local.manifest.id), None)
        check_kind(heads, objects, shared=shared)
        if not shared and head is None and heads:
            raise Diverged(f"{objects.location.url} holds another store than {path}; push it to a URL of its own")
        in_log = set(entries["chunk"].tolist())
        numbers = [
            chunk
            for chunk in local.ends
            if chunk in in_log and chunk not in local.waiting and not (shared and chunk in local.adopted)
        ]
        continues = head is None or relation_of(
            local.manifest, entries.tobytes(), head, read_note(path, objects, files)
        )
        if continues == "behind":
            return PushResult(0, 0, len(numbers), len(local.waiting))
        known = head.chunks if head is not None and head.manifest.generation == local.manifest.generation else {}
        sent = _send(local, numbers, known, objects, files, verify=verify, progress=progress)
        waiting = len(local.waiting)
        result = PushResult(sent.count, sent.size, len(numbers) - sent.count, waiting)
        same = head is not None and head.log == entries.tobytes() and dict(head.chunks) == sent.chunks
        if head is not None and same and head.manifest == local.manifest:
            write_note(path, objects, head, files)  # the process that sent it may have died before
            return result
        sequence = (last_sequence(objects, local.manifest.id) if head is None else head.sequence) + 1
        name = head_name(objects, local.manifest.id, sequence)
        made = RemoteSnapshot(name, sequence, shared, local.manifest, entries.tobytes(), sent.chunks, local.numbers)
        write_note(path, objects, made, files, coming=True)
        if write_head(objects, made):
            if not objects.is_conditional:
                read_heads(objects)  # raises if another process pushed at the same time
            write_note(path, objects, made, files)
            with contextlib.suppress(WarmstoreError):  # the push is complete; removing may not be permitted
                objects.run(remove_older_heads(objects, local.manifest.id))
            return result
    raise Diverged(f"other processes keep pushing to {objects.location.url}; try again later")


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
    files: Files,
    *,
    verify: bool,
    progress: bool | None,
) -> _Sent:
    """Send the chunks that the remote lacks."""
    present = {entry.name: entry.size for entry in objects.entries("chunks")}
    done: dict[int, RemoteChunk] = {}
    sent: list[int] = []
    with progress_bar(None, sum(local.ends[number] for number in numbers), 0, "push", progress) as advance:

        async def send_one(number: int) -> None:
            chunk = known.get(number)
            if chunk is None or chunk.size != local.ends[number] or verify or not _is_present(chunk, present):
                with _mapped(local.chunk_path(number), local.ends[number], files) as data:
                    chunk, hashes = await aside(RemoteChunk.of, data)
                    intact = _is_present(chunk, present) and (not verify or await _is_intact(objects, chunk))
                    if not intact:
                        await objects.put_async(chunk.object, data)
                        await objects.put_async(chunk.hashes_object, hashes.astype("<u8").tobytes())
                        sent.append(chunk.size)
            done[number] = chunk
            advance(0, sum(chunk.size for chunk in done.values()))

        async def send_all() -> None:
            slots = asyncio.Semaphore(_AT_ONCE)

            async def in_turn(number: int) -> None:
                async with slots:
                    await send_one(number)

            await objects.each(in_turn, numbers)

        objects.run(send_all())
    return _Sent(done, len(sent), sum(sent))


def _is_present(chunk: RemoteChunk, present: dict[str, int]) -> bool:
    return present.get(chunk.object) == chunk.size and present.get(chunk.hashes_object) == 8 * chunk.blocks


async def _is_intact(objects: Objects, chunk: RemoteChunk) -> bool:
    hashes, data = await objects.get_async(chunk.hashes_object), await objects.get_async(chunk.object)
    if data is None or chunk.hashes(hashes) is None:
        return False
    return (await aside(RemoteChunk.of, memoryview(data)))[0] == chunk


@contextlib.contextmanager
def _mapped(path: Path, size: int, files: Files) -> Iterator[memoryview]:
    with opened(path, files) as descriptor:
        if files.size(descriptor) < size:
            raise Damaged(f"{path} is shorter than the log says; restore it from a copy")
        mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    yield memoryview(mapping)  # not closed here: requests that outlive an interrupt still read it
