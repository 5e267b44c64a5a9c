"""Disks that fill or fail below an artifact store: an error of the right kind, nothing half stored, nothing lost."""

import errno
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.compiling.environments import HERE
from tests.faults.children import in_child
from tests.faults.seam import Counting, FullDisk, Killing, Refusing

from warmstore.compiling.bundles import export, import_
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import Damaged, WarmstoreError, WriteFailed
from warmstore.storage.files import Files

CONTENT = os.urandom(20_000)
OTHER = os.urandom(20_000)


class FullDatabase(Files):
    """Databases that take no more pages once `is_full`: SQLite itself says that the disk is full."""

    is_full = False

    def connect(self, database: str) -> sqlite3.Connection:
        connection = super().connect(database)
        if self.is_full:
            connection.execute("PRAGMA max_page_count = 1")
        return connection


class FailingStatements(Files):
    """Databases whose n-th statement, counted from when `left` is set, fails as one whose file cannot be read."""

    left: int | None = None

    def connect(self, database: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            database, isolation_level=None, check_same_thread=False, uri=True, factory=_Connection
        )
        connection.before = self._before
        return connection

    def _before(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == -1:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
                raise error


class _Connection(sqlite3.Connection):
    before: Callable[[], None]

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.before()
        return super().execute(*arguments)


class Unreadable(Files):
    """Files of which no byte can be read."""

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def read(store: ArtifactStore, key: str) -> bytes | None:
    found = store.find(key, "cpp.so", HERE)
    return None if found is None else store.read(found)


def check(folder: Path, keys: dict[str, bytes]) -> None:
    """Check that a store has these artifacts and no others, and that no file is left of what failed."""
    with ArtifactStore(folder) as store:
        assert {one.key: store.read(one) for one in store.all()} == keys
        store.put("last", "cpp.so", b"last", environment=HERE)
        assert store.verify() == []
        blobs = {path.parent.name + path.name for path in (folder / "blobs").glob("*/*")}
        assert blobs == {one.digest for one in store.all()}


def test_a_disk_that_fills_in_the_middle_of_a_blob(tmp_path: Path) -> None:
    files = FullDisk()
    with ArtifactStore(tmp_path, files=files) as store:
        store.put("k", "cpp.so", CONTENT, environment=HERE)
        for files.room in (0, 1, len(OTHER) - 1):
            with pytest.raises(WriteFailed) as raised:
                store.put("other", "cpp.so", OTHER, environment=HERE)
            assert raised.value.errno == errno.ENOSPC
        files.room = None
        assert read(store, "k") == CONTENT
        assert read(store, "other") is None
    check(tmp_path, {"k": CONTENT})


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT])
def test_any_operation_refused(code: int, tmp_path: Path) -> None:
    refused = []
    for at in range(20):
        files = Refusing(code)
        with ArtifactStore(tmp_path / str(at), files=files) as store:
            store.put("k", "cpp.so", CONTENT, environment=HERE)
            files.at = at
            errors = []
            try:
                store.put("k", "cpp.so", OTHER, environment=HERE)
            except WriteFailed as error:
                errors.append(error.errno)
            assert errors in ([], [code])
            assert read(store, "k") == (CONTENT if errors else OTHER)
            files.at = None
            store.put("k", "cpp.so", OTHER, environment=HERE)
        check(tmp_path / str(at), {"k": OTHER})
        if not files.refused:
            break
        refused += files.refused
    assert refused == ["remove", "make_folder", "create", "write", "rename", "remove", "remove", "remove"]


def test_a_blob_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path) as store:
        put = store.put("k", "cpp.so", CONTENT, environment=HERE)
    with ArtifactStore(tmp_path, files=Unreadable()) as store, pytest.raises(Damaged, match="cannot be read") as raised:
        store.read(put)
    assert raised.value.errno == errno.EIO
    assert put.digest[2:] in str(raised.value)


def test_an_index_on_a_full_disk(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path) as store:
        store.put("k", "cpp.so", CONTENT, environment=HERE)
    files = FullDatabase()
    files.is_full = True
    with ArtifactStore(tmp_path, files=files) as store:
        with pytest.raises(WriteFailed) as raised:
            store.record_job("job", [f"key {number:0100}" for number in range(2000)])
        assert raised.value.errno == errno.ENOSPC
        assert read(store, "k") == CONTENT
    check(tmp_path, {"k": CONTENT})


def test_any_statement_of_a_put_fails(tmp_path: Path) -> None:
    errors = []
    for at in range(60):
        files = FailingStatements()
        with ArtifactStore(tmp_path / str(at), files=files) as store:
            store.put("k", "cpp.so", CONTENT, environment=HERE)
            files.left = at
            try:
                store.put("other", "cpp.so", OTHER, environment=HERE)
            except WriteFailed as error:
                errors.append(error.errno)
            complete, files.left = files.left >= 0, None
            if complete:
                break
            assert read(store, "k") == CONTENT
            store.put("other", "cpp.so", OTHER, environment=HERE)
        check(tmp_path / str(at), {"k": CONTENT, "other": OTHER})
    assert len(errors) > 10
    assert set(errors) == {errno.EIO}
    assert complete, "a put has more statements than were tried"


def test_bundles_on_a_disk_that_refuses(tmp_path: Path) -> None:
    counting = Counting()
    with ArtifactStore(tmp_path / "from", files=counting) as store:
        store.put("k", "cpp.so", CONTENT, environment=HERE)
        counting.seen.clear()
        export(store, tmp_path / "whole")
    exported = len(counting.seen)
    assert exported > 2, counting.seen
    for at in range(exported):
        files = Refusing()
        with ArtifactStore(tmp_path / "from", files=files) as store:
            files.at = at
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                export(store, tmp_path / "bundle")
        assert not (tmp_path / "bundle").exists()
    for at in range(30):
        files = Refusing()
        with ArtifactStore(tmp_path / f"to {at}", files=files) as store:
            files.at = at
            try:
                import_(store, tmp_path / "whole")
            except (OSError, WarmstoreError):
                assert files.refused
            files.at = None
            import_(store, tmp_path / "whole")
        check(tmp_path / f"to {at}", {"k": CONTENT})
        if not files.refused:
            break
    assert at > 5


def test_an_interrupt_as_the_lock_is_taken_leaves_it_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path / "store")
    lock = store._index._file_lock
    acquire = lock.acquire

    def interrupted(*args: object, **options: object) -> object:
        taken = acquire(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(lock, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put("k", "cpp.so", b"code", environment=HERE)
    assert not lock.is_locked
    store.put("k", "cpp.so", b"code", environment=HERE)


@pytest.mark.forks
def test_killed_at_any_operation_while_an_artifact_is_replaced(tmp_path: Path) -> None:
    """One of both is there, also where the bytes of the new one were stored for another key before."""
    killed = 0
    for moment in ("before", "middle", "after"):
        for at in range(20):
            folder = tmp_path / f"{moment}{at}"
            with ArtifactStore(folder) as store:
                store.put("k", "cpp.so", CONTENT, environment=HERE)
                store.put("other", "cpp.so", OTHER, environment=HERE)

            def replace(say: Any, folder: Path = folder, at: int = at, moment: str = moment) -> None:
                with ArtifactStore(folder, files=Killing(at, moment)) as store:
                    store.put("k", "cpp.so", OTHER, environment=HERE)

            ended = in_child(replace)
            killed += ended.signal == signal.SIGKILL
            with ArtifactStore(folder) as store:
                assert read(store, "k") in ((OTHER,) if not ended.signal else (CONTENT, OTHER))
                check(folder, {"k": read(store, "k") or b"", "other": OTHER})
            if not ended.signal:
                break
    assert killed


def test_an_import_that_swaps_the_bytes_of_two_artifacts(tmp_path: Path) -> None:
    """What the first one had is not removed as unused: it is the second one's."""
    with ArtifactStore(tmp_path / "there") as there:
        there.put("a", "cpp.so", OTHER, environment=HERE)
        there.put("b", "cpp.so", CONTENT, environment=HERE)
        export(there, tmp_path / "bundle")
    with ArtifactStore(tmp_path / "here") as here:
        here.put("a", "cpp.so", CONTENT, environment=HERE)
        import_(here, tmp_path / "bundle")
        assert (read(here, "a"), read(here, "b")) == (OTHER, CONTENT)
    check(tmp_path / "here", {"a": OTHER, "b": CONTENT})
