"""The lookups of compilers. The store's folder has those of the last run of each job, with the reasons for misses."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time
from typing import Any

from warmstore.storage import checked_json
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import PLAIN, Files, modified_at, read_whole

FOLDER = "runs"
"""The folder of lookups in that of the store."""

_MOST = 512  # logs that are kept: jobs may have a name of their own for each run
_SHOWN = 3  # reasons in a summary
_LONGEST = 120  # characters of a reason in a summary


@dataclass(frozen=True)
class Lookup:
    """One lookup of a compiler.

    Attributes:
        key: The path that the compiler looked for, relative to the scratch directory.
        hit: Whether the store had a usable artifact.
        reasons: Why stored artifacts of the key are not usable.
        changed: On a miss, the differences from the nearest key in the store, such as "torch 2.12.0 -> 2.13.0" or
            "input 0: shape (8, 16) -> (4, 16)".
        waited: Seconds spent waiting for another process that compiled the same.
        left: Whether the program is left to torch.compile for these reasons, and nothing is stored.
    """

    key: str
    hit: bool
    reasons: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waited: float = 0.0
    left: bool = False

    @property
    def why(self) -> str:
        """The reasons for a miss in one line; "" for a hit."""
        return "" if self.hit else "; ".join([*self.reasons, *self.changed]) or "it was not compiled here before"


def write(folder: Path, files: Files, job: str, lookups: Sequence[Lookup], kept: int) -> None:
    """Write the lookups of this process over those of the last run of the same job and rank, and remove the oldest logs
    beyond 512. Raises OSError."""
    run = {"job": job, "time": time(), "pid": os.getpid(), "kept": kept, "lookups": list(map(asdict, lookups))}
    rank = os.environ.get("RANK", "")  # as torchrun sets it
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job)[:100] or "_"
    path = folder / FOLDER / f"{name}.{rank if rank.isdecimal() else 0}.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, checked_json.to_bytes(run), durable=False, files=files)
    logs = list(path.parent.glob("*.json"))
    if len(logs) > _MOST:
        for old in sorted(logs, key=modified_at)[:-_MOST]:
            files.remove(old)


def read(folder: Path, job: str | None = None) -> Iterator[tuple[str, list[Lookup]]]:
    """The name of each job, or of one, and the lookups of its last run. Unreadable files are skipped."""
    for path in sorted((folder / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            run = checked_json.from_bytes(read_whole(PLAIN, path))
            if job is None or run["job"] == job:
                yield run["job"], list(map(_lookup, run["lookups"]))


def summary(lookups: Sequence[Lookup]) -> str:
    """The number of hits of a run and the reasons for its misses, in one line."""
    missed = [lookup for lookup in lookups if not lookup.hit]
    text = f"{len(lookups) - len(missed)} of {len(lookups)} lookups hit"
    if left := sum(lookup.left for lookup in missed):
        text += f", {left} left to torch.compile"
    reasons = list(dict.fromkeys(textwrap.shorten(lookup.why, _LONGEST, placeholder=" ...") for lookup in missed))
    more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
    return f"{text}: {'; '.join(reasons[:_SHOWN])}{more}" if missed else text


def _lookup(record: dict[str, Any]) -> Lookup:
    reasons, changed = (tuple(map(str, record.get(name, ()))) for name in ("reasons", "changed"))
    return Lookup(str(record["key"]), bool(record["hit"]), reasons, changed, left=bool(record.get("left")))
