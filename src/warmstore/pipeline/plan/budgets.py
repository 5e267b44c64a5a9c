"""Byte budgets of a plan, checked against the machine."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from warmstore.errors import BadBudget
from warmstore.pipeline.tiers.tier_folders import tier_folder
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.memory_limits import total_memory

_ZERO = re.compile(r"\s*0+\s*[A-Za-z]*\s*")


@dataclass(frozen=True)
class Budget:
    """Bytes for both tiers. counts_workers: whether the memory budget is also for workers and their batches."""

    memory: int
    disk: int

    @property
    def counts_workers(self) -> bool:
        return self.memory > 0


def memory_budget(memory: int | str | None) -> int:
    """Bytes for the memory tier and the workers; 0 for None.

    Raises:
        BadBudget: below zero, or more than the machine has, or a control group of this process allows.
    """
    wanted = _bytes("memory", memory)
    total = total_memory()
    if wanted > total:
        raise BadBudget(f"memory={memory!r} is more than this process may have ({total:,} bytes); ask for less")
    return wanted


def disk_budget(disk: int | str | None, folder: Path | None) -> int:
    """Bytes for the disk tier; 0 for None.

    Raises:
        BadBudget: below zero, more than the folder's device has, or a budget without a folder.
    """
    wanted = _bytes("disk", disk)
    if wanted and folder is None:
        raise BadBudget(f"disk={disk!r} without a folder; name one with folder=")
    if folder is not None and wanted:
        total = shutil.disk_usage(_existing(folder)).total
        if wanted > total:
            raise BadBudget(f"disk={disk!r} is more than the device of {folder} has ({total:,} bytes); ask for less")
    return wanted


def available_on_disk(folder: Path, wanted: int) -> int:
    """How many of `wanted` bytes are available: free ones, and those of the samples that the folder has already."""
    free = shutil.disk_usage(_existing(folder)).free
    return wanted if wanted <= free else min(wanted, free + folder_bytes(tier_folder(folder)))


def _bytes(name: str, size: int | float | str | None) -> int:
    if size is None or size == 0 or (isinstance(size, str) and _ZERO.fullmatch(size)):
        return 0
    try:
        return parse_size(int(size) if isinstance(size, float) and size.is_integer() else size)  # type: ignore[arg-type]
    except ValueError as error:
        below = str(size).lstrip().startswith("-")
        raise BadBudget(
            f"{name}={size!r} is below zero; pass 0 or None for no budget" if below else f"{name}: {error}"
        ) from None


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
