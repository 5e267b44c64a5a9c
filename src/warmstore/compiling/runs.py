"""What a process looked up, and the last run of each job in a store's folder, for whoever asks why it missed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time
from typing import Any


@dataclass(frozen=True)
class Lookup:
    """One thing a compiler looked for.

    Attributes:
        key: Where it would lie, relative to a live folder; the same on every machine.
        hit: Whether the store had it.
        reasons: Why what the store has for that key may not be used; nothing when it has nothing.
        changed: What is different from the nearest that was compiled before, as in "input 0: shape (8, 16) -> (4, 16)",
            "torch 2.12.0 -> 2.13.0"; nothing when it was found, and when nothing is near.
        waited: Seconds spent waiting for another process that was making it.
    """

    key: str
    hit: bool
    reasons: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waited: float = 0.0

    @property
    def why(self) -> str:
        """In one line, why it was not there; empty when it was."""
        return "" if self.hit else "; ".join([*self.reasons, *self.changed]) or "nobody had compiled it here"


def write(folder: Path, job: str, lookups: Sequence[Lookup], kept: int) -> None:
    """Remember a run of this process, in place of the last one of the same job and rank.

    Raises:
        OSError: it cannot be written.
    """
    run = {"job": job, "time": time(), "pid": os.getpid(), "kept": kept, "lookups": [asdict(one) for one in lookups]}
    path = folder / "runs" / f"{_file_name(job)}.{_rank()}.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    whole.write_text(json.dumps(run))
    whole.replace(path)


def read(folder: Path, job: str | None = None) -> Iterator[tuple[str, list[Lookup]]]:
    """The name of each job, or of one, and what its last run looked up. What cannot be read is left out."""
    for path in sorted((folder / "runs").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            run = json.loads(path.read_text())
            if job is None or run["job"] == job:
                yield run["job"], [_lookup(one) for one in run["lookups"]]


def _lookup(said: dict[str, Any]) -> Lookup:
    reasons, changed = (tuple(map(str, said.get(name, ()))) for name in ("reasons", "changed"))
    return Lookup(str(said["key"]), bool(said["hit"]), reasons, changed)


def _file_name(job: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job)[:100] or "_"


def _rank() -> str:
    """Which of the processes of a job this is, as torchrun says."""
    rank = os.environ.get("RANK", "")
    return rank if rank.isdecimal() else "0"
