"""Calls that fail: each file operation of a story fails once, or from then on, with each error that it may have.

The story runs in a forked child, whose files fail at one call. An error must be an OSError or one of warmstore's. Then
the disk works again, and what is still open is closed: pending rows are committed. Two other processes judge what is
there, as after a power cut: what was acknowledged, and of the rest all or nothing.
"""

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.faults.children import in_child, well
from tests.faults.judging import Failures, judge_all
from tests.faults.power import Promise
from tests.faults.power_campaign import SHARED, Story, spare_syncs
from tests.faults.recording import SEAM, _Real, everywhere

from warmstore.errors import WarmstoreError, WriteFailed
from warmstore.storage import lifecycle
from warmstore.storage.files import Buffer

T = TypeVar("T")
SHORT = -1
"""A write that takes half of its bytes."""
ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EACCES, errno.EMFILE)
_BATCH = 24


@dataclass(frozen=True)
class Fault:
    """The call that fails, from 0 on, and how; `forever`: all calls after it do too."""

    at: int
    name: str
    code: int
    forever: bool

    def __str__(self) -> str:
        how = "a short write" if self.code == SHORT else errno.errorcode[self.code]
        return f"call {self.at} ({self.name}), {how}, {'for ever' if self.forever else 'once'}"


@dataclass
class IoResult:
    """What came of a story: its calls, `of` all faults those that were judged, and how some failed."""

    story: str
    calls: int = 0
    of: int = 0
    faults: int = 0
    failures: list[str] = field(default_factory=list)


class Failing(_Real):  # type: ignore[misc, valid-type]
    """Files below a folder that fail as told; without a fault they only count."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self._root = str(root)
        self._descriptors: set[int] = set()
        self._fault = fault
        self.seen: list[str] = []

    def before(self, name: str) -> bool:
        """Count a call, and raise if it fails. Returns whether a write is to be short."""
        at = len(self.seen)
        self.seen.append(name)
        fault = self._fault
        if fault is None or at < fault.at or (at > fault.at and not fault.forever):
            return False
        if fault.code == SHORT:
            return True
        raise OSError(fault.code, os.strerror(fault.code))

    def is_ours(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a call is about the story's own files."""
        first = arguments[2 if name == "map" else 0]
        return first in self._descriptors if isinstance(first, int) else str(first).startswith(self._root)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if descriptor in self._descriptors and self.before("write"):
            data = b"".join(buffers)
            buffers = [data[: max(1, len(data) // 2)]]
        return _Real.write(self, descriptor, buffers, offset)  # type: ignore[attr-defined, no-any-return]

    def close(self, descriptor: int) -> None:
        _Real.close(self, descriptor)  # type: ignore[attr-defined]
        if descriptor in self._descriptors:
            self._descriptors.discard(descriptor)
            self.before("close")  # a descriptor whose close fails is closed


def _failing(name: str) -> Callable[..., Any]:
    real = getattr(_Real, name)

    def called(self: Failing, *arguments: Any, **options: Any) -> Any:
        ours = self.is_ours(name, arguments)
        if ours:
            self.before(name)
        found = real(self, *arguments, **options)
        if ours and name in ("open", "create"):
            self._descriptors.add(found)
        return found

    return called


for _name in SEAM:
    if _name not in ("write", "close", "connect", "sync", "sync_folder"):
        setattr(Failing, _name, _failing(_name))


def _synced(name: str) -> Callable[..., Any]:
    def called(self: Failing, thing: Any) -> None:
        if self.is_ours(name, (thing,)):
            self.before(name)

    return called


for _name in ("sync", "sync_folder"):
    setattr(Failing, _name, _synced(_name))


class Promises:
    """Takes what a story says, in place of a recorder."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.last = Promise(0, 0)

    def promise(self, least: int, most: int) -> None:
        self.last = Promise(least, most)


def calls_of(story: Story, folder: Path) -> tuple[list[str], list[Any]]:
    """The calls of a story in which nothing fails, and the states of its data."""

    def count(say: Callable[[Any], None]) -> None:
        root = prepared(story, folder / "count")
        files = Failing(root)
        with everywhere(files):
            states = story.run(root, Promises())  # type: ignore[arg-type]
        say((files.seen, states))

    (found,) = well(in_child(count))
    shutil.rmtree(folder / "count")
    calls, states = found
    return calls, states


def faults_of(calls: list[str]) -> list[Fault]:
    """All faults of a story."""
    return [
        Fault(at, name, code, forever)
        for at, name in enumerate(calls)
        for code in (*ERRORS, *((SHORT,) if name == "write" else ()), *((errno.ENOMEM,) if name == "map" else ()))
        for forever in (False, True)
    ]


def campaign(story: Story, first: int, last: int, seed: int = 0) -> IoResult:
    """Judge the faults `first` to `last` of a story, in an order that the seed gives."""
    result = IoResult(story.name)
    with tempfile.TemporaryDirectory(prefix="warmstore-io-", dir=SHARED if SHARED.is_dir() else None) as name:
        folder = Path(name)
        calls, states = calls_of(story, folder)
        result.calls = len(calls)
        faults = faults_of(calls)
        result.of = len(faults)
        random.Random(seed).shuffle(faults)
        for batch in _batches(faults[first:last]):
            failures, _ = judge_each(story, folder, batch, _run, states, in_one_process=True)
            result.failures += [f"{story.name}, {fault}: {why}" for fault, why in failures]
            result.faults += len(batch)
    return result


def _batches(faults: list[Fault]) -> Iterator[list[Fault]]:
    for first in range(0, len(faults), _BATCH):
        yield faults[first : first + _BATCH]


def prepared(story: Story, folder: Path) -> Path:
    """A new folder with what is there before a story begins: a copy of what was made for the first one beside it."""
    spare_syncs()
    root, first = folder / "root", folder.parent / "prepared"
    if not first.is_dir():
        first.mkdir(parents=True)
        story.prepare(first)
    shutil.copytree(first, root)
    return root


def judge_each(
    story: Story,
    folder: Path,
    trials: Sequence[T],
    run: Callable[[Story, Path, T], tuple[int, int]],
    states: list[Any],
    *,
    in_one_process: bool,
) -> tuple[list[tuple[T, str]], int]:
    """Run a story with each of some trials in a child, and let two other processes judge what is there.

    Args:
        run: runs the story with one trial in a folder. Returns which of `states` may be there, the first and the last.
        in_one_process: one child runs one after the other, as a program that goes on after an error.

    Returns:
        The trials after which something was wrong, and what; and how many of the others ended the story early.
    """
    numbers = range(len(trials))
    left: dict[int, Any] = {}
    failures: Failures = []
    for together in [numbers] if in_one_process else [[number] for number in numbers]:
        ran, failed = judge_all(together, lambda number: run(story, folder / str(number), trials[number]), spare_syncs)
        left |= ran
        failures += failed
    allowed = {number: states[least : most + 1] for number, (least, most) in left.items()}
    failures += judge(story, folder, allowed)
    for number in numbers:
        shutil.rmtree(folder / str(number), ignore_errors=True)
    stopped = sum(least < len(states) - 1 for least, _ in left.values())
    return [(trials[number], why) for number, why in failures], stopped


def judge(story: Story, folder: Path, allowed: dict[int, list[Any]]) -> Failures:
    """Let two other processes open what is in the folders of some numbers.

    Args:
        allowed: by number, the states of the data that may be there.

    Returns:
        The numbers where something was wrong, and what.
    """

    def first(number: int) -> Any:
        return story.check(folder / str(number) / "root", allowed[number], thorough=False)

    expected, failures = judge_all(allowed, first, spare_syncs)
    _, later = judge_all(
        expected, lambda number: story.again(folder / str(number) / "root", expected[number]), spare_syncs
    )
    return failures + later


def _run(story: Story, folder: Path, fault: Fault) -> tuple[int, int]:
    """Run a story with a fault. Returns which states of its data may be there."""
    root = prepared(story, folder)
    return states_after(story, root, everywhere(Failing(root, fault)), _is_told)


def _is_told(error: Exception) -> bool:
    return isinstance(error, OSError | WarmstoreError)


def states_after(
    story: Story, root: Path, faults: AbstractContextManager[None], accepts: Callable[[Exception], bool]
) -> tuple[int, int]:
    """Run a story with faults; then, without them, close what is open.

    Args:
        accepts: whether an error may come of such a fault.

    Returns:
        The first and the last of the states that may be there, by their numbers.
    """
    inherited = {id(one): one for one in lifecycle._owners}  # of the parent, or of a story before
    promises = Promises()
    raised = None
    with faults:
        try:
            story.run(root, promises)  # type: ignore[arg-type]
        except Exception as error:
            if not accepts(error):
                raise
            raised = error  # its frames hold what is open
    pending = False
    for owner in [one for one in lifecycle._owners if id(one) not in inherited]:
        had_pending = bool(owner._has_pending)
        try:
            owner.close()
            pending |= had_pending
        except WriteFailed as error:  # it says what it is, as after two refusals and another writer's rows
            if "open the store again" not in str(error):
                raise
    del raised
    least, most = promises.last.least, promises.last.most
    # What was pending, the object that reported the error has committed when it was closed.
    least = min(least + 1, most) if pending and getattr(story, "commits_pending", False) else least
    return least, most
