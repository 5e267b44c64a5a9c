"""Bytes on a disk, in whole blocks."""

import os
import shutil
from pathlib import Path

from warmstore.storage.disk_usage import BLOCK, entries_below, folder_bytes, on_disk


def test_sizes_are_rounded_up_to_blocks() -> None:
    assert [on_disk(size) for size in (0, 1, BLOCK, BLOCK + 1)] == [0, BLOCK, BLOCK, 2 * BLOCK]


def test_folders_count_as_a_block_and_files_as_theirs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"x")
    (tmp_path / "a" / "none").touch()
    assert folder_bytes(tmp_path) == 3 * BLOCK
    assert folder_bytes(tmp_path / "gone") == 0
    assert folder_bytes(tmp_path / "a" / "one") == 0


def test_links_are_listed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = {os.path.relpath(path, tmp_path): status.st_size for path, status in entries_below(tmp_path)}
    assert set(found) == {"a", "a/file", "link"}
    assert found["a/file"] == 100


def test_what_goes_meanwhile_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    found = []
    for path, _ in entries_below(tmp_path):
        found.append(os.path.relpath(path, tmp_path))
        if len(found) == 2:  # both folders are known, and neither was looked into
            shutil.rmtree(tmp_path / "a")
    assert sorted(found) == ["a", "b", "b/file"]
    shutil.rmtree(tmp_path)
    assert list(entries_below(tmp_path)) == []
