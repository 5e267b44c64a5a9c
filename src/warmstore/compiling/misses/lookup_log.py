"""The lookups of a process. The store's folder has those of the last run of each job, with reasons for misses."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time
from typing import Any

from warmstore.storage.atomic import replace_file
from warmstore.storage.files import PLAIN, Files, read_whole

_SHOWN = 3  # reasons in a line
_LONGEST = 120  # letters of one


@dataclass(frozen=True)
class Lookup:
    """One lookup of a compiler.

    Attributes:
        key: Where it would lie, relative to a live folder; the same on every machine.
        hit: Whether the store had it.
        reasons: Why what the store has for that key may not be used; nothing when it has nothing.
        changed: What is different from the nearest that was compiled before, as in "input 0: shape (8, 16) -> (4, 16)",
            "torch 2.12.0 -> 2.13.0"; nothing when it was found, and when nothing is near.
        waited: Seconds spent waiting for another process that was making it.
        left: Whether it was left to torch.compile: nothing is kept of it, for these reasons.
    """

    key: str
    hit: bool
    reasons: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waited: float = 0.0
    left: bool = False

    @property
    def why(self) -> str:
        """The reasons for a miss in one line; empty for a hit."""
        return "" if self.hit else "; ".join([*self.reasons, *self.changed]) or "nobody had compiled it here"


def write(folder: Path, files: Files, job: str, lookups: Sequence[Lookup], kept: int) -> None:
    """Write the lookups of this process, in place of those of the last run of the same job and rank.

    Raises:
        OSError: it cannot be written.
    """
    run = {"job": job, "time": time(), "pid": os.getpid(), "kept": kept, "lookups": [asdict(one) for one in lookups]}
    path = folder / "runs" / f"{_file_name(job)}.{_rank()}.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, json.dumps(run).encode(), durable=False, files=files)


def read(folder: Path, job: str | None = None) -> Iterator[tuple[str, list[Lookup]]]:
    """The name of each job, or of one, and what its last run looked up. What cannot be read is left out."""
    for path in sorted((folder / "runs").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            run = json.loads(read_whole(PLAIN, path))
            if job is None or run["job"] == job:
                yield run["job"], [_lookup(one) for one in run["lookups"]]


def summary(lookups: Sequence[Lookup]) -> str:
    """In one line, how many of the lookups of a run found what they looked for, and why the others did not."""
    missed = [one for one in lookups if not one.hit]
    said = f"{len(lookups) - len(missed)} of {len(lookups)} compiled things found"
    if left := sum(one.left for one in missed):
        said += f", {left} left to torch.compile"
    reasons = list(dict.fromkeys(textwrap.shorten(one.why, _LONGEST, placeholder=" ...") for one in missed))
    more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
    return f"{said}: {'; '.join(reasons[:_SHOWN])}{more}" if missed else said


def _lookup(said: dict[str, Any]) -> Lookup:
    reasons, changed = (tuple(map(str, said.get(name, ()))) for name in ("reasons", "changed"))
    return Lookup(str(said["key"]), bool(said["hit"]), reasons, changed, left=bool(said.get("left")))


def _file_name(job: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job)[:100] or "_"


def _rank() -> str:
    """Which of the processes of a job this is, as torchrun says."""
    rank = os.environ.get("RANK", "")
    return rank if rank.isdecimal() else "0"
