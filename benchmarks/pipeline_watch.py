"""Bytes of the tiers, and of the memory of a process and its workers, sampled while they run.

A process of its own does it: a thread would be there when workers are forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
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
        self._command = [sys.executable, "-m", "benchmarks.pipeline_watch", str(os.getpid()), str(folder or "")]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self

    def __exit__(self, *exception: object) -> None:
        told, _ = self._process.communicate(b"\n")  # workers that were forked meanwhile hold the pipe open
        self.memory, self.disk, self.own = json.loads(told)


def tier_bytes(folder: Path) -> int:
    """Bytes of the tiers in a plan's folder."""
    return sum(map(_nbytes, folder.glob("warmstore-samples")))


def _nbytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _own(process: psutil.Process) -> int:
    total = 0
    for one in (process, *process.children(recursive=True)):
        if one.pid == os.getpid():
            continue
        with contextlib.suppress(OSError, psutil.Error):
            for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    total += int(line.split()[1]) << 10
    return total


def main(pid: int, folder: Path | None) -> None:
    """Sample until a line comes, then print the largest numbers."""
    process, tiers = psutil.Process(pid), f"warmstore-{os.getuid()}-*"
    memory = disk = own = 0
    print(flush=True)
    ended = False
    while not ended:
        memory = max([memory, *map(_nbytes, _SHARED.glob(tiers))])
        disk = max(disk, 0 if folder is None else tier_bytes(folder))
        own = max(own, _own(process))
        ended = bool(select.select([sys.stdin], [], [], _EVERY)[0])
    print(json.dumps([memory, disk, own]))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None)
