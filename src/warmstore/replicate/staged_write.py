"""StagedWrite: many tasks write parts of a store, and one commit makes all of them visible, in the given order.

A part is a small store of its own, which only its task writes: a folder beside the target, or chunks at a remote that
no head names. The commit adopts the chunks of the parts, unchanged. Parts of tasks that were killed, or ran twice, are
removed and never seen.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import Damaged, Diverged, NotAStore, SchemaMismatch, StoreExists, WarmstoreError
from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.format.fields import Fields, check_fields
from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import Manifest, read_manifest
from warmstore.records.log.log_entries import ADOPTED, ENTRY, Entries, last_chunk, new_entry
from warmstore.records.log.log_files import create_log
from warmstore.records.write.edit_lock import edit_lock
from warmstore.records.write.store_draft import check_vacant, create_folder, publish
from warmstore.records.write.upgrade import upgrade
from warmstore.records.write.write_options import WriteOptions
from warmstore.remote.location import is_remote
from warmstore.remote.objects import Objects
from warmstore.replicate.attach import create_chunk
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.remote_diff import Local, find_copy
from warmstore.replicate.remote_snapshot import RemoteSnapshot, add_head, head_name, read_heads, write_head
from warmstore.replicate.staged_part import CHANGED, STAGED, PartWriter, StagedPart, check_layout, part_chunk, send_part
from warmstore.storage.files import Files, ensure_folder, is_at, opened, write_failed
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.registry import STORE, register
from warmstore.storage.temporary_folder import TemporaryFolder
from warmstore.storage.user_paths import user_path

_TRIES = 5


class StagedWrite:
    """A write of one store by many tasks. It can be pickled, and sent to tasks of other processes and hosts.

    Each task writes a part, and returns `PartWriter.staged`. One process commits the parts, or aborts. Tasks may be
    killed, and may run twice: a part that is not given to `commit` is removed.

    Args:
        target: the folder of the store, on a file system of all tasks; or a URL, for which each task writes its part to
            `work_dir` and sends it.
        append: add the parts to the store that exists at the target. Otherwise the commit creates it.
        fields: of the records. None if each task gives them to `part`.
        metadata: any JSON value, stored with a new store.
        chunk_size: see `RecordStore.create`.
        writer_threads: see `RecordStore.create`.
        work_dir: a local folder for parts that are sent to a URL. None for the folder of temporary files.
        remote_options: see `RecordStore.push`.
        anonymous: see `RecordStore.push`.

    Raises:
        StoreExists: a store exists at the target, and `append` is false. `commit` raises it too.
        NotAStore: `append` is true, and none exists.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        append: bool = False,
        fields: Fields | None = None,
        metadata: dict[str, Any] | None = None,
        chunk_size: int | str = SLOT,
        writer_threads: int | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
        files: Files | None = None,
    ) -> None:
        self.is_append = append
        self.token = secrets.token_hex(8)
        self._id = uuid.uuid4().hex  # of a new store: a repeated commit finds its own
        self._fields = None if fields is None else check_fields(fields)
        self._metadata = dict(metadata or {})
        self._writing = WriteOptions.of(chunk_size, writer_threads)
        self._work_dir = None if work_dir is None else os.fspath(work_dir)
        self._target: _RemoteTarget | _Folder
        if is_remote(target):
            self._target = _RemoteTarget(Remote(target, remote_options, anonymous))
        else:
            self._target = _Folder(user_path(target).absolute(), files or Files())
        known = self._target.open(self.token, append=append)
        if known is not None and self._fields not in (None, known):
            raise SchemaMismatch(f"the store at {self._target.shown} has the fields {known}, not {self._fields}")
        self._fields = known or self._fields

    def __repr__(self) -> str:
        return f"StagedWrite({self._target.shown!r}, append={self.is_append})"

    def part(self, fields: Fields | None = None) -> PartWriter:
        """A new part, which this process writes.

        Args:
            fields: of its records; None for those of the write.

        Raises:
            SchemaMismatch: other fields than those of the write, or none at all.
        """
        if fields is None or self._fields is not None:
            if self._fields is None:
                raise SchemaMismatch("a part needs fields: pass fields= to StagedWrite or to part")
            if fields is not None and fields != self._fields:
                raise SchemaMismatch(f"the store has the fields {self._fields}; a part has {fields}")
            fields = self._fields
        return self._target.part(self.token, check_fields(fields), self._writing, self._work_dir)

    def commit(self, parts: Iterable[StagedPart]) -> int:
        """Make the records of some parts visible together, in this order. Other parts of this write are removed.

        Returns:
            The number of records.

        Raises:
            SchemaMismatch: parts have different fields, or others than the store has by now; or there is neither a part
                nor a field. Nothing is committed.
            StoreExists: another process created a store at the target.
            Diverged: another process pushed to the URL.
            Damaged: chunks of a part are gone from the URL. Nothing is committed: write that part again.
            WriteFailed: nothing is committed. Call `commit` again before the `with` ends, which removes the parts.
            RemoteUnavailable, RemoteRefused: all of the parts are committed, where an answer was lost, or none. Call
                `commit` again with the same parts, also after the `with` or `abort`: it commits them once.
            ValueError: some of these parts are committed at the URL already, and others are not.
        """
        chosen = list(parts)
        fields = self._fields or (chosen[0].fields if chosen else None)
        if fields is None:
            raise SchemaMismatch("the store has no fields, as nothing was written: pass fields= to StagedWrite")
        check_layout(chosen, fields, "those before it have", "Pass fields= so that all tasks use the same")
        manifest = Manifest(fields, self._metadata, id=self._id)
        self._target.commit(self.token, manifest, chosen, append=self.is_append)
        return sum(part.rows for part in chosen)

    def abort(self) -> None:
        """Remove all parts. The target is as it was. Parts of tasks that still run are removed as far as possible.

        After a `commit` at a URL that failed, its parts stay, since they may be committed, and can be by another call.
        `gc` of the remote removes their chunks if they are not.
        """
        self._target.clean(self.token)

    def __enter__(self) -> "StagedWrite":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self.abort()


@dataclass
class _Folder:
    """A target that is a folder. Parts are in `.NAME.TOKEN.staged` beside it, locked by the process that commits."""

    path: Path
    files: Files
    _lock: int | None = field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    @property
    def shown(self) -> str:
        return str(self.path)

    def staging(self, token: str) -> Path:
        return self.path.parent / f".{self.path.name}.{token}.staged"

    def open(self, token: str, *, append: bool) -> Fields | None:
        """Create the folder of the parts, and remove those of dead processes. Returns the fields of the store."""
        files = self.files
        fields = read_manifest(self.path, files).fields if append else None
        if not append:
            check_vacant(self.path)
        ensure_folder(self.path.parent, files)
        _remove_dead(self.path, files)
        draft = self.staging(f"{token}.new")  # until it is locked: another write would take it for a dead one's
        files.make_folder(draft)
        self._lock = files.open(draft)
        files.lock(self._lock, for_long=True)
        files.rename(draft, self.staging(token))
        return fields

    def part(self, token: str, fields: Fields, writing: WriteOptions, work_dir: str | None) -> PartWriter:
        folder = self.staging(token)
        if not folder.is_dir():
            raise NotAStore(f"{folder} is gone: the write to {self.path} was committed or aborted")
        return PartWriter(folder / secrets.token_hex(8), fields, writing, None)

    def commit(self, token: str, manifest: Manifest, parts: list[StagedPart], *, append: bool) -> None:
        try:
            if append:
                self._append(parts)
            else:
                self._create(self.staging(token) / "store", manifest, parts)
        except OSError as error:
            if isinstance(error, WarmstoreError | FileNotFoundError):
                raise
            raise write_failed(error, self.path) from error
        self.clean(token)

    def _append(self, parts: list[StagedPart]) -> None:
        files = self.files
        upgrade(self.path, files)
        # No rebalance ends the generation meanwhile.
        with edit_lock(self.path, files), uninterrupted(), contextlib.ExitStack() as undo:
            manifest = read_manifest(self.path, files)
            check_layout(parts, manifest.fields, f"{self.path} now has", CHANGED)
            _adopt(self.path, manifest, parts, files, undo)
            undo.pop_all()

    def _create(self, draft: Path, manifest: Manifest, parts: list[StagedPart]) -> None:
        files = self.files
        check_vacant(self.path)
        if draft.exists():  # an earlier call failed
            files.remove_folder(draft)
        create_folder(draft, manifest, files)
        with uninterrupted(), contextlib.ExitStack() as undo:
            _adopt(draft, manifest, parts, files, undo)
            undo.callback(_take_back, self.path, draft, files)
            publish(draft, self.path, files)
            undo.pop_all()
        register(STORE, self.path)

    def clean(self, token: str) -> None:
        shutil.rmtree(self.staging(token), ignore_errors=True)  # tasks may still write to it
        if self._lock is not None:
            self.files.unlock(self._lock)
            self.files.close(self._lock)
            self._lock = None


def _remove_dead(target: Path, files: Files) -> None:
    """Remove the parts of writes to this target whose process is gone."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.staged")
    for folder in [path for path in target.parent.iterdir() if name.fullmatch(path.name)]:
        with contextlib.suppress(OSError), opened(folder, files) as descriptor:
            if files.lock(descriptor, wait=False) and is_at(descriptor, folder):
                shutil.rmtree(folder, ignore_errors=True)


def _take_back(path: Path, draft: Path, files: Files) -> None:
    """Let a store that was published be the draft again, unless it is."""
    if not draft.exists():
        files.rename(path, draft)


def _adopt(path: Path, manifest: Manifest, parts: list[StagedPart], files: Files, undo: contextlib.ExitStack) -> None:
    """Move the chunks of parts into a store, and commit all of them with one write of the log. `undo` moves them back.

    Raises:
        OSError: nothing is committed.
    """
    folder = path / manifest.generation_folder
    with open_log(path, manifest, files, write=True) as log:
        added: list[Entries] = []
        for part in parts:
            for number in part.sizes:
                local_number = create_chunk(folder, log, files)
                staged, moved = part_chunk(part, number), chunk_path(folder, local_number)
                try:
                    files.rename(staged, moved)
                except OSError:
                    files.remove(moved)
                    raise
                undo.callback(files.rename, moved, staged)
                added += _adopted(part, number, local_number)
        files.sync_folder(folder)
        if added:
            log.append_all(np.concatenate(added))


def _adopted(part: StagedPart, number: int, new_number: int) -> tuple[Entries, Entries]:
    """The entries that commit one chunk of a part under a new number."""
    entries = part.entries(number)
    entries["chunk"] = new_number
    return new_entry(ADOPTED, new_number, rows=number, body_hash=part.seed), entries


@dataclass
class _RemoteTarget:
    """A target at a URL. Tasks send the chunks of their parts, and the commit writes one head that names them."""

    remote: Remote
    _chosen: set[str] = field(default_factory=set, init=False)  # chunks that `clean` keeps

    @property
    def shown(self) -> str:
        return self.remote.shown

    def open(self, token: str, *, append: bool) -> Fields | None:
        """Returns the fields of the store."""
        with self._connected() as objects:
            if append:
                return find_copy(objects).manifest.fields
            if read_heads(objects):
                raise _taken(objects)
        return None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Objects]:
        with contextlib.closing(self.remote.open()) as objects:
            yield objects

    def part(self, token: str, fields: Fields, writing: WriteOptions, work_dir: str | None) -> PartWriter:
        if work_dir is not None:
            Path(work_dir).mkdir(parents=True, exist_ok=True)
        folder = TemporaryFolder("part", work_dir)

        def send(local: Local) -> dict[int, str]:
            try:
                with self._connected() as objects:
                    return send_part(local, objects, f"{STAGED}/{token}/{folder.path.name}", Files())
            finally:
                folder.remove()

        return PartWriter(folder, fields, writing, send)

    def commit(self, token: str, manifest: Manifest, parts: list[StagedPart], *, append: bool) -> None:
        names = {name for part in parts for name in part.chunks.values()}
        self._chosen |= names  # whatever follows: a request whose answer is lost may write the head at any time
        try:
            with self._connected() as objects:
                if append:
                    self._append(objects, parts)
                else:
                    self._create(objects, manifest, parts)
        except StoreExists:
            self._chosen -= names
            raise
        self.clean(token)

    def _append(self, objects: Objects, parts: list[StagedPart]) -> None:
        for _ in range(_TRIES):
            known = find_copy(objects)
            if _holds(known, parts):
                return
            check_layout(parts, known.manifest.fields, f"{self.shown} now has", CHANGED)
            _check_sent(objects, parts)
            if add_head(objects, _extended(known, objects, parts)):
                return
        raise Diverged(f"other processes keep pushing to {self.shown}; commit again later")

    def _create(self, objects: Objects, manifest: Manifest, parts: list[StagedPart]) -> None:
        heads = read_heads(objects)
        if not heads:
            _check_sent(objects, parts)
            write_head(objects, _extended(RemoteSnapshot("", 0, False, manifest, b"", {}), objects, parts))
            heads = read_heads(objects)
        own = next((head for head in heads if head.manifest.id == manifest.id), None)
        if own is None or not _holds(own, parts):
            raise _taken(objects)
        if len(heads) > 1:
            objects.delete([own.name])
            raise StoreExists(f"another process pushed a store to {self.shown} meanwhile; use another URL")

    def clean(self, token: str) -> None:
        """Remove the chunks of all parts that are not chosen, and that no head names; and the lists of parts."""
        with contextlib.suppress(WarmstoreError, ValueError), self._connected() as objects:
            lists = [entry.name for entry in objects.entries(f"{STAGED}/{token}")]
            sent = {name for listed in lists for name in json.loads(objects.get(listed) or b"[]")}
            named = {chunk.name for head in read_heads(objects) for chunk in head.chunks.values()}
            unused = [RemoteChunk(name, 0) for name in sent - self._chosen - named]
            objects.delete([name for chunk in unused for name in (chunk.object, chunk.hashes_object)])
            objects.delete(lists)


def _taken(objects: Objects) -> StoreExists:
    return StoreExists(f"{objects.location.url} holds a store already; use append=True, or another URL")


def _check_sent(objects: Objects, parts: list[StagedPart]) -> None:
    """Raise Damaged unless the remote has all chunks of some parts."""

    async def check(sent: tuple[StagedPart, RemoteChunk]) -> None:
        part, chunk = sent
        sizes = ((chunk.object, chunk.size), (chunk.hashes_object, chunk.hash_size * chunk.blocks))
        for name, size in sizes:
            found = await objects.size_async(name)
            if found != size:
                state = "is gone" if found is None else f"has {found:,} bytes in place of {size:,}"
                raise Damaged(
                    f"{objects.location.url}/{name} of the part {part.name} {state}: `remote gc` removes parts of a "
                    "write that has sent none for 30 days. Nothing is committed; write the part again"
                )

    chunks = [(part, RemoteChunk(part.chunks[number], size)) for part in parts for number, size in part.sizes.items()]
    objects.run(objects.each(check, chunks))


def _holds(known: RemoteSnapshot, parts: list[StagedPart]) -> bool:
    """Whether a state of a store has the records of some parts: an earlier commit stored it, and its answer was lost.

    Raises:
        ValueError: it has some of their chunks.
    """
    adopted = known.entries[known.entries["kind"] == ADOPTED]
    present = set(zip(adopted["body_hash"].tolist(), adopted["rows"].tolist(), strict=True))
    held = [(part.seed, number) in present for part in parts for number in part.sizes]
    if any(held) and not all(held):
        raise ValueError(
            f"{sum(held)} of {len(held)} chunks of these parts are committed already, by an earlier call with other "
            "parts. Commit the other parts alone"
        )
    return all(held)


def _extended(known: RemoteSnapshot, objects: Objects, parts: list[StagedPart]) -> RemoteSnapshot:
    """A state of a store with the records of further parts."""
    chunks = dict(known.chunks)
    added: list[Entries] = []
    number = last_chunk(known.entries)
    for part in parts:
        for part_number, size in part.sizes.items():
            number += 1
            chunks[number] = RemoteChunk(part.chunks[part_number], size)
            added += _adopted(part, part_number, number)
    sequence = known.sequence + 1
    name = head_name(objects, known.manifest.id, sequence)
    with TemporaryFolder("log") as folder:
        log = _log_with(folder, known, np.concatenate(added) if added else np.zeros(0, ENTRY))
    return RemoteSnapshot(name, sequence, False, known.manifest, log, chunks, known.numbers)


def _log_with(folder: Path, known: RemoteSnapshot, added: Entries) -> bytes:
    """The bytes of the log of a state with further entries, written in a temporary folder."""
    files = Files()
    generation = folder / known.manifest.generation_folder
    files.make_folder(generation)
    create_log(generation, files, known.log)
    with open_log(folder, known.manifest, files, write=True) as log:
        if len(added):
            log.append_all(added)
        return log.read(0).tobytes()
