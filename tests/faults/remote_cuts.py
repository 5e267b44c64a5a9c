"""Stories of pulls and of copies of remote stores under power cuts. The remote is a folder that loses nothing."""

import tempfile
from pathlib import Path
from typing import Any

from tests.faults.cache_cuts import STEP, CacheStory, names, opened, values
from tests.faults.record_cuts import FIELDS, Ledger, check_store, value
from tests.faults.recording import Recorder

import warmstore as ws
from warmstore.errors import NotAStore

LAST = [0, 1, 2, 15, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
"""The records of the remote store in the end."""


class Origin:
    """A store that is pushed three times: new, with more log entries than a sector holds, and rebalanced."""

    def __init__(self, root: Path, path: Path | None = None) -> None:
        self.url = url_of(root)
        self._path = path or root.parent / "origin"

    def first(self) -> list[int]:
        with ws.RecordStore.create(self._path, FIELDS, chunk_size=1) as store:
            for number in range(3):
                store.append(value(number))
                store.flush()
        return self._push(list(range(3)))

    def second(self) -> list[int]:
        with ws.RecordStore.open(self._path, "a", chunk_size=1) as store:
            for number in range(3, 16):
                store.append(value(number))
                store.flush()
            store.delete(3)
        return self._push(LAST)

    def third(self) -> list[int]:
        with ws.RecordStore.open(self._path, "a") as store:
            store.rebalance(progress=False)
        return self._push(LAST)

    def finish(self) -> None:
        """Push again, as the next process does after one that was killed while it pushed."""
        try:
            with ws.RecordStore.open(self._path, "a") as store:
                store.push(self.url, progress=False)
        except NotAStore:
            self.first()

    def _push(self, numbers: list[int]) -> list[int]:
        with ws.RecordStore.open(self._path, "a") as store:
            store.push(self.url, progress=False)
            assert check_store(store) == numbers
        return numbers


def url_of(root: Path) -> str:
    return (root.parent / "remote").as_uri()


def at_remote(root: Path) -> list[int]:
    """The records of the remote store, which its origin has too."""
    with ws.RecordStore.open(root.parent / "origin") as store:
        return check_store(store)


class PullStory:
    """A clone, and two pulls into it."""

    name = "pulls"

    def prepare(self, root: Path) -> None:
        """Nothing is there before."""

    def settle(self, root: Path) -> None:
        Origin(root).finish()

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        origin = Origin(root)
        ledger = Ledger(recorder, None)
        for push in (origin.first, origin.second, origin.third):
            with ledger.step(push()):
                ws.RecordStore.clone(origin.url, root / "s", progress=False).close()
        return ledger.states

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> list[int]:
        try:
            with ws.RecordStore.open(root / "s") as store:
                numbers = check_store(store)
                assert numbers in allowed, f"{numbers} is there; one of {allowed} was promised"
                report = store.verify()
                assert not report.problems, report
        except NotAStore:
            assert None in allowed, f"there is no store; one of {allowed} was promised"
        with ws.RecordStore.clone(url_of(root), root / "s", progress=False) as store:
            numbers = check_store(store)
            assert numbers == at_remote(root)
            assert not store.verify().problems
        if not thorough:
            return numbers
        with ws.RecordStore.open(root / "s", "a") as store:
            store.append(value(20))
        return [*numbers, 20]

    def again(self, root: Path, expected: list[int]) -> None:
        with ws.RecordStore.open(root / "s") as store:
            assert check_store(store) == expected


class PushStory:
    """A store that is pushed. A state is what is at the remote. For faults and kills: the remote feels no power cut."""

    name = "pushes"

    def prepare(self, root: Path) -> None:
        """Nothing is there before."""

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        origin = Origin(root, root / "s")
        ledger = Ledger(recorder, None)
        for push, numbers in ((origin.first, LAST[:3]), (origin.second, LAST), (origin.third, LAST)):
            with ledger.step(numbers):
                push()
        return ledger.states

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> list[int]:
        numbers = at_url(root)
        assert numbers in allowed, f"{numbers} is at the remote; one of {allowed} was promised"
        try:
            store = ws.RecordStore.open(root / "s", "a")
        except NotAStore:
            assert numbers is None
            store = ws.RecordStore.create(root / "s", FIELDS)
        with store:
            store.append(value(20))
            store.push(url_of(root), progress=False)
            here = check_store(store)
        assert set(numbers or []) - {3} <= set(here)
        assert at_url(root) == here
        return here

    def again(self, root: Path, expected: list[int]) -> None:
        with ws.RecordStore.open(root / "s") as store:
            assert check_store(store) == expected == at_url(root)
            assert not store.verify().problems


def at_url(root: Path) -> list[int] | None:
    """The records at the remote, as a machine sees them that has none of them."""
    with tempfile.TemporaryDirectory(dir=root.parent) as copies:
        try:
            with ws.RecordStore.open(url_of(root), cache_dir=copies) as store:
                return check_store(store)
        except NotAStore:
            return None


class CopyStory:
    """A store that is opened at its URL, and of which blocks are copied, while it grows."""

    name = "copies"

    def prepare(self, root: Path) -> None:
        """Nothing is there before."""

    def settle(self, root: Path) -> None:
        Origin(root).finish()

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        origin = Origin(root)
        ledger = Ledger(recorder, None)
        for push in (origin.first, origin.second, origin.third):
            numbers = push()
            with ledger.step(None), ws.RecordStore.open(origin.url, cache_dir=root / "copies") as store:
                assert check_store(store) == numbers
        return ledger.states

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        with ws.RecordStore.open(url_of(root), cache_dir=root / "copies") as store:
            assert check_store(store) == at_remote(root)
            if thorough:
                assert not store.verify().problems
        return 0

    def again(self, root: Path, expected: int) -> None:
        self.check(root, [], thorough=True)


class AdoptStory(CacheStory):
    """A cache that pulls the samples of another host, twice, between its own."""

    def __init__(self) -> None:
        super().__init__(adoptions)

    def settle(self, root: Path) -> None:
        with opened(root.parent / "host") as other:
            ids = range(60, 60 + STEP)
            other.put_batch(names(ids), values(ids))
            other.push(url_of(root), progress=False)

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        with opened(root) as cache, opened(root.parent / "host") as other:
            cache.pull(url_of(root), progress=False)
            pushed = self._look(other, 0)
            assert pushed
            assert pushed <= self._look(cache, 0)
        return super().check(root, allowed, thorough=thorough)


def adoptions(root: Path, recorder: Recorder) -> list[Any]:
    done: set[int] = set()
    ledger = Ledger(recorder, [done])
    for turn in range(2):
        with opened(root.parent / "host") as other:
            ids = range(60 + turn * STEP, 60 + (turn + 1) * STEP)
            other.put_batch(names(ids), values(ids))
            other.push(url_of(root), progress=False)
        with opened(root) as cache:
            own = range(turn * STEP, (turn + 1) * STEP)
            cache.put_batch(names(own), values(own))
            done = done | set(own)
            with ledger.step([done]):
                cache.flush()
            done = done | set(ids)
            with ledger.step([done]):
                cache.pull(url_of(root), progress=False)
    return ledger.states


STORIES = [PullStory(), CopyStory(), AdoptStory()]
WITHOUT_POWER_CUTS = [PushStory()]
