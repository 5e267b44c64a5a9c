"""Control groups of Linux that limit the memory of some processes: files and shared memory in RAM count too.

Version 1 (https://docs.kernel.org/admin-guide/cgroup-v1/memory.html) and version 2
(https://docs.kernel.org/admin-guide/cgroup-v2.html#memory). Where a group has no more, the kernel kills one of its
processes, the largest as a rule.
"""

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmstore._native.cgroups import group_folders


@dataclass(frozen=True)
class MemoryCgroup:
    """A control group, and what its files are called."""

    folder: Path
    _limit: str
    _used: str
    _events: str

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator["MemoryCgroup"]:
        """Make a group beside or below the one of this process, and remove it when its processes have ended.

        Raises:
            OSError: none can be made here.
        """
        group = cls._named(f"warmstore-{uuid.uuid4().hex}")
        group.folder.mkdir()
        try:
            yield group
        finally:
            group.folder.rmdir()

    @classmethod
    def why_not(cls) -> str | None:
        """Why none can be made here, if none can."""
        try:
            with cls.made():
                return None
        except OSError as error:
            return f"no control groups of memory can be made: {error}"

    @classmethod
    def _named(cls, name: str) -> "MemoryCgroup":
        folders = group_folders("memory")
        for own in folders:
            if (own / "memory.limit_in_bytes").exists():
                return cls(own / name, "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        for folder in folders[1:] or folders:  # of version 2: one that has processes has no groups with limits below it
            if "memory" in (folder / "cgroup.subtree_control").read_text().split():
                return cls(folder / name, "memory.max", "memory.current", "memory.events")
        raise OSError("no group may limit memory here")

    def enter(self) -> None:
        """Move this process into the group; what it has already stays counted elsewhere."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self, more: int) -> None:
        """Let the group have so many bytes more than it has now, in pages, and none in swap."""
        for name, most in (("memory.swappiness", "0"), ("memory.swap.max", "0")):
            if (self.folder / name).exists():
                (self.folder / name).write_text(most)
        while True:
            used = int((self.folder / self._used).read_text())
            try:
                (self.folder / self._limit).write_text(str(used + more))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:  # version 1 refuses less than there is by now
                return

    @property
    def killed(self) -> int:
        """How many processes of the group the kernel has killed."""
        found = re.search(r"^oom_kill (\d+)$", (self.folder / self._events).read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
