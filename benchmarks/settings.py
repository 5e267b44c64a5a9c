"""What a benchmark is told: how large, and where its data may lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """`quick` asks for sizes that take seconds: they show that a benchmark works, not how fast anything is."""

    folder: Path
    quick: bool = False

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def break_in_disk(self, size: int) -> None:
        """Write so many bytes and remove them: a virtual disk may be slow where nothing was ever written.

        Without it, whose blocks are new decides the ranking (the very same flush: 12 ms on new ones, 2.5 on used).
        """
        block = os.urandom(1 << 24)
        path = self.folder / "break-in"
        with open(path, "wb", buffering=0) as file:
            for _ in range(0, size, len(block)):
                file.write(block)
            os.fsync(file.fileno())
        path.unlink()
