"""Power cuts in stories: each state that a cut may leave is made in a folder, opened, and judged by real processes.

A story runs once, with files that record. Then, for each of its moments, the states of the disk are made: all of them
where at most three operations are not synced and there are few, else as many as are wanted, drawn with a seed. States
of equal bytes and promise are judged once. The judge is a forked child, so a crash of the interpreter or a hang shows;
a second child opens what the first has left.
"""

import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.faults.children import in_child, well
from tests.faults.judging import judge_all
from tests.faults.power import Disk, Operation, Promise, Tree, digest
from tests.faults.recording import Recorder, everywhere

from warmstore.records.index import key_index
from warmstore.replicate import block_cache
from warmstore.storage import files

EXHAUSTIVE = 3
"""Operations without a sync up to which all states are made."""
_LIMIT = 3000
"""States of one moment beyond which they are drawn."""
_REPEATED = 60
"""Draws without a new state after which a moment has no more."""
_BATCH = 40
"""States that one child judges."""
_THOROUGH = 8
"""One state of so many is judged thoroughly."""
SHARED = Path("/dev/shm")


class Story(Protocol):
    """What a program does, and what must be found after a power cut."""

    name: str

    def prepare(self, root: Path) -> None:
        """Make what is on the disk before the story begins."""

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        """Do it once, and say by `recorder.promise` what was acknowledged. Returns the states that promises number."""

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> Any:
        """Open, read, verify and change what a cut has left, in one of some states. Returns what `again` must find.

        thorough: change it in all ways, where else one is enough.
        """

    def again(self, root: Path, expected: Any) -> None:
        """Open it in another process."""


@dataclass
class Result:
    """What came of a story: how many operations and states.

    exhausted: moments of which all states were judged. failures: how it failed, and where the state is kept.
    """

    story: str
    operations: int = 0
    exhausted: int = 0
    states: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Recording:
    """What a story did. operations: the first `start` made what was there before. states: of its data, by number."""

    operations: list[Operation]
    start: int
    states: list[Any]


@dataclass(frozen=True)
class _State:
    cut: int
    promise: Promise
    tree: Tree


def record(story: Story, folder: Path) -> Recording:
    """Run a story in a child, and check that the record tells everything that it did."""

    def tell(say: Callable[[Any], None]) -> None:
        spare_syncs()
        root = folder / "root"
        root.mkdir()
        story.prepare(root)
        recorder = Recorder(root)
        with everywhere(recorder):
            states = story.run(root, recorder)
            recorder.finish()
        disk = Disk()
        for operation in recorder.operations:
            disk.apply(operation)
        kept = {
            str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
            for path in root.rglob("*")
            if not path.name.endswith(("-wal", "-shm", ".sqlite"))
        }
        told = {path: content for path, content in disk.complete().items() if not path.endswith(".sqlite")}
        wrong = sorted(path for path in kept.keys() | told.keys() if kept.get(path, 0) != told.get(path, 0))
        assert not wrong, f"the record of {story.name} does not tell what happened to {wrong}"
        say(Recording(recorder.operations, recorder.start, states))

    (found,) = well(in_child(tell))
    shutil.rmtree(folder / "root")
    assert isinstance(found, Recording)
    return found


def states(recording: Recording, count: int, seed: int, tally: Result) -> Iterator[_State]:
    """At most `count` different states of a story, evenly from all of its moments."""
    seen: set[tuple[bytes, int, int]] = set()
    left = [(cut, disk, _trees(disk, random.Random(f"{seed} {cut}"), tally)) for cut, disk in _moments(recording)]
    while left:
        for moment in list(left):
            cut, disk, trees = moment
            tree = next(trees, None)
            if tree is None:
                left.remove(moment)
                continue
            key = digest(tree), disk.promise.least, disk.promise.most
            if key not in seen:
                seen.add(key)
                yield _State(cut, disk.promise, tree)
                if len(seen) >= count:
                    return


def _trees(disk: Disk, rng: random.Random, tally: Result) -> Iterator[Tree]:
    """All states of a moment in any order, or as many different ones as are drawn."""
    every = disk.every(_LIMIT) if disk.operations <= EXHAUSTIVE else None
    if every is not None:
        rng.shuffle(every)
        yield from every
        tally.exhausted += 1
        return
    known: set[bytes] = set()
    repeated = 0
    while repeated < _REPEATED:
        tree = disk.any(rng)
        key = digest(tree)
        repeated = repeated + 1 if key in known else 0
        if not repeated:
            known.add(key)
            yield tree


def _moments(recording: Recording) -> Iterator[tuple[int, Disk]]:
    disk = Disk()
    for cut, operation in enumerate(recording.operations):
        disk.apply(operation)
        if cut + 1 >= recording.start:
            yield cut, disk.copy()


def campaign(
    story: Story, count: int, seed: int = 0, kept: Path | None = None, done: Callable[[int], None] = lambda _: None
) -> Result:
    """Judge about `count` states of a story. `kept`: where those that fail are kept, to be looked at."""
    result = Result(story.name)
    parent = SHARED if SHARED.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="warmstore-power-", dir=parent) as name:
        folder = Path(name)
        try:
            recording = record(story, folder)
        except AssertionError as error:  # a campaign goes on with the next story
            result.failures.append(f"{story.name} cannot be recorded: {error}")
            return result
        result.operations = len(recording.operations) - recording.start
        for batch in _batches(states(recording, count, seed, result)):
            for at, why in _judge(story, folder, batch, recording.states):
                text = f"{story.name}, cut after operation {batch[at].cut} of {len(recording.operations)}: {why}"
                if kept is not None:
                    target = kept / f"{story.name}-{digest(batch[at].tree).hex()[:8]}"
                    make(batch[at].tree, target)
                    text += f" ({target})"
                result.failures.append(text)
            result.states += len(batch)
            done(len(batch))
    return result


def _batches(found: Iterator[_State]) -> Iterator[list[_State]]:
    while batch := list(itertools.islice(found, _BATCH)):
        yield batch


def _judge(story: Story, folder: Path, batch: list[_State], states: list[Any]) -> list[tuple[int, str]]:
    """Judge some states. Returns the numbers of those that failed, and why."""
    roots = [folder / f"state{number}" for number in range(len(batch))]

    def first(number: int) -> Any:
        make(batch[number].tree, roots[number])
        promise = batch[number].promise
        allowed = states[promise.least : promise.most + 1]
        return story.check(roots[number], allowed, thorough=not number % _THOROUGH)

    expected, failures = judge_all(range(len(batch)), first, after_reboot)
    failures += judge_all(expected, lambda number: story.again(roots[number], expected[number]), after_reboot)[1]
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)
    return failures


def after_reboot() -> None:
    """Make this process one of the machine's next start, which need not wait for the disk."""
    key_index.boot_id = block_cache.boot_id = lambda: b"after the power cut"  # type: ignore[attr-defined]
    spare_syncs()


def spare_syncs() -> None:
    """Leave out the waits for the disk."""
    import os

    def sync_folder(self: files.Files, folder: Path) -> None:
        os.close(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))

    files._datasync = os.fstat
    files.Files.sync_folder = sync_folder  # type: ignore[method-assign]


def make(tree: Tree, root: Path) -> None:
    """Make a state in a new folder."""
    root.mkdir(parents=True, exist_ok=True)
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content)
