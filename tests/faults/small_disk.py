"""A small file system of its own: a disk that is really full."""

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_CLONE_NEWNS = 0x20000


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


def shrink_shared_memory(size: str) -> None:
    """Give this process and its children a /dev/shm of a size such as "1m", and leave all others theirs.

    Raises:
        OSError: it may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no folder can be mounted here")
    for command in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/dev/shm"]):
        subprocess.run(["mount", *command], check=True)
