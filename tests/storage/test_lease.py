"""Usage leases: a folder stays while anybody uses it, and goes when nobody does."""

import errno
import fcntl
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import in_child, well

from warmstore.storage import lease as lease_module
from warmstore.storage.files import Files
from warmstore.storage.folder_removal import is_hidden
from warmstore.storage.lease import UsageLease, is_locked, lock_path, remove_unused

pytestmark = pytest.mark.forks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "file").write_bytes(b"x")
    return made


def test_a_folder_with_a_lease_stays_until_the_last_is_released(folder: Path) -> None:
    one, other = UsageLease(folder), UsageLease(folder)
    assert not remove_unused(folder)
    one.release()
    one.release()
    assert not remove_unused(folder)
    other.release()
    assert (folder / "inner" / "file").exists()
    assert remove_unused(folder)
    assert not folder.exists()
    assert lock_path(folder).exists()


def test_the_last_one_removes_the_folder_and_the_lock(folder: Path) -> None:
    one, other = UsageLease(folder), UsageLease(folder)
    assert not one.release_and_remove()
    assert folder.exists()
    assert other.release_and_remove()
    assert not other.release_and_remove()
    assert list(folder.parent.iterdir()) == []


def test_a_folder_without_a_lock_goes_where_that_is_meant(folder: Path) -> None:
    assert not remove_unused(folder, without_lock=False)
    assert not lock_path(folder).exists()
    assert remove_unused(folder, lock_too=True)
    assert list(folder.parent.iterdir()) == []
    assert remove_unused(folder, without_lock=False)  # it is gone


def test_a_lease_needs_no_folder(folder: Path) -> None:
    path = folder.parent / "to come"
    lease = UsageLease(path)
    path.mkdir()
    assert not remove_unused(path)
    assert lease.release_and_remove()


def test_a_lease_touches_the_lock(folder: Path) -> None:
    UsageLease(folder).release()
    os.utime(lock_path(folder), (1, 1))
    UsageLease(folder).release()
    assert lock_path(folder).stat().st_mtime > 1


def test_the_mode_is_that_of_the_locks_file(folder: Path) -> None:
    UsageLease(folder, mode=0o600).release()
    assert lock_path(folder).stat().st_mode & 0o777 == 0o600


def test_a_link_is_no_lock(folder: Path, tmp_path: Path) -> None:
    lock_path(folder).symlink_to(tmp_path / "elsewhere")
    for ask in (UsageLease, remove_unused):
        with pytest.raises(OSError, match="symbolic links"):
            ask(folder)
    assert folder.exists()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("how", ["remove_unused", "release_and_remove"])
def test_a_removal_that_is_killed_leaves_no_half_of_a_folder(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "marker").write_bytes(b"x")

    def killed(path: Path, **options: Any) -> None:
        (path / "marker").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def remove(say: Any) -> None:
        lease = UsageLease(folder)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", killed)
            if how == "remove_unused":
                lease.release()
                remove_unused(folder, lock_too=True)
            lease.release_and_remove()

    assert in_child(remove).signal == signal.SIGKILL
    assert not folder.exists()
    (left,) = (path for path in folder.parent.iterdir() if path.is_dir())
    assert is_hidden(left.name)
    others = [folder.with_name(name) for name in (".mine.cleared.tmp", "cleared.tmp", ".x.0123456z.cleared.tmp")]
    for path in [folder, *others]:
        path.mkdir()
    assert remove_unused(folder, lock_too=True)
    assert {*folder.parent.iterdir()} == {*others}


def test_a_folder_goes_where_it_cannot_be_renamed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mount points, and folders in a layer of a container's image."""

    def refused(files: Files, old: Path, new: Path) -> None:
        raise OSError(errno.EXDEV, "it is in another layer")

    monkeypatch.setattr(Files, "rename", refused)
    assert remove_unused(folder, lock_too=True)
    assert list(folder.parent.iterdir()) == []


def test_a_link_to_a_folder_stays(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert not remove_unused(link, lock_too=True)
    assert (link / "inner" / "file").exists()


def test_a_process_that_is_killed_gives_up_its_lease(folder: Path) -> None:
    def die(say: Any) -> None:
        kept = UsageLease(folder)
        say(remove_unused(folder))
        os.kill(os.getpid(), signal.SIGKILL)
        kept.release()

    ended = in_child(die)
    assert ended.said == [False]
    assert ended.signal == signal.SIGKILL
    assert remove_unused(folder)


def test_a_forked_child_takes_nothing_from_its_parent(folder: Path) -> None:
    lease = UsageLease(folder)

    def child(say: Any) -> None:
        say(lease.release_and_remove())
        say(remove_unused(folder))

    assert well(in_child(child)) == [False, False]
    assert folder.exists()
    assert not remove_unused(folder)
    lease.release()


def test_a_lease_waits_for_a_removal_and_locks_the_new_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody removes folder and lock while the lease waits: the lock of a file that is gone keeps nobody out."""
    inside, waiting = threading.Event(), threading.Event()
    real = lease_module._remove
    got: list[UsageLease] = []

    def slowly(path: Path, *, lock_too: bool) -> bool:
        inside.set()
        waiting.wait()
        return real(path, lock_too=lock_too)

    def take() -> None:
        inside.wait()
        opened = lease_module._open

        def said(*arguments: Any) -> int:
            found = opened(*arguments)
            waiting.set()  # the old file is open, and removed before it can be locked
            return found

        monkeypatch.setattr(lease_module, "_open", said)
        got.append(UsageLease(folder))

    monkeypatch.setattr(lease_module, "_remove", slowly)
    taking = threading.Thread(target=take)
    taking.start()
    assert remove_unused(folder, lock_too=True)
    taking.join()
    assert lock_path(folder).exists()
    folder.mkdir()
    monkeypatch.undo()
    assert not remove_unused(folder)
    got[0].release()


def test_a_removal_leaves_a_folder_that_was_made_anew_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its open and its lock, another process removes folder and lock, and a third one makes both anew."""
    real, leases = lease_module.lock_alone, []

    def late(descriptor: int) -> bool:
        monkeypatch.undo()
        assert remove_unused(folder, lock_too=True)
        leases.append(UsageLease(folder))
        folder.mkdir()
        return real(descriptor)

    monkeypatch.setattr(lease_module, "lock_alone", late)
    assert not remove_unused(folder, lock_too=True)
    assert folder.exists()
    leases[0].release()


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("what", ["remove_unused", "is_locked", "release_and_remove"])
def test_a_child_that_is_forked_meanwhile_does_not_keep_the_lock(
    what: str, is_removed: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread removes a folder, and another one forks: a lock that is not given up is the child's, for its life."""
    lease = UsageLease(folder)
    if what != "release_and_remove":
        lease.release()
    children: list[int] = []
    lock_alone = lease_module.lock_alone

    def lock_and_fork(descriptor: int) -> bool:
        is_alone = lock_alone(descriptor)
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
        return is_alone

    with open(lock_path(folder)) as file:
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "lock_alone", lock_and_fork)
            if not is_removed:
                patch.setattr(lease_module, "_remove", lambda folder, lock_too: False)
            if what == "remove_unused":
                remove_unused(folder, lock_too=True)
            elif what == "is_locked":
                lease_module.is_locked(lock_path(folder))
            else:
                lease.release_and_remove()
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # what a new lease waits for
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    assert len(children) == 1


def test_a_lease_that_nobody_has_is_over(tmp_path: Path) -> None:
    """As of a constructor that an interrupt has ended."""
    lease = UsageLease(tmp_path / "folder")
    assert is_locked(lock_path(tmp_path / "folder"))
    del lease
    assert not is_locked(lock_path(tmp_path / "folder"))
