"""RecordStore: a store in a folder, or a copy of a store at a remote, that can be pushed and pulled.

A store at a URL is opened as a copy in a local folder: its log is copied at once, blocks of its chunks when they are
read. `push`, `pull`, `sync` and `clone` copy whole chunks between a folder and a remote.
"""

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from warmstore.errors import ReadOnly
from warmstore.records.format.manifest import Manifest
from warmstore.records.local_store import LocalStore
from warmstore.records.write.write_options import WriteOptions
from warmstore.remote.location import is_remote
from warmstore.replicate.pull import PullResult, pull, sync
from warmstore.replicate.push import PushResult, push
from warmstore.replicate.remote_copy import Remote, open_remote
from warmstore.storage.files import Files
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import Reserve
from warmstore.storage.registry import COPY, STORE, register
from warmstore.storage.user_paths import user_path


class RecordStore(LocalStore):
    """A store of N = `len(store)` records at positions 0 to N - 1, in the order of commits. Pending rows come last.

    Safe to use from several threads. `create` and `open` return one.
    """

    def __init__(
        self, path: Path, manifest: Manifest, mode: str, writing: WriteOptions, files: Files, *, salvage: bool = False
    ) -> None:
        super().__init__(path, manifest, mode, writing, files, salvage=salvage)
        if mode == "a":
            register(STORE, self.path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        chunk_size: int | str = SLOT,
        writer_threads: int | None = None,
        room: Reserve | None = None,
        salvage: bool = False,
        files: Files | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = "20GB",
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
        at: int | None = None,
    ) -> Self:
        """Open a store for reading ("r") or for appending too ("a"); the other options are those of `create`.

        Args:
            path: a folder, or the URL of a store that was pushed, such as "s3://bucket/photos", which is read-only.
            salvage: open a store whose order of records is damaged in more than one file. Edits before the first
                damaged one are applied, later edits are not. `verify(repair=True)` lists them and repairs the store.
            cache_dir: the folder for blocks of a remote's chunks, the user's cache folder by default.
            cache_size: the most bytes of cached blocks, or None for no bound. Blocks not read lately are evicted first.
            remote_options: see `push`.
            anonymous: see `push`.
            at: the number of a push, from 1: the store at a URL as that push left it, whatever is pushed later. The
                last five are kept.

        Raises:
            RemoteUnavailable, RemoteRefused: the remote cannot be read. Later reads raise them too, for blocks that are
                not cached.
            NotAStore: the folder holds no store.
            NewerFormat: a newer warmstore wrote the store.
            Damaged: the store's description or log does not match its checksums.
            ReadOnly: mode "a" on a folder that cannot be written.
        """
        if is_remote(path) and mode in ("r", "a"):
            if mode != "r":
                raise ReadOnly(f"{path!r} is a remote; write to a folder and push it there")
            remote = Remote(os.fspath(path), remote_options, anonymous, at=at)
            folder, copy_files = open_remote(remote, cache_dir, cache_size)
            register(COPY, folder)
            return cls._open_copy(folder, copy_files)
        if at is not None:
            raise ValueError(f"at={at} needs the URL of a store; {path!r} is a folder")
        writing = WriteOptions.of(chunk_size, writer_threads, room)
        return cls._open_folder(path, mode, writing=writing, salvage=salvage, files=files)

    @classmethod
    def _open_copy(cls, folder: Path, files: Files) -> Self:
        try:
            return cls._open_folder(folder, files=files)
        except BaseException:
            files.release()
            raise

    def push(
        self,
        url: str | os.PathLike[str],
        *,
        verify: bool = False,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PushResult:
        """Copy this store to a remote. Chunks that the remote has are not sent again, also after an interrupted push.

        This process's own chunk is sealed. A chunk that another process writes to waits for a later push, together with
        all rows after its first one.

        Args:
            url: s3://bucket/prefix, gs://, az://, http(s):// (WebDAV), or a folder. A URL holds one store.
            verify: read the chunks that the remote has already, and send damaged ones again.
            progress: show a bar; None shows one on a terminal or in a notebook.
            remote_options: options of obstore's store of that kind, such as {"endpoint": "https://..."}. By default
                credentials are found as the cloud's own tools find them.
            anonymous: sign no requests.

        Raises:
            Diverged: the remote has rows that this store lacks, or another store.
            StoreExists: the remote has a feature cache.
            RemoteUnavailable, RemoteRefused: the store was not pushed.
        """
        self._settle()
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            return push(self.path, objects, self._files, verify=verify, progress=progress)

    def pull(
        self,
        url: str | os.PathLike[str],
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PullResult:
        """Copy the rows of a remote that this store lacks; the arguments are those of `push`.

        Raises:
            Diverged: this store has rows that the remote lacks, or another process writes to it.
            Damaged: the remote's bytes are not those that were pushed.
            RemoteUnavailable, RemoteRefused: the store is unchanged; the next pull resumes.
        """
        self._settle()
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            pulled = pull(self.path, objects, self._files, progress=progress)
        self._session.refresh()
        return pulled

    def sync(
        self,
        url: str | os.PathLike[str],
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> tuple[PullResult, PushResult]:
        """`pull` and then `push`: the side that is behind receives the rows that it lacks."""
        self._settle()
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            results = sync(self.path, objects, self._files, progress=progress)
        self._session.refresh()
        return results

    @classmethod
    def clone(
        cls,
        url: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
        at: int | None = None,
    ) -> Self:
        """Copy the store at a remote into a new folder, and open it.

        `at` is the argument of `open`; the others are those of `push`.

        A clone that was killed resumes when it is called again. If the folder holds the store already, it is pulled.

        Raises:
            StoreExists: the folder holds something else, or a later state than that of the push `at`.
            NotAStore, Diverged, Damaged, RemoteUnavailable, RemoteRefused: as `open` and `pull`.
        """
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            pull(folder := user_path(path), objects, Files(), at=at, progress=progress)
        register(STORE, folder)
        return cls.open(folder)

    def _settle(self) -> None:
        """Commit pending rows and seal this process's chunk."""
        self._check_open()
        if self._files.is_remote:
            raise ReadOnly(f"{self.path} is a copy of a remote; clone it to push or pull")
        if self.mode == "a":
            self.seal()

    def __reduce__(self) -> Any:
        if self._files.is_remote:
            return type(self)._open_copy, (self.path, self._files)
        return functools.partial(type(self).open, salvage=self._session.salvage), (str(self.path), "r")
