"""What a soak watches while it runs: memory, descriptors, threads, mappings and disk, from outside of its processes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from warmstore.storage.disk_usage import entries_below

MEMORY = ("uss", "pss", "rss")
COUNTED = ("descriptors", "threads", "mappings")
GROWTH = {"uss": 1.05, "descriptors": 1.1, "threads": 1.5, "mappings": 1.1, "bytes": 1.1, "files": 1.1}
"""How many times as much there may be in the end. Threads come and go with how slow the disk is."""
MOST_THREADS = 100
"""Of a process at any time: those for a slow disk (32), and for remotes."""
FOLDERS = ("store", "caches", "remote", "clone", "copies", "other")


def look(pid: int) -> dict[str, int]:
    """What a process has: bytes of its own (uss), its share of all (pss), and all that it maps (rss); and counts."""
    process = psutil.Process(pid)
    memory = process.memory_full_info()
    maps = Path(f"/proc/{pid}/maps")
    return {
        "uss": memory.uss,
        "pss": getattr(memory, "pss", 0),
        "rss": memory.rss,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "mappings": maps.read_text().count("\n") if maps.exists() else 0,
    }


class Watch:
    """Samples of all processes of a soak, in memory and as lines of JSON in a file."""

    def __init__(self, path: Path, folder: Path, processes: Mapping[str, int]) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._folder = folder
        self._processes = processes
        self.samples: list[dict[str, Any]] = []
        self.most_threads = 0  # of one process

    def sample(self, operations: int, seconds: float) -> None:
        each = {name: look(pid) for name, pid in self._processes.items()}
        self.most_threads = max(self.most_threads, *(one["threads"] for one in each.values()))
        disk = {name: _on_disk(self._folder / name) for name in FOLDERS}
        sums = {what: sum(one[what] for one in each.values()) for what in (*MEMORY, *COUNTED)}
        sums |= {what: sum(one[what] for one in disk.values()) for what in ("bytes", "files")}
        self.samples.append({"operations": operations, "seconds": round(seconds, 1), **sums})
        with self._path.open("a") as file:
            file.write(json.dumps({**self.samples[-1], "disk": disk, "processes": each}) + "\n")

    def around(self, operations: int, share: float = 0.1) -> dict[str, float]:
        """The means of the samples near a number of operations: what a soak has swings between two rebalances."""
        near = [sample for sample in self.samples if abs(sample["operations"] - operations) <= share * operations]
        return {what: sum(sample[what] for sample in near) / len(near) for what in near[0]} if near else {}


def _on_disk(folder: Path) -> dict[str, int]:
    sizes = [512 * status.st_blocks for _, status in entries_below(folder)]
    return {"bytes": sum(sizes), "files": len(sizes)}


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """What has grown by more than it may, between two times at which nothing else has changed."""
    return [
        f"{what} grew from {before[what]:,.0f} to {after[what]:,.0f}"
        for what, most in GROWTH.items()
        if after[what] > most * before[what]
    ]
