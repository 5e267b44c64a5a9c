"""A small file system of its own: a disk that is really full."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_file_system(tmp_path: Path, size: str, *, may_be_in_use: bool = True) -> Iterator[Path]:
    """The folder of a tmpfs of a size such as "300k"; the test is skipped where none can be mounted.

    may_be_in_use: whether files in it may be open at the end.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", *(["-l"] if may_be_in_use else []), str(folder)], check=True)
