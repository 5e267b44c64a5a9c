"""Bytes that files and folders take on a disk, counted in whole blocks, while other processes add and remove files."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

BLOCK = 4096
"""Bytes of a block. A folder counts as one block, a file as the blocks that its content fills."""


def on_disk(nbytes: int) -> int:
    """Round bytes up to whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


def entries_below(folder: Path | str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and status of every file, link and folder below a folder. Links are not followed. Entries that are
    removed meanwhile are skipped, `folder` itself included."""
    stack = [os.fspath(folder)]
    while stack:
        with contextlib.suppress(FileNotFoundError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield entry.path, status
                    if stat.S_ISDIR(status.st_mode):
                        stack.append(entry.path)


def folder_bytes(folder: Path) -> int:
    """Bytes of a folder with everything in it, in whole blocks; 0 for a missing folder."""
    if not folder.is_dir():
        return 0
    return BLOCK + sum(
        BLOCK if stat.S_ISDIR(status.st_mode) else on_disk(status.st_size) for _, status in entries_below(folder)
    )
