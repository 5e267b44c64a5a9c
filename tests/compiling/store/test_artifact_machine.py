"""An artifact store against a dict: random operations of two processes' handles, kills, damage, bundles and copies.

An artifact that was acknowledged is found with its bytes, unless it was removed, evicted for another or damaged. No
other bytes are ever read, and the folder stays within its limit.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.compiling.environments import HERE, elsewhere
from tests.faults.children import in_child
from tests.faults.seam import Killing
from tests.slow import either
from tests.state_machines import run_machine

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.bundles import export, import_
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadBundle, Damaged, NoArtifact, TooLarge
from warmstore.storage.disk_usage import allocated_bytes

pytestmark = pytest.mark.forks

ENVIRONMENTS = [HERE, elsewhere(torch="2.12.0")]
KINDS = ["cpp.so", "fx_graph"]
SMALL, LARGE = 8 << 20, 1 << 30

Name = tuple[str, str, int]
"""The key, kind and number of the environment of an artifact."""

names = st.tuples(st.sampled_from(["a", "b/é"]), st.sampled_from(KINDS), st.integers(0, 1))


def content(number: int) -> bytes:
    """The bytes of a version of an artifact: some are alike, and some take several blocks."""
    return b"%d " % (number % 7) * (1, 10, 300_000, 900_000)[number % 4]


class ArtifactMachine(RuleBasedStateMachine):
    """`states`: what each artifact may be: one content or None for certain ones, more after a kill or damage."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "store"
        self.states: dict[Name, set[bytes | None]] = {}
        self.jobs: dict[str, set[str]] = {}
        self.bundles: list[tuple[Path, dict[Name, bytes], dict[str, set[str]]]] = []
        self.seen: list[Artifact] = []
        self.stores: list[ArtifactStore] = []
        self.is_clean = True  # no process was killed and nothing damaged since `verify`

    @initialize(limit=st.sampled_from([SMALL, LARGE]), eviction=st.sampled_from(["lru", "lfu", "size", "age"]))
    def open(self, limit: int, eviction: str) -> None:
        self.limit, self.eviction = limit, eviction
        self.stores = [self.opened(), self.opened()]

    def opened(self) -> ArtifactStore:
        return ArtifactStore(self.path, self.limit, self.eviction)

    @property
    def evicts(self) -> bool:
        return self.limit == SMALL

    def allowed(self, name: Name) -> set[bytes | None]:
        """What a lookup may give: bytes, or None for a miss."""
        return self.states.get(name, {None}) | ({None} if self.evicts else set())

    def look(self, store: ArtifactStore, name: Name) -> bytes | None:
        key, kind, number = name
        found = [one for one in store.all(kind=kind) if (one.key, one.environment) == (key, ENVIRONMENTS[number])]
        assert len(found) <= 1
        try:
            data = store.read(found[0]) if found else None
        except (Damaged, NoArtifact):
            data = None
        assert data in self.allowed(name), (name, data and data[:10])
        return data

    def there(self, store: ArtifactStore, job: str | None = None, kind: str | None = None) -> dict[Name, bytes]:
        """What is found of a job and kind."""
        keys = None if job is None else self.jobs.get(job, set())
        chosen = [name for name in self.states if kind in (None, name[1]) and (keys is None or name[0] in keys)]
        return {name: data for name in chosen if (data := self.look(store, name)) is not None}

    # Using it as compilers do

    @rule(
        which=st.integers(0, 1),
        some=st.lists(st.tuples(names, st.integers(0, 30)), min_size=1, max_size=4),
        job=st.sampled_from([None, "train", "eval"]),
    )
    def put(self, which: int, some: list[tuple[Name, int]], job: str | None) -> None:
        for name, number in some:
            self.put_one(which, name, number, job)

    def put_one(self, which: int, name: Name, number: int, job: str | None) -> None:
        key, kind, at = name
        try:
            put = self.stores[which].put(key, kind, content(number), environment=ENVIRONMENTS[at], job=job)
        except TooLarge:
            assert self.evicts  # beside what is reserved
            return
        self.states[name] = {content(number)}
        if job is not None:
            self.jobs.setdefault(job, set()).add(key)
        assert self.look(self.stores[1 - which], name) == content(number)
        self.seen.append(put)

    @rule(which=st.integers(0, 1), name=names)
    def find(self, which: int, name: Name) -> None:
        """What is found by the rules of compilers is the artifact of this environment, if there is one."""
        key, kind, number = name
        found = self.stores[which].find(key, kind, ENVIRONMENTS[number])
        data = self.look(self.stores[which], name)
        if data is not None:
            assert found is not None
            assert self.stores[which].read(found) == data

    @rule(which=st.integers(0, 1))
    def use(self, which: int) -> None:
        self.stores[which].used(self.stores[which].all()[::2])

    @rule(which=st.integers(0, 1), job=st.sampled_from(["train", "other"]), keys=st.sets(st.sampled_from(["a", "z"])))
    def record(self, which: int, job: str, keys: set[str]) -> None:
        self.stores[which].record_job(job, keys)
        if keys:
            self.jobs.setdefault(job, set()).update(keys)

    @rule(
        which=st.integers(0, 1), name=st.sampled_from(["live 1", "live 2"]), size=st.sampled_from([0, 5000, 4_000_000])
    )
    def reserve(self, which: int, name: str, size: int) -> None:
        try:
            self.stores[which].reserve(name, size)
        except TooLarge:
            assert self.evicts

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = self.opened()

    @rule()
    def copy(self) -> None:
        """A copy of the folder has what the store has."""
        shutil.copytree(self.path, self.folder / "copy")
        with ArtifactStore(self.folder / "copy", self.limit, self.eviction) as store:
            assert self.there(store) == self.there(self.stores[0])
        shutil.rmtree(self.folder / "copy")

    # Removing

    @rule(which=st.integers(0, 1), job=st.sampled_from([None, "train"]), kind=st.sampled_from([None, *KINDS]))
    def clear(self, which: int, job: str | None, kind: str | None) -> None:
        gone = self.there(self.stores[which], job, kind)
        assert self.stores[which].clear(job=job, kind=kind) == len(gone)
        keys = None if job is None else self.jobs.get(job, set())
        for name in list(self.states):
            if kind in (None, name[1]) and (keys is None or name[0] in keys):
                self.states[name] = {None}
        if kind is None:
            self.jobs = {} if job is None else {name: keys for name, keys in self.jobs.items() if name != job}
        elif job is not None:
            self.jobs[job] = set(self.stores[which].job(job))

    @precondition(lambda self: self.seen)
    @rule(which=st.integers(0, 1), at=st.integers(0, 100))
    def remove(self, which: int, at: int) -> None:
        """What was read before may have been replaced or used meanwhile: then it stays."""
        one = self.seen[at % len(self.seen)]
        is_same = any(
            (now.key, now.kind, now.environment, now.digest, now.created, now.last_used)
            == (one.key, one.kind, one.environment, one.digest, one.created, one.last_used)
            for now in self.stores[which].all()
        )
        assert self.stores[which].remove([one]) == is_same
        if is_same:
            self.states[one.key, one.kind, ENVIRONMENTS.index(one.environment)] = {None}

    # Bundles

    @rule(which=st.integers(0, 1), job=st.sampled_from([None, "train"]))
    def export(self, which: int, job: str | None) -> None:
        path = self.folder / f"bundle{len(self.bundles)}"
        there = self.there(self.stores[which], job)
        try:
            info = export(self.stores[which], path, jobs=None if job is None else [job])
        except NoArtifact:
            assert not there
            return
        assert info.artifacts == len(there)
        jobs = self.jobs if job is None else {job: self.jobs[job]}
        self.bundles.append((path, there, {name: set(keys) for name, keys in jobs.items()}))

    @precondition(lambda self: self.bundles)
    @rule(which=st.integers(0, 1), at=st.integers(0, 1 << 20), flip=st.booleans())
    def take(self, which: int, at: int, flip: bool) -> None:
        """Of a bundle with a flipped bit nothing is taken, or all of it where the bit means nothing."""
        path, there, jobs = self.bundles[at % len(self.bundles)]
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= flip << at % 8
        (self.folder / "taken").write_bytes(data)
        try:
            import_(self.stores[which], self.folder / "taken")
        except TooLarge:
            assert self.evicts
            return
        except BadBundle:
            assert flip
            return
        for name, content_ in there.items():
            self.states[name] = {content_}
        for job, keys in jobs.items():
            self.jobs.setdefault(job, set()).update(keys)

    # What goes wrong

    @rule(name=names, number=st.integers(0, 30), at=st.integers(0, 8), moment=st.sampled_from(["before", "middle"]))
    def killed_amid_a_put(self, name: Name, number: int, at: int, moment: str) -> None:
        def work(say: Any) -> None:
            with ArtifactStore(self.path, self.limit, self.eviction, files=Killing(at, moment)) as store:
                store.put(name[0], name[1], content(number), environment=ENVIRONMENTS[name[2]])
                say("stored")

        ended = in_child(work)
        self.is_clean &= not ended.signal
        if ended.said:
            self.states[name] = {content(number)}
        elif ended.signal:
            self.states[name] = self.states.get(name, {None}) | {content(number)}
        else:
            assert self.evicts
            assert "TooLarge" in ended.error

    @rule(at=st.integers(0, 100), how=st.sampled_from(["flip", "cut", "remove"]))
    def damage_a_blob(self, at: int, how: str) -> None:
        blobs = [path for path in sorted(self.path.glob("blobs/*/*")) if path.stat().st_size]
        if not blobs:
            return
        path = blobs[at % len(blobs)]
        data = bytearray(path.read_bytes())
        if how == "remove":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[: len(data) // 2])
        else:
            data[at % len(data)] ^= 1
            path.write_bytes(data)
        self.is_clean = False
        digest = path.parent.name + path.name
        for state in self.states.values():
            if any(data is not None and blake3(data).hexdigest() == digest for data in state):
                state.add(None)

    @rule(at=st.integers(0, 1 << 20), how=st.sampled_from(["flip", "cut", "remove", "zero"]))
    def damage_the_index(self, at: int, how: str) -> None:
        for store in self.stores:
            store.close()
        index = self.path / "index.sqlite"
        data = bytearray(index.read_bytes())
        if how == "remove":
            index.unlink()
        elif how == "cut":
            index.write_bytes(data[: at % len(data)])
        elif how == "zero":
            first = at % len(data) & ~511
            data[first : first + 512] = bytes(len(data[first : first + 512]))
            index.write_bytes(data)
        else:
            data[at % len(data)] ^= 1 << at % 8
            index.write_bytes(data)
        for state in self.states.values():
            state.add(None)
        self.stores = [self.opened(), self.opened()]
        self.stores[0].verify()
        self.is_clean = True
        self.jobs = {job: set(self.stores[0].job(job)) for job in self.stores[0].stats().jobs}

    @rule(which=st.integers(0, 1))
    def verify(self, which: int) -> None:
        self.stores[which].verify()
        there = self.there(self.stores[which])
        assert not self.stores[which].verify()
        self.is_clean = True
        assert self.there(self.stores[1 - which]) == there

    # What always holds

    @invariant()
    def jobs_are_known(self) -> None:
        for store in self.stores:
            for job, keys in self.jobs.items():
                assert set(store.job(job)) == keys

    @invariant()
    def no_bytes_are_left(self) -> None:
        """Of artifacts that were replaced, removed or evicted."""
        if self.stores and self.is_clean:
            blobs = {path.parent.name + path.name for path in self.path.glob("blobs/*/*")}
            assert blobs == {artifact.digest for artifact in self.stores[0].all()}

    @invariant()
    def the_limit_holds(self) -> None:
        if self.stores:
            assert allocated_bytes(self.path) <= self.limit

    def teardown(self) -> None:
        for store in self.stores:
            self.there(store)
            store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def test_an_artifact_store_equals_a_dict() -> None:
    run_machine(ArtifactMachine, either(12, 150), either(20, 40))
