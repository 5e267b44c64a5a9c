"""Bytes of the tiers, and of the memory of a process and its workers, sampled while they run."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Self

import psutil

_EVERY = 0.2  # seconds
_SHARED = Path("/dev/shm")


class Watch:
    """Samples as long as its `with` lasts.

    memory, disk: the most bytes seen of any tier in memory, and of the folder's tier. own: the most anonymous memory of
    this process and its children, each shared page counted once (Linux).
    """

    def __init__(self, folder: Path | None) -> None:
        self.memory = self.disk = self.own = 0
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        tiers = f"warmstore-{os.getuid()}-*"
        while True:
            self.memory = max([self.memory, *map(_nbytes, _SHARED.glob(tiers))])
            self.disk = max(self.disk, 0 if self._folder is None else tier_bytes(self._folder))
            self.own = max(self.own, _own())
            if self._ended.wait(_EVERY):
                return


def tier_bytes(folder: Path) -> int:
    """Bytes of the tiers in a plan's folder."""
    return sum(map(_nbytes, folder.glob("pipeline-*")))


def _nbytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _own() -> int:
    total = 0
    process = psutil.Process()
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(OSError, psutil.Error):
            for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    total += int(line.split()[1]) << 10
    return total
