"""What a soak watches: memory, descriptors, threads, mappings and disk, from outside of its processes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from warmstore.storage.disk_usage import entries_below

MEMORY = ("uss", "pss", "rss")
COUNTED = ("descriptors", "threads", "mappings")
GROWTH = {"uss": 1.05, "descriptors": 1.1, "threads": 1.5, "mappings": 1.1, "bytes": 1.1, "files": 1.1}
"""How many times as much there may be in the end."""
MOST_THREADS = 100
"""Of a process at any time: those for a slow disk (32), and for remotes."""
MOST_HEADS = 100
"""In the logs of two remotes at rest. Each removes what was replaced 32 at a time, so `files` is without them."""
FOLDERS = ("store", "caches", "remote", "clone", "copies", "other")


def mappings_of(maps: str) -> int:
    """How many mappings there are in `/proc/PID/maps`, without stacks, which are the mappings next to a guard page.

    The C library keeps the stacks of ended threads, 40 MB at most, for the next ones.
    """
    found, before = 0, ""
    for line in maps.splitlines():
        place, access = line.split(" ")[:2]
        if access == "---p":
            before = place.split("-")[1]  # a stack may begin here
        else:
            found += place.split("-")[0] != before
            before = ""
    return found


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
        "mappings": mappings_of(maps.read_text()) if maps.exists() else 0,
    }


class Watch:
    """Samples of all processes of a soak, in memory and as lines of JSON in a file."""

    def __init__(self, path: Path, folder: Path, processes: Mapping[str, int]) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._folder = folder
        self._processes = processes
        self.samples: list[dict[str, Any]] = []
        self.rests: list[dict[str, Any]] = []
        self.most_threads = 0  # of one process

    def sample(self, operations: int, seconds: float) -> None:
        """Note what there is while the processes work."""
        self.samples.append(self._noted(operations, seconds))

    def sample_rest(self, operations: int, seconds: float) -> None:
        """Note what there is while they rest."""
        self.rests.append(self._noted(operations, seconds))

    def _noted(self, operations: int, seconds: float) -> dict[str, Any]:
        each = {name: look(pid) for name, pid in self._processes.items()}
        self.most_threads = max(self.most_threads, *(one["threads"] for one in each.values()))
        disk = {name: _on_disk(self._folder / name) for name in FOLDERS}
        sums = {what: sum(one[what] for one in each.values()) for what in (*MEMORY, *COUNTED)}
        sums |= {what: sum(one[what] for one in disk.values()) for what in ("bytes", "files", "heads")}
        noted = {"operations": operations, "seconds": round(seconds, 1), **sums}
        with self._path.open("a") as file:
            file.write(json.dumps({**noted, "disk": disk, "processes": each}) + "\n")
        return noted

    def around(self, operations: int, share: float = 0.1) -> dict[str, float]:
        """The means of the samples near a number of operations: what a soak has swings between two rebalances."""
        near = [sample for sample in self.samples if abs(sample["operations"] - operations) <= share * operations]
        return {what: sum(sample[what] for sample in near) / len(near) for what in near[0]} if near else {}


def _on_disk(folder: Path) -> dict[str, int]:
    found = [("/heads/" in path, 512 * status.st_blocks) for path, status in entries_below(folder)]
    heads = sum(is_head for is_head, _ in found)
    return {"bytes": sum(size for _, size in found), "files": len(found) - heads, "heads": heads}


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """What has grown by more than it may, between two times at which nothing else has changed."""
    return [
        f"{what} grew from {before[what]:,.0f} to {after[what]:,.0f}"
        for what, most in GROWTH.items()
        if what in before and after[what] > most * before[what]
    ]
