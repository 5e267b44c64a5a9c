"""How much memory this process may have: what the machine has, and what control groups, as of containers, allow."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from warmstore._native.cgroups import group_folders

_FILES = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
_PAGE_CACHE = ("active_file", "inactive_file"), ("total_active_file", "total_inactive_file")
"""By version of the groups, 2 and 1. The kernel gives page cache up where memory is short, and no files in RAM."""


def total_memory() -> int:
    """Bytes of memory that the machine has, or the least limit of a control group of this process."""
    total = int(psutil.virtual_memory().total)
    return min([total, *(limit for limit, _ in _groups(total))])


def available_memory() -> int:
    """Bytes that can be allocated while others lose nothing but page cache: of the machine, and in its groups."""
    machine = psutil.virtual_memory()
    return max(0, min([int(machine.available), *(limit - used for limit, used in _groups(int(machine.total)))]))


def _groups(total: int) -> Iterator[tuple[int, int]]:
    """The limit of each control group that is below `total`, and the bytes that it uses without its page cache."""
    for folder in group_folders("memory"):
        for (limit, used), names in zip(_FILES, _PAGE_CACHE, strict=True):
            with contextlib.suppress(OSError, ValueError):  # of the other version, or "max"
                most = int((folder / limit).read_text())
                if most < total:
                    yield most, int((folder / used).read_text()) - _page_cache(folder, names)


def _page_cache(folder: Path, names: tuple[str, str]) -> int:
    lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(count) for name, count in lines if name in names)
