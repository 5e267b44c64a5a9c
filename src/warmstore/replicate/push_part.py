"""`push_part`: add to a keyed store at a remote the samples that this host has written.

Chunks are sent first, each with its sidecar, and then one segment that names them. So an interrupted push leaves the
remote unchanged, and the next push sends what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from warmstore.errors import Damaged, Diverged
from warmstore.records.log.log_entries import BATCH, COPIED, SEALED, Entries
from warmstore.records.log.number_lists import NumberLists
from warmstore.records.read.live_batches import first_chunks
from warmstore.remote.objects import Objects
from warmstore.remote.requests import aside
from warmstore.replicate.block_cache import fetch_sidecar
from warmstore.replicate.parts import Part, PartChunk, PartLog, PushedParts, log_hash
from warmstore.replicate.push import TRIES, PushResult, RemoteClock, are_lasting, is_intact, mapped
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_diff import Local
from warmstore.replicate.sidecar import Sidecar, name_of
from warmstore.storage.files import Files
from warmstore.storage.progress import progress_bar

_AT_ONCE = 4  # chunks that are sent at once
_ASKED = 1 << 20  # bytes of a chunk from which the remote is asked whether it has it


def push_part(
    path: Path,
    objects: Objects,
    files: Files,
    log: PartLog,
    parts: PushedParts,
    *,
    forget_evicted: bool = False,
    verify: bool = False,
    progress: bool | None = None,
) -> PushResult:
    """Push the chunks of a keyed store in a folder that its own host wrote, except those with live writers.

    Args:
        parts: what the remote has, as it was just read from `log`.
        forget_evicted: take chunks that were evicted here away from the remote.
        verify: read what the remote has of this host already, and send damaged objects again.

    Raises:
        Diverged: a copy of this folder was pushed and written to.
        Damaged: a chunk is shorter than the log says.
        NotTrusted, RemoteUnavailable, RemoteRefused: what the remote had before is unchanged.
    """
    left = TRIES
    while True:
        local = Local.read(path, files)
        try:
            kept = frozenset[int]() if forget_evicted else local.evicted
            return _push(local, objects, files, log, parts, kept, verify=verify, progress=progress)
        except FileNotFoundError:
            left -= 1
            if not left or not local.has_lost_chunks(files):
                raise


def _push(
    local: Local,
    objects: Objects,
    files: Files,
    log: PartLog,
    parts: PushedParts,
    kept: frozenset[int],
    *,
    verify: bool,
    progress: bool | None,
) -> PushResult:
    part = parts.of(local.manifest.id)
    known: Mapping[int, PartChunk] = {}
    if part is not None and part.manifest.generation == local.manifest.generation:
        known = part.chunks
    numbers = [number for number in local.ends if number not in local.waiting and number not in local.adopted]
    result = PushResult(0, 0, len(numbers), len(local.waiting))
    logs = {number: _entries(local, number) for number in numbers}
    if part is not None and _is_behind(local, part, logs, objects):
        return result
    new, sent = _send(local, numbers, known, logs, objects, files, log.sign, verify=verify, progress=progress)
    gone = known.keys() - set(numbers) - local.waiting - kept
    if new or gone or (verify and part is None and numbers):
        replaces = part.segments if part is not None and not known and part.chunks else frozenset[str]()
        log.append(objects, parts, local.manifest, new, gone, replaces, anew=verify)
    return PushResult(len(sent), sum(sent), len(numbers) - len(sent), len(local.waiting))


def _entries(local: Local, number: int) -> bytes:
    kept = (local.entries["chunk"] == number) & np.isin(local.entries["kind"], (BATCH, COPIED))
    entries: Entries = local.entries[kept]
    return entries.tobytes()


def _is_behind(local: Local, part: Part, logs: Mapping[int, bytes], objects: Objects) -> bool:
    """Whether the remote continues this store, which has nothing new.

    Raises:
        Diverged: neither continues the other.
    """
    problem = (
        f"{local.path} and {part.name} at {objects.location.url} were written to separately: one is a copy of the "
        "other. Remove the folder and pull"
    )
    if part.manifest.generation != local.manifest.generation:
        if part.manifest.generation > local.manifest.generation:
            raise Diverged(problem)
        return False
    for number, known in part.chunks.items():
        if number in logs and known.log != log_hash(logs[number]):
            raise Diverged(problem)
    # A copy that has pulled has others' chunks under numbers that are chunks of its own at the remote.
    unknown = part.chunks.keys() - (set(local.entries["chunk"].tolist()) - local.adopted)
    if unknown and logs.keys() - part.chunks.keys():
        raise Diverged(problem)
    return bool(unknown)


def _send(
    local: Local,
    numbers: list[int],
    known: Mapping[int, PartChunk],
    logs: Mapping[int, bytes],
    objects: Objects,
    files: Files,
    sign: bool,
    *,
    verify: bool,
    progress: bool | None,
) -> tuple[dict[int, PartChunk], list[int]]:
    """Send the chunks that the remote lacks. Returns those that no segment names, by number, and the sizes sent."""
    new: dict[int, PartChunk] = {}
    sent: list[int] = []
    done = 0
    slots = asyncio.Semaphore(_AT_ONCE)
    clock = RemoteClock(objects)
    merged = first_chunks(local.entries, NumberLists(local.numbers, local.manifest.seed, str(local.path)))
    left = [number for number in numbers if verify or number not in known or _has_grown(local, number, known[number])]
    with progress_bar(None, sum(local.ends[number] for number in left), 0, "push", progress) as advance:

        async def send_one(number: int) -> None:
            nonlocal done
            async with slots:
                data = mapped(local.chunk_path(number), local.ends[number], files)
                named, hashes = await aside(lambda: RemoteChunk.of(data, signed=sign))
                entries = local.entries[local.entries["chunk"] == number]
                sidecar = Sidecar.of(data, entries, hashes).tobytes()
                chunk = RemoteChunk(named.name, named.size, name_of(sidecar))
                is_named = number in known and known[number].chunk == chunk
                if not await _is_there(objects, chunk, is_named, clock, verify=verify):
                    await objects.put_async(chunk.object, data)
                    sent.append(chunk.size)
                if not is_named or not await _has_sidecar(objects, chunk):
                    await objects.put_async(chunk.hashes_object, sidecar)
                if not is_named:
                    new[number] = PartChunk(chunk, log_hash(logs[number]), merged.get(number))
                done += chunk.size
                advance(0, done)

        objects.run(objects.each(send_one, left))
    return new, sent


def _has_grown(local: Local, number: int, known: PartChunk) -> bool:
    """Whether a chunk was pushed before its footer was written."""
    sealed = local.entries["kind"][local.entries["chunk"] == number] == SEALED
    return bool(sealed.any()) and known.chunk.size < local.ends[number]


async def _is_there(objects: Objects, chunk: RemoteChunk, is_named: bool, clock: RemoteClock, *, verify: bool) -> bool:
    """Whether a remote has the bytes of a chunk. It is not asked about small ones.

    Args:
        is_named: whether a segment names the chunk.
        clock: tells the age of a chunk that none names.
    """
    if chunk.size < _ASKED and not verify:
        return False
    entry = await objects.entry_async(chunk.object)
    if entry is None or entry.size != chunk.size:
        return False
    if not is_named and not await are_lasting(clock, entry):
        return False
    return not verify or await is_intact(objects, chunk)


async def _has_sidecar(objects: Objects, chunk: RemoteChunk) -> bool:
    try:
        await fetch_sidecar(objects, chunk)
    except Damaged:
        return False
    return True
