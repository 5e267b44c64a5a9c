"""A new store appears at its path when it is complete. Until then it is a draft in a folder beside the path.

The process that creates it holds a lock on the draft's folder, which ends with the process. A draft without a lock was
left by a dead process, and the next process that creates the same store removes it.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from warmstore.errors import ReadOnly, StoreExists
from warmstore.records.format.manifest import NAME, Manifest, write_manifest
from warmstore.records.log.log_files import create_log
from warmstore.remote.location import is_remote
from warmstore.storage.files import Files, ensure_folder, is_at, is_read_only, opened
from warmstore.storage.user_paths import user_path


@contextlib.contextmanager
def drafted(path: str | os.PathLike[str], files: Files) -> Iterator[Path]:
    """Yield a draft folder for a new store, and move the store to `path` when the block ends without an error.

    The block creates and closes the store. After an error nothing is left.

    Raises:
        StoreExists: `path` is not empty, before or after the block.
        ReadOnly: the parent folder cannot be written, or `path` is a remote.
    """
    if is_remote(path):
        raise ReadOnly(f"{path!r} is a remote; make a store in a folder and push it there")
    target = real_place(user_path(path).absolute())
    check_vacant(target)
    _remove_dead(target, files)
    draft, descriptor = _make(target, files)
    try:
        store = draft / target.name
        yield store
        publish(store, target, files)
    finally:
        with contextlib.suppress(OSError):
            files.remove_folder(draft)
        files.unlock(descriptor)  # a child that was forked meanwhile shares the lock
        files.close(descriptor)


def create_folder(folder: Path, manifest: Manifest, files: Files) -> None:
    """Create the folder of a new, empty store. It appears complete or not at all.

    Raises:
        StoreExists: the folder is not empty.
        ReadOnly: its parent cannot be written.
    """
    folder = real_place(folder)
    check_vacant(folder)
    draft = folder.parent / f".{folder.name}.{manifest.id}.tmp"
    try:
        ensure_folder(folder.parent, files)
        generation = draft / manifest.generation_folder
        files.make_folder(generation)
        create_log(generation, files)
        write_manifest(draft, manifest, files)
        publish(draft, folder, files)
    except OSError as error:
        if is_read_only(error):
            raise ReadOnly(error.errno, "the folder cannot be written", str(folder.parent)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            files.remove_folder(draft)


def real_place(folder: Path) -> Path:
    """Where a folder is whose name may be a link. A draft must be beside it: nothing can be renamed over a link."""
    return folder.resolve() if folder.is_symlink() else folder


def check_vacant(folder: Path) -> None:
    """Raise StoreExists unless the path is free or an empty folder."""
    if folder.exists() and not folder.is_dir():
        raise StoreExists(f"{folder} is a file; name a new folder")
    if (folder / NAME).exists():
        raise StoreExists(f"{folder} holds a store already; open it with RecordStore.open({str(folder)!r}, mode='a')")
    if folder.is_dir() and any(folder.iterdir()):
        raise StoreExists(f"{folder} is not empty; name a new folder, or empty that one first")


def publish(folder: Path, target: Path, files: Files) -> None:
    """Move a complete store to its path. It is on the disk there when this returns.

    Raises:
        StoreExists: something else took the path meanwhile.
    """
    try:
        files.rename(folder, target)
    except OSError:
        check_vacant(target)
        raise
    files.sync_folder(target.parent)


def _make(target: Path, files: Files) -> tuple[Path, int]:
    """Create a draft's folder. Returns its path and a locked descriptor."""
    while True:
        draft = target.parent / f".{target.name}.{secrets.token_hex(4)}.draft"
        try:
            ensure_folder(target.parent, files)
            files.make_folder(draft)
            descriptor = files.open(draft)
        except FileNotFoundError:
            continue  # another process removed it before it was locked
        except OSError as error:
            if is_read_only(error):
                raise ReadOnly(error.errno, "the folder cannot be written", str(target.parent)) from error
            raise
        files.lock(descriptor, for_long=True)
        if is_at(descriptor, draft):
            return draft, descriptor
        files.close(descriptor)


def _remove_dead(target: Path, files: Files) -> None:
    """Remove the drafts of this store that no process has locked. What cannot be removed stays."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.draft")
    with contextlib.suppress(FileNotFoundError):
        for draft in [path for path in target.parent.iterdir() if name.fullmatch(path.name)]:
            with contextlib.suppress(OSError), opened(draft, files) as descriptor:
                if files.lock(descriptor, wait=False):
                    files.remove_folder(draft)
