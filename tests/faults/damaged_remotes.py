"""Remotes to damage, which are folders here, and local copies of a sound remote.

What is read of a damaged remote is exact, or the damaged part is named and left out. A copy is exact: what is damaged
in it comes again from the remote, or is an error.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.compiling.hosts import host
from tests.faults.cache_cuts import names, opened, values
from tests.faults.children import in_child, well
from tests.faults.corruption_campaign import EXACT, REPORTED, Damage, Lost, Subject, Wrong
from tests.faults.record_cuts import FIELDS, check_store, columns, value

import warmstore as ws
from warmstore.errors import Damaged, WarmstoreError

RECORDS = list(range(9))
IDS = list(range(6))


def in_a_child(work: Callable[[], None]) -> None:
    """Do something that starts threads, in a child that ends with them: this process goes on to fork."""
    well(in_child(lambda say: work()))


def objects(remote: Path) -> dict[str, Path]:
    """The objects of a remote by their kind and number: most names are hashes."""
    found: dict[str, Path] = {}
    for folder in sorted({path.parent for path in remote.rglob("*") if path.is_file()}):
        for path in sorted(folder.iterdir(), key=lambda path: (path.suffix, path.stat().st_size, path.name)):
            if path.is_file():
                kind = f"{folder.relative_to(remote).parts[0]}{path.suffix if len(path.suffix) < 8 else ''}"
                found[f"{kind} {sum(name.startswith(kind) for name in found)}"] = path
    return found


def push_records(root: Path, *, other: bool) -> None:
    """A record store of two pushes, with two chunks and an update."""
    shift = 20 if other else 0
    with ws.RecordStore.create(root / "origin", FIELDS, chunk_size=1) as store:
        for first in (0, 4):
            store.extend(columns([shift + number for number in RECORDS[first : first + 4 + first // 4]]))
            store.flush()
            store.update([first], columns([shift + RECORDS[first]]))
            store.push((root / "remote").as_uri(), progress=False)


class RemoteStoreSubject:
    """A record store at a remote, which is opened there, and cloned."""

    name = "remote store"

    def make(self, root: Path, *, other: bool) -> None:
        in_a_child(lambda: push_records(root, other=other))

    def files(self, root: Path) -> dict[str, Path]:
        return objects(root / "remote")

    def judge(self, root: Path, damage: Damage) -> str:
        ways: list[Callable[[], Any]] = [
            lambda: ws.RecordStore.open(self._url(root), cache_dir=root / "copies"),
            lambda: ws.RecordStore.clone(self._url(root), root / "clone", progress=False),
        ]
        found = set()
        for way in ways:
            try:
                with way() as store:
                    numbers = check_store(store)
            except WarmstoreError:
                found.add(REPORTED)
                continue
            except AssertionError as error:
                raise Wrong(f"a record differs: {error}") from None
            # A remote whose last head is gone is what it was before; only who has seen that head can tell.
            earlier = damage.how == "removed" and damage.file.startswith("heads")
            if numbers != RECORDS and not (earlier and numbers == RECORDS[:4]):
                raise Wrong(f"{numbers} are read")
            found.add(EXACT)
        return REPORTED if REPORTED in found else EXACT

    def _url(self, root: Path) -> str:
        return (root / "remote").as_uri()


class CopySubject:
    """The local copy of a record store at a sound remote, all of whose blocks were fetched."""

    name = "copy"

    def make(self, root: Path, *, other: bool) -> None:
        def work() -> None:
            push_records(root, other=other)
            with self._opened(root) as store:
                check_store(store)

        in_a_child(work)

    def _opened(self, root: Path) -> ws.RecordStore:
        return ws.RecordStore.open((root / "remote").as_uri(), cache_dir=root / "copies")

    def files(self, root: Path) -> dict[str, Path]:
        (copy,) = (path.parent for path in (root / "copies").rglob("store.json"))
        return {str(path.relative_to(copy)): path for path in sorted(copy.rglob("*")) if path.is_file()}

    def judge(self, root: Path, damage: Damage) -> str:
        for attempt in range(2):
            try:
                with self._opened(root) as store:
                    if (numbers := check_store(store)) != RECORDS:
                        raise Wrong(f"{numbers} are read")
            except WarmstoreError:
                if not attempt:
                    continue
                return REPORTED
            except Wrong:
                raise
            except AssertionError as error:
                raise Wrong(f"a record differs: {error}") from None
        return EXACT


class PartsSubject:
    """A feature cache at a remote that two hosts have filled. A damaged part is left out, and missed."""

    name = "remote cache"

    def make(self, root: Path, *, other: bool) -> None:
        def work() -> None:
            for turn in range(2):
                with opened(root / f"host{turn}") as cache:
                    ids = IDS[3 * turn : 3 * turn + 3]
                    cache.put_batch(names(ids), values(ids, version=int(other)))
                    cache.push((root / "remote").as_uri(), progress=False)

        in_a_child(work)

    def files(self, root: Path) -> dict[str, Path]:
        return objects(root / "remote")

    def judge(self, root: Path, damage: Damage) -> str:
        misses: set[int] = set()
        with opened(root / "here") as cache:
            try:
                cache.pull((root / "remote").as_uri(), progress=False)
            except (Damaged, WarmstoreError):
                misses.update(IDS)
            misses |= self._missed(cache)
        with ws.FeatureCache((root / "remote").as_uri(), "c", cache_dir=root / "copies") as cache:
            misses |= self._missed(cache)
            cache.put_batch(names([90]), values([90]))
            if cache.get_batch(names([90]))[1].size:
                raise Lost("a sample of this host is missed")
        return REPORTED if misses else EXACT

    def _missed(self, cache: ws.FeatureCache) -> set[int]:
        found, missing = cache.get_batch(names(IDS))
        present = [number for number in IDS if number not in missing.tolist()]
        if present and not (found == values(present)).all():
            raise Wrong(f"the samples {present} are {found}")
        return set(missing.tolist())


class SignedSubject:
    """The artifacts of a compile cache at a remote. Nothing damaged comes in; what is missed is compiled."""

    name = "remote artifacts"

    def make(self, root: Path, *, other: bool) -> None:
        def work() -> None:
            for turn in range(2):
                with host(root / f"host{turn}", root / "remote") as one:
                    one.make(*(number + 10 * other for number in (2 * turn, 2 * turn + 1)))

        in_a_child(work)

    def files(self, root: Path) -> dict[str, Path]:
        return objects(root / "remote")

    def judge(self, root: Path, damage: Damage) -> str:
        os.environ["WARMSTORE_REGISTRY"] = "0"
        with host(root / "here", root / "remote") as one:
            try:
                missed = [number for number in range(4) if not one.has(number)]
            except AssertionError as error:
                raise Wrong(str(error)) from None
            one.make(*missed)
        return REPORTED if missed else EXACT


class NoteSubject:
    """What a store's folder notes of pushes and pulls: a damaged note is none."""

    name = "notes"

    def make(self, root: Path, *, other: bool) -> None:
        in_a_child(lambda: push_records(root, other=other))

    def files(self, root: Path) -> dict[str, Path]:
        return {"remote.json": root / "origin" / "remote.json"}

    def judge(self, root: Path, damage: Damage) -> str:
        with ws.RecordStore.open(root / "origin", "a") as store:
            store.append(value(9))
        with ws.RecordStore.open(root / "origin", "a") as store:
            store.push((root / "remote").as_uri(), progress=False)
        with ws.RecordStore.clone((root / "remote").as_uri(), root / "clone", progress=False) as store:
            if check_store(store) != [*RECORDS, 9]:
                raise Lost("a push is not in the clone")
        return EXACT


SUBJECTS: list[Subject] = [RemoteStoreSubject(), CopySubject(), PartsSubject(), SignedSubject(), NoteSubject()]
