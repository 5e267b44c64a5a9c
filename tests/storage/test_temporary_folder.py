"""Temporary folders, and what is left of those of killed processes."""

import errno
import gc
import os
import signal
from pathlib import Path

import pytest
from tests.faults.children import in_child, well

from warmstore.storage import temporary_folder
from warmstore.storage.temporary_folder import TemporaryFolder

pytestmark = pytest.mark.forks


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave(parent: Path) -> None:
    """A process that is killed amid its work."""

    def work(say: object) -> None:
        folder = TemporaryFolder("work", parent)
        (folder.path / "data").write_bytes(b"data")
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(work)


def test_it_is_removed(tmp_path: Path) -> None:
    with TemporaryFolder("work", tmp_path) as folder:
        (folder / "below").mkdir()
        (folder / "below" / "data").write_bytes(b"data")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not names(tmp_path)
    kept = TemporaryFolder("work", tmp_path)
    assert kept.path.is_dir()
    del kept
    gc.collect()
    assert not names(tmp_path)


def test_a_forked_child_does_not_remove_it(tmp_path: Path) -> None:
    kept = TemporaryFolder("work", tmp_path)
    well(in_child(lambda say: kept.remove()))
    assert kept.path.is_dir()


def test_what_killed_processes_left(tmp_path: Path) -> None:
    with TemporaryFolder("work", tmp_path) as kept:
        leave(tmp_path)
        assert len(names(tmp_path)) == 4
        with TemporaryFolder("other", tmp_path) as folder:
            assert names(tmp_path) == sorted([kept.name, kept.name + ".lock", folder.name, folder.name + ".lock"])


def test_folders_of_other_hosts_and_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of another host may be unseen here."""
    monkeypatch.setattr(temporary_folder, "host_name", lambda: "elsewhere")
    leave(tmp_path)
    monkeypatch.undo()
    own = TemporaryFolder("work", tmp_path)
    other = tmp_path / own.path.name.replace("work-", "work-of-mine-")
    other.mkdir()
    (tmp_path / (other.name + ".lock")).touch()
    before = [name for name in names(tmp_path) if not name.startswith(own.path.name)]
    assert len(before) == 4
    own.remove()
    with TemporaryFolder("work", tmp_path) as folder:
        assert [name for name in names(tmp_path) if not name.startswith(folder.name)] == before


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    with TemporaryFolder("work", tmp_path) as folder:
        (folder / "data").write_bytes(b"data")
        assert names(tmp_path) == [folder.name]
    assert not names(tmp_path)
