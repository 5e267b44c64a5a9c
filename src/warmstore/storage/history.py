"""The history of a cache: small records of its use by each run, one JSON line each, in a file beside its data.

A record is appended by one write, without a lock, so any number of processes may write. A record whose checksum does
not match is skipped. A history never makes a program fail: a folder that cannot be written, a full disk or a damaged
file loses records and nothing else.
"""

import contextlib
import itertools
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from warmstore.storage.atomic import replace_file
from warmstore.storage.checked_json import is_damaged_name
from warmstore.storage.files import PLAIN, Files, is_at, is_read_only, opened

_log = logging.getLogger("warmstore")

NAME = "warmstore-history.jsonl"
"""The name of the file."""

VERSION = 1
"""Of the records. Readers skip records of other versions."""

LARGEST = 1 << 20
"""Bytes of a file from which on the older half of its records is dropped."""

_CHECKSUM = "checksum"
_DIGITS = 16
_LONGEST_TEXT = 1000  # characters of a text in a record
_SHARE = 64  # a cache with a limit spends 1/64 of it on its history


def is_recorded() -> bool:
    """Whether histories are written: WARMSTORE_HISTORY is not 0."""
    return os.environ.get("WARMSTORE_HISTORY", "").strip() != "0"


class History:
    """Appends records to the history in a folder. Safe to use from several threads and processes; can be pickled.

    Args:
        folder: The folder of the cache. Nothing is written while it does not exist.
        kind: What has the history: "features", "pipelines", "compiled", ...
        limit: The limit of the cache in bytes, None for no limit. The history takes a small part of it.
        files: The file operations.
    """

    def __init__(self, folder: Path, kind: str, *, limit: int | None = None, files: Files = PLAIN) -> None:
        self.path = folder / NAME
        self._kind = kind
        self._largest = LARGEST if limit is None else min(LARGEST, limit // _SHARE)
        self._files = files
        self._has_complained = False

    def move(self, folder: Path) -> None:
        """Write into another folder from now on."""
        self.path = folder / NAME

    def begin_epoch(self, name: str = "") -> int:
        """Begin an epoch of this process. Returns its number, from 0. Objects of one name in one folder count on, such
        as a cache that is opened once more."""
        number = self.coming_epoch(name)
        _run().epochs[self.path, name] = number
        return number

    def coming_epoch(self, name: str = "") -> int:
        """The number of the epoch that begins next."""
        return _run().epochs.get((self.path, name), -1) + 1

    def append(self, event: str, **figures: Any) -> None:
        """Append a record. Figures that are None are left out, and long texts are cut. Raises nothing."""
        if not is_recorded():
            return
        run = _run()
        record = {
            "v": VERSION,
            "kind": self._kind,
            "event": event,
            "at": round(time.time(), 3),
            "run": run.id,
            "n": next(run.numbers),
            "host": run.host,
            "pid": run.pid,
            "program": run.program,
            "rank": run.rank,
        }
        try:
            self._append(record | {name: _short(value) for name, value in figures.items()})
        except FileNotFoundError:
            pass  # the cache was not created, or was removed
        except (OSError, ValueError, TypeError) as error:
            is_expected = isinstance(error, OSError) and is_read_only(error)
            if not self._has_complained and not is_expected:
                self._has_complained = True
                _log.info("the history %s cannot be written, which changes nothing else: %s", self.path, error)

    def _append(self, record: dict[str, Any]) -> None:
        given = {name: value for name, value in record.items() if value is not None}
        line = _sealed(json.dumps(given, separators=(",", ":"), allow_nan=False).encode()) + b"\n"
        for _ in range(3):
            descriptor = self._files.open_appending(self.path)
            try:
                size = self._files.size(descriptor)
                torn = size > 0 and self._files.read(descriptor, 1, size - 1) != b"\n"
                self._files.append(descriptor, b"\n" + line if torn else line)
                # Another process may have replaced the file meanwhile. The reader skips a record that it finds twice.
                if is_at(descriptor, self.path):
                    if size + len(line) > self._largest:
                        self._drop_older_half(descriptor)
                    return
            finally:
                self._files.close(descriptor)

    def _drop_older_half(self, descriptor: int) -> None:
        """Replace the file by its newer half, unless another process does."""
        if not self._files.lock(descriptor, wait=False):
            return
        try:
            if not is_at(descriptor, self.path):
                return
            content = self._files.read(descriptor, self._files.size(descriptor), 0)
            start = content.find(b"\n", len(content) - self._largest // 2) + 1
            replace_file(self.path, content[start:], durable=False, files=self._files)
            # Records that were appended to the old file since it was read.
            if rest := self._files.read(descriptor, self._files.size(descriptor), len(content)):
                self._copy(rest)
        finally:
            self._files.unlock(descriptor)

    def _copy(self, lines: bytes) -> None:
        descriptor = self._files.open_appending(self.path)
        try:
            self._files.append(descriptor, lines)
        finally:
            self._files.close(descriptor)


class Pace:
    """When the next record of a run is due: the first ones soon, later ones at growing intervals, so that a run of any
    length writes few records. Intervals are in seconds.

    Args:
        soon: How many records may be written without a pause between them.
        least: The pause between later ones.
        longest: The longest interval after which a record is due in the middle of an epoch.
    """

    def __init__(
        self,
        *,
        soon: int = 16,
        least: float = 1.0,
        longest: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._soon = soon
        self._least = least
        self._longest = longest
        self._interval = 15.0
        self._clock = clock
        self._last = clock()
        self.due = self._last + self._interval
        """The time from which on `is_due`, for callers that have looked at the clock."""

    def may_end(self) -> bool:
        """Whether a record may be written because something has ended."""
        return self._soon > 0 or self._clock() - self._last >= self._least

    def is_due(self) -> bool:
        """Whether a record should be written although nothing has ended."""
        return self._clock() >= self.due

    def wrote(self) -> None:
        """A record was written."""
        if self.is_due():
            self._interval = min(self._longest, self._interval * 2)
        self._soon -= 1
        self._last = self._clock()
        self.due = self._last + self._interval


def read_history(path: Path, files: Files = PLAIN) -> Iterator[dict[str, Any]]:
    """The records of a history, given its file or its folder, in the order in which they were appended.

    Lines that are torn, damaged, no records of this version, or there twice are skipped. A missing file has none.
    """
    if path.name != NAME:
        path = path / NAME
    try:
        with opened(path, files) as descriptor:
            content = files.read(descriptor, files.size(descriptor), 0)
    except OSError:
        return
    seen = set()
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line, parse_constant=_refuse)
            if (
                isinstance(record, dict)
                and _unsealed(record, line)
                and record.get("v") == VERSION
                and _is_whole(record)
            ):
                number = record["run"], record["n"]
                if number not in seen:
                    seen.add(number)
                    yield record


def _sealed(line: bytes) -> bytes:
    """A record with its checksum as its last entry."""
    return b'%s,"%s":"%s"}' % (line[:-1], _CHECKSUM.encode(), xxhash.xxh3_64_hexdigest(line).encode())


def _unsealed(record: dict[str, Any], line: bytes) -> bool:
    """Take the checksum from a record. Returns whether it matches; records of earlier versions have none."""
    checksum = record.pop(_CHECKSUM, None)
    if checksum is None:
        return not is_damaged_name(record, _DIGITS)
    return bool(xxhash.xxh3_64_hexdigest(line.rpartition(b",")[0] + b"}") == checksum)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no figure")


def _is_whole(record: dict[str, Any]) -> bool:
    """Whether a record has what `append` gives every record."""
    texts = (record.get(name) for name in ("kind", "event", "run"))
    numbers = (record.get(name) for name in ("at", "n"))
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in numbers
    )


class _Run:
    """This process, as its records name it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.id = f"{int(time.time()):x}-{pid}-{os.urandom(3).hex()}"
        self.numbers = itertools.count()
        self.epochs: dict[tuple[Path, str], int] = {}  # the last one, by history and name
        self.host = socket.gethostname()
        self.program = _program()
        rank = os.environ.get("RANK", "")
        self.rank = int(rank) if rank.isdecimal() else None


_runs: dict[int, _Run] = {}  # by process: a forked child is a run of its own


def _run() -> _Run:
    pid = os.getpid()
    return _runs.get(pid) or _runs.setdefault(pid, _Run(pid))


def _program() -> str:
    """The name of the script, or of the module of `python -m`."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")[:_LONGEST_TEXT]
    return Path(sys.argv[0] if getattr(sys, "argv", None) else "").name[:_LONGEST_TEXT] or "interactive"


def _short(value: Any) -> Any:
    """A figure as it is recorded: floats with 6 digits behind the point, texts of a limited length."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()  # names of files may hold lone surrogates
        return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 4]} ..."
    if isinstance(value, dict):
        return {_short(str(name)): _short(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return value
