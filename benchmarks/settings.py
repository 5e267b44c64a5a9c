"""What a benchmark is told: how large, and where its data may lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """`quick` asks for sizes that take seconds: they show that a benchmark works, not how fast anything is."""

    folder: Path
    quick: bool = False

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full
