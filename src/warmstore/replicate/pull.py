"""`pull`: copy to a folder the rows of a remote store that the folder lacks.

Every block is checked on arrival. Chunks are fetched into a folder of their own, and get their names in the store under
the lock of its log, just before the log names them. So an interrupted pull leaves the store unchanged, and the next
pull uses the fetched blocks.
"""

import contextlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from warmstore.errors import Damaged, Diverged, StoreExists
from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.format.generation_log import open_log, open_numbers
from warmstore.records.format.manifest import NAME, read_manifest, remove_leftovers, write_manifest
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.log.log_entries import CLOSED, Entries, new_entry
from warmstore.records.log.log_files import create_log
from warmstore.records.read.live_batches import HAS_ROWS
from warmstore.records.write.edit_lock import edit_lock
from warmstore.records.write.store_draft import real_place
from warmstore.remote.objects import Objects
from warmstore.replicate.block_cache import BlockCache
from warmstore.replicate.push import PushResult, push
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_copy import CHUNKS, read_chunks, write_chunks
from warmstore.replicate.remote_diff import Local, find_copy, relation, with_entries, write_note
from warmstore.replicate.remote_snapshot import RemoteSnapshot, read_heads
from warmstore.storage.files import COPY, Files, ensure_folder, file_lock, is_at, is_locked, open_or_create, opened
from warmstore.storage.progress import progress_bar
from warmstore.storage.threads import ThreadPool, as_finished

_AT_ONCE = 4  # chunks that are fetched at once


@dataclass(frozen=True)
class PullResult:
    """The result of a pull.

    chunks, size: fetched chunks and their bytes. records: new records. damaged: chunks of a cache that are damaged at
    the remote and were left out.
    """

    chunks: int
    size: int
    records: int
    damaged: int = 0


def pull(
    path: Path, objects: Objects, files: Files, *, at: int | None = None, progress: bool | None = None
) -> PullResult:
    """Copy the store at a remote to a new folder, or add the rows that an older copy lacks.

    `at`: the number of the push whose state is copied; None for the last one.

    Raises:
        Diverged: the store in the folder has rows that the remote lacks, or a writer. NotAStore: the remote has no
            store.
        StoreExists: the folder holds something else, or a later state than that of the push `at`; or the remote holds
            a feature cache.
        Damaged: the remote's bytes are not those that were pushed.
        RemoteUnavailable, RemoteRefused: the store is unchanged; the next pull uses the fetched blocks.
    """
    head = find_copy(objects, at=at)
    path = real_place(path.absolute())
    ensure_folder(path.parent, files)
    with file_lock(path.parent / f".{path.name}.pull", files):
        if not (path / NAME).exists():
            if path.exists() and any(path.iterdir()):
                raise StoreExists(f"{path} is not empty and holds no store; name a new folder")
            return _pull_new(path, head, objects, files, progress)
        state = relation(path, objects, head, files)
        if state == "same":
            write_note(path, objects, head, files)  # the process that pulled may have died before its note
        if state == "ahead" and at is not None:
            raise StoreExists(f"{path} holds what was written after push {at}; name a new folder for the state of then")
        if state != "behind":
            _take_metadata(path, head, files)
            return PullResult(0, 0, 0)
        return _pull_more(path, head, objects, files, progress)


def sync(path: Path, objects: Objects, files: Files, *, progress: bool | None = None) -> tuple[PullResult, PushResult]:
    """`pull`, if the remote has a store, and then `push`."""
    pulled = pull(path, objects, files, progress=progress) if read_heads(objects) else PullResult(0, 0, 0)
    return pulled, push(path, objects, files, progress=progress)


def _pull_new(path: Path, head: RemoteSnapshot, objects: Objects, files: Files, progress: bool | None) -> PullResult:
    draft = path.parent / f".{path.name}.{head.manifest.id}.pull.tmp"
    folder = draft / head.manifest.generation_folder
    for old in draft.glob("g[0-9]*"):
        if old != folder:
            files.remove_folder(old)
    fetch_chunks(folder, head.chunks, objects, files, progress)
    for unneeded in (*folder.glob("*.hashes"), folder / "pages", folder / "pages.lock", folder / CHUNKS):
        files.remove(unneeded)
    files.sync_folder(folder)
    files.remove(folder / "log")
    files.remove(folder / f"log{COPY}")
    create_log(folder, files, head.log)
    open_numbers(draft, head.manifest, files).take(head.numbers)
    write_manifest(draft, head.manifest, files)
    write_note(draft, objects, head, files)
    if path.exists():
        path.rmdir()
    files.rename(draft, path)
    files.sync_folder(path.parent)
    return _result(head.chunks, _rows(head.entries))


def _take_metadata(path: Path, head: RemoteSnapshot, files: Files) -> None:
    """Add what the store at the remote was annotated with."""
    if with_entries(known := read_manifest(path, files), head.manifest.metadata) != known:
        with edit_lock(path, files):
            write_manifest(path, with_entries(read_manifest(path, files), head.manifest.metadata), files)


def _pull_more(path: Path, head: RemoteSnapshot, objects: Objects, files: Files, progress: bool | None) -> PullResult:
    with edit_lock(path, files):
        local = Local.read(path, files)
        is_new = head.manifest.generation != local.manifest.generation
        target = path / head.manifest.generation_folder
        if is_new:
            remove_leftovers(path, local.manifest, files)
            target.mkdir(exist_ok=True)
            files.sync_folder(path)  # before store.json names it
        known_ends = {} if is_new else local.ends
        # A chunk of a dead writer that was copied before may have its footer by now.
        chunks = sorted(head.chunks.items())
        wanted = {number: chunk for number, chunk in chunks if known_ends.get(number, -1) < chunk.size}
        for number in wanted:
            if chunk_path(target, number).exists() and is_locked(chunk_path(target, number)):
                raise _written_to(path)  # found here, nothing is fetched in vain
        staging = path / ".pull"
        fetch_chunks(staging, wanted, objects, files, progress)
        write_note(path, objects, head, files, pulling=True)
        known = replace(local.manifest, id=head.manifest.id)  # hashes of another store's log do not match
        try:
            with open_log(path, known, files, write=True) as log, log.locked():
                committed = log.read(0).tobytes()
                if committed != local.entries.tobytes() or not (is_new or head.log.startswith(committed)):
                    raise _written_to(path)
                if not _move(staging, target, wanted, known_ends, files):
                    raise _written_to(path)
                files.remove_folder(staging)
                files.sync_folder(target)
                open_numbers(path, head.manifest, files).take(head.numbers)
                if is_new:
                    create_log(target, files, head.log)
                    log.append_locked(new_entry(CLOSED, 0))
                else:
                    log.extend_locked(head.log)
                own = replace(head.manifest, metadata=local.manifest.metadata)
                write_manifest(path, with_entries(own, head.manifest.metadata), files)
        except GenerationClosed:
            raise Diverged(f"{path} was rebalanced during the pull; pull again") from None
        write_note(path, objects, head, files)
        remove_leftovers(path, head.manifest, files)
        return _result(wanted, _rows(head.entries) - (0 if is_new else _rows(local.entries)))


def _written_to(path: Path) -> Diverged:
    return Diverged(f"{path} is being written to, or was during the pull; close its writers, then pull")


def _move(staging: Path, target: Path, numbers: Iterable[int], known: Container[int], files: Files) -> bool:
    """Move fetched chunks to the folder of a generation, all or none. Returns False if a live writer has begun a chunk
    with one of their numbers.

    The caller holds the lock of the log, which has entries of the `known` chunks alone. A file of another number was
    left by a process that died, or a writer creates it now. Writers lock their files, so it is replaced under its lock.
    """
    with contextlib.ExitStack() as undo:
        for number in numbers:
            fetched, path = chunk_path(staging, number), chunk_path(target, number)
            descriptor = open_or_create(path, files)
            try:
                if not files.lock(descriptor, wait=False) or not is_at(descriptor, path):
                    return False
                files.rename(fetched, path)
            finally:
                files.close(descriptor)
            if number not in known:  # of a known one the file begins like that before it, which is gone
                undo.callback(files.rename, path, fetched)
        undo.pop_all()
    return True


def fetch_chunks(
    staging: Path, wanted: Mapping[int, RemoteChunk], objects: Objects, files: Files, progress: bool | None
) -> None:
    """Fetch chunks into files in `staging`, with the blocks that an interrupted call has left there of the same chunks.

    Their bytes are on the disk when this returns.
    """
    with contextlib.suppress(FileExistsError):
        files.make_folder(staging)
    staged: Mapping[int, RemoteChunk] = {}
    with contextlib.suppress(Damaged):
        staged = read_chunks(staging, files)
    if staged != wanted:
        for number, chunk in wanted.items():
            if staged.get(number) != chunk:  # a chunk of another generation may have the same number and size
                files.remove(chunk_path(staging, number))
        write_chunks(staging, wanted, files)
    cache = BlockCache(staging, wanted, objects, files, None)
    done = 0
    with progress_bar(None, sum(chunk.size for chunk in wanted.values()), 0, "pull", progress) as advance:

        def count(size: int) -> None:
            nonlocal done
            done += size
            advance(0, done)

        def fetch_one(number: int) -> None:
            cache.fetch_chunk(number, count)
            with opened(cache.path(number), files, write=True) as descriptor:
                files.sync(descriptor)

        with ThreadPool(_AT_ONCE, thread_name_prefix="warmstore-pull") as pool:
            try:
                for finished in as_finished([pool.submit(fetch_one, number) for number in wanted]):
                    finished.result()
            except Damaged:
                pool.shutdown(cancel_futures=True)
                raise
            except BaseException:
                # An interrupt, or the first failed chunk, does not wait for the other chunks.
                pool.shutdown(wait=False, cancel_futures=True)
                objects.close()
                raise


def _result(chunks: Mapping[int, RemoteChunk], records: int) -> PullResult:
    return PullResult(len(chunks), sum(chunk.size for chunk in chunks.values()), records)


def _rows(entries: Entries) -> int:
    return int(entries["rows"][HAS_ROWS[entries["kind"]]].sum())
