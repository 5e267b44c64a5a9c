"""Replacing a file: the old content or the new one, and no draft left behind by an error."""

import errno
import signal
from pathlib import Path

import pytest
from tests.faults.children import in_child
from tests.faults.seam import Counting, FullDisk, Killing, Refusing

from warmstore.storage.atomic import draft_of, replace_file

pytestmark = pytest.mark.forks

OLD, NEW = b"old", b"new " * 1000


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_replaces_or_makes_a_file(tmp_path: Path, there: bool, durable: bool) -> None:
    path = tmp_path / "file"
    if there:
        path.write_bytes(OLD)
    replace_file(path, NEW, durable=durable)
    assert path.read_bytes() == NEW
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("durable", "operations"),
    [(False, ["create", "write", "rename"]), (True, ["create", "write", "sync", "rename", "sync_folder"])],
)
def test_a_durable_one_is_synced_before_the_rename_and_its_folder_after(
    tmp_path: Path, durable: bool, operations: list[str]
) -> None:
    files = Counting()
    replace_file(tmp_path / "file", NEW, durable=durable, files=files)
    assert files.seen == operations


@pytest.mark.parametrize("at", range(4))
def test_an_error_leaves_the_old_content_and_no_draft(tmp_path: Path, at: int) -> None:
    path, files = tmp_path / "file", Refusing()
    path.write_bytes(OLD)
    files.at = at
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(path, NEW, durable=True, files=files)
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        replace_file(path, NEW, durable=True, files=FullDisk(10))
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["file"]


def test_a_draft_replaces_the_file_where_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with draft_of(path) as draft:
        draft.write_bytes(NEW)
        assert draft.parent == tmp_path
        assert path.read_bytes() == OLD
    assert path.read_bytes() == NEW
    assert names(tmp_path) == ["file"]


def test_a_block_that_raises_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)

    def fail() -> None:
        with draft_of(path, draft=tmp_path / "file.partial") as draft:
            draft.write_bytes(NEW)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("moment", ["before", "middle", "after"])
@pytest.mark.parametrize("at", range(5))
def test_a_killed_process_leaves_the_old_content_or_the_new_one(tmp_path: Path, at: int, moment: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    ended = in_child(lambda say: replace_file(path, NEW, durable=True, files=Killing(at, moment)))
    assert ended.signal == signal.SIGKILL
    renamed = at > 3 or (at == 3 and moment != "before")
    assert path.read_bytes() == (NEW if renamed else OLD)
