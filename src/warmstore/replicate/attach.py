"""Adopt chunks: chunks that other hosts wrote for their part of a cache become chunks of this part, unchanged.

A chunk's checksums depend on the store that it was written for. So an ADOPTED entry in the log names that store and the
chunk's number in it. Further entries commit the chunk's batches. No chunk is hashed again.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from warmstore.errors import Damaged, NotAStore, SchemaMismatch
from warmstore.records.format.chunk_names import chunk_numbers, chunk_path
from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import Manifest, read_manifest
from warmstore.records.log.commit_log import GenerationClosed, Log
from warmstore.records.log.log_entries import ADOPTED, EVICTED, NOWHERE, last_chunk, new_entry
from warmstore.records.write.upgrade import upgrade
from warmstore.remote.objects import Objects
from warmstore.replicate.block_cache import fetch_sidecar
from warmstore.replicate.parts import Part
from warmstore.replicate.pull import PullResult, fetch_chunks
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.sidecar import Sidecar, sidecar_path
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, file_lock
from warmstore.storage.lease import lock_path
from warmstore.storage.quota import Reserve

_log = logging.getLogger("warmstore")

_AT_ONCE = 32  # sidecars that are fetched together
STAGING = ".pull"
"""The folder in a store where chunks are fetched before they are adopted, under its lock."""

Keep = Callable[[Path, int, RemoteChunk, bytes], None]
"""Lists a chunk of a generation's folder as remote, given folder, local number, remote chunk and sidecar."""


def attach(
    path: Path,
    part: Part,
    objects: Objects,
    files: Files,
    *,
    numbers: Collection[int] | None = None,
    keep_remote: Keep | None = None,
    room: Reserve | None = None,
    progress: bool | None = None,
) -> PullResult:
    """Adopt the chunks of another part of a cache that this part lacks.

    A chunk that is missing or damaged at the remote is left out with a line in the log.

    Args:
        numbers: of the chunks to adopt; chunks among them that were adopted and evicted since are adopted again. None:
            all chunks that were never adopted.
        keep_remote: called for each chunk instead of fetching its bytes. Its blocks are fetched when they are read.
        room: reserves disk space for the fetched bytes.

    Raises:
        SchemaMismatch: the other part has other fields.
        RemoteUnavailable, RemoteRefused: chunks fetched before stay adopted; the next call continues.
    """
    local = read_manifest(path, files)
    if part.manifest.id == local.id:
        return PullResult(0, 0, 0)
    if part.manifest.fields != local.fields:
        raise SchemaMismatch(f"{part.name} has other fields, or another codec, than {path}; only equal caches can join")
    attachment = _Attachment(path, part, objects, files, numbers, keep_remote, room, progress)
    with file_lock(lock_path(path / STAGING), files):
        upgrade(path, files)  # earlier versions cannot read adopted chunks
        while True:
            manifest = read_manifest(path, files)
            try:
                attachment.adopt(manifest)
                break
            except (GenerationClosed, NotAStore, FileNotFoundError):
                if read_manifest(path, files).generation == manifest.generation:
                    raise
                # Another process has rebalanced the store. What was adopted before is in the next generation, too.
        with contextlib.suppress(OSError):  # under the lock: another process may fetch into it next
            files.remove_folder(path / STAGING)
    sizes = attachment.sizes
    return PullResult(len(sizes), sum(sizes.values()), attachment.records, len(attachment.damaged))


@dataclass
class _Attachment:
    """One call of `attach`, with its arguments and what it has done.

    sizes: bytes of the adopted chunks, by number. records: their rows. damaged: numbers of chunks that were left out.
    """

    path: Path
    part: Part
    objects: Objects
    files: Files
    numbers: Collection[int] | None
    keep_remote: Keep | None
    room: Reserve | None
    progress: bool | None
    sizes: dict[int, int] = field(default_factory=dict)
    records: int = 0
    damaged: set[int] = field(default_factory=set)

    def adopt(self, manifest: Manifest) -> None:
        """Adopt the chunks in one generation of the store.

        Raises:
            GenerationClosed, NotAStore, FileNotFoundError: the store may be in another generation now.
        """
        path, part, objects, files = self.path, self.part, self.objects, self.files

        def superseded() -> bool:
            return read_manifest(path, files).generation > manifest.generation

        seed, folder = part.manifest.seed, path / manifest.generation_folder
        with open_log(path, manifest, files, write=True, superseded=superseded) as log:
            listed = _wanted(log, part, self.numbers, are_whole=self.keep_remote is None)
            wanted = [number for number in listed if number not in self.sizes]
            for group in _groups(wanted):
                found = objects.run(objects.each(lambda number: _sidecar(objects, part, number), group))
                for number, data in zip(group, found, strict=True):
                    chunk, local_number = part.chunks[number].chunk, NOWHERE
                    try:
                        if isinstance(data, Damaged):
                            raise Damaged(str(data))  # `data` would keep this frame
                        assert chunk.sidecar is not None
                        sidecar = Sidecar.parse(data, chunk.sidecar, chunk.size)
                        with self.room(chunk.size) if self.room is not None else contextlib.nullcontext():
                            staging = path / STAGING / f"{seed:016x}-{number}"
                            if self.keep_remote is None:
                                _stage_sidecar(staging, data, files)
                                fetch_chunks(staging, {0: chunk}, objects, files, self.progress)
                            local_number = create_chunk(folder, log, files)
                            if self.keep_remote is not None:
                                self.keep_remote(folder, local_number, chunk, data)
                            else:
                                files.rename(chunk_path(staging, 0), chunk_path(folder, local_number))
                                files.remove_folder(staging)
                                files.sync_folder(folder)
                            adopted = new_entry(ADOPTED, local_number, rows=number, body_hash=seed)
                            entries = sidecar.entries.copy()
                            entries["chunk"] = local_number
                            log.append_all(np.concatenate((adopted, entries)))
                    except Damaged as error:
                        _log.warning("%s; chunk %d of %s is left out", error, number, part.name)
                        self.damaged.add(number)
                        if local_number != NOWHERE:
                            files.remove(chunk_path(folder, local_number))
                        continue
                    self.sizes[number] = chunk.size
                    self.records += sidecar.rows


def _wanted(log: Log, part: Part, numbers: Collection[int] | None, *, are_whole: bool) -> list[int]:
    """The numbers of the chunks to adopt, in the order in which they were begun: the last row with a key counts.

    A merged chunk adds no rows if all chunks that it was merged of are here.

    Args:
        are_whole: adopted chunks have all their blocks. Others can be read for as long as the part names them.
    """
    entries = log.read(0)
    adopted = entries[(entries["kind"] == ADOPTED) & (entries["body_hash"] == part.manifest.seed)]
    local = dict(zip(adopted["rows"].tolist(), adopted["chunk"].tolist(), strict=True))
    evicted = frozenset(entries["chunk"][entries["kind"] == EVICTED].tolist())
    originals = {
        original
        for known in (local if are_whole else local.keys() & part.chunks.keys())
        for original in ((part.chunks[known].originals if known in part.chunks else None) or {known})
    }
    wanted = []
    for number, listed in sorted(part.chunks.items()):
        if numbers is not None and number not in numbers:
            continue
        if number in local:
            if numbers is not None and local[number] in evicted:
                wanted.append(number)
        elif listed.originals is None or not listed.originals <= originals:
            wanted.append(number)
    return wanted


async def _sidecar(objects: Objects, part: Part, number: int) -> bytes | Damaged:
    try:
        return await fetch_sidecar(objects, part.chunks[number].chunk)
    except Damaged as error:
        return error


def _groups(numbers: list[int]) -> list[list[int]]:
    return [numbers[first : first + _AT_ONCE] for first in range(0, len(numbers), _AT_ONCE)]


def _stage_sidecar(staging: Path, data: bytes, files: Files) -> None:
    """Put the sidecar of the chunk that is fetched into a folder, where the hashes of its blocks are looked up."""
    with contextlib.suppress(FileExistsError):
        files.make_folder(staging)
    replace_file(sidecar_path(staging, 0), data, durable=False, files=files)


def create_chunk(folder: Path, log: Log, files: Files) -> int:
    """Create an empty chunk file under the next free number."""
    first_free = max(last_chunk(log.read(0)), *chunk_numbers(folder), -1) + 1
    for number in itertools.count(first_free):
        with contextlib.suppress(FileExistsError):
            files.close(files.create(chunk_path(folder, number)))
            return number
    raise AssertionError
