"""What is known of machines that share remotes: the states that each of them has had, and the programs that write.

A state of a store is a `Commit`, which has parents. States are told apart by the bytes of their logs.
"""

import json
import logging
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.records.test_machine import (
    MORE,
    Records,
    as_columns,
    as_given,
    indices,
    record,
    remove,
    replace,
)
from tests.replicate.network import Network
from tests.state_machines import KeptWarnings

import warmstore as ws
from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import manifest_of, read_manifest
from warmstore.records.log.log_entries import CLOSED, ENTRY, SEALED
from warmstore.records.write import chunk_merging
from warmstore.storage.files import Files

HOSTS = 3
REMOTES = 2
KEPT = 5
SIZES = (1, 1 << 30)

hosts = st.integers(0, HOSTS - 1)

Key = tuple[str, int, bytes, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Commit:
    """A state of a store. log: the bytes of the log of its generation."""

    store: str
    generation: int
    log: bytes
    names: tuple[str, ...]
    records: Records
    parents: list["Commit"]

    @property
    def key(self) -> Key:
        return self.store, self.generation, self.log, self.names

    def precedes(self, other: "Commit") -> bool:
        """Whether the other state is this one, or continues it."""
        seen, left = {other}, [other]
        while left and self not in seen:
            left = [parent for each in left for parent in each.parents if parent not in seen]
            seen.update(left)
        return self in seen


@dataclass(eq=False)
class OpenStore:
    """An open store, what it must show, and the state before its chunk that is not sealed."""

    store: ws.RecordStore
    names: tuple[str, ...] = ()
    seen: Records = field(default_factory=list)
    pending: Records = field(default_factory=list)
    began: Commit | None = None

    @property
    def expected(self) -> Records:
        return self.seen + self.pending


@dataclass(eq=False)
class HostState:
    """A machine: its folder, its open stores, and the number and state of its last push or pull, by remote, if it is
    certain. coming: the records that it has once a push or pull has settled."""

    path: Path
    commit: Commit
    handles: list[OpenStore] = field(default_factory=list)
    notes: dict[int, tuple[int, Commit | None]] = field(default_factory=dict)
    coming: Records = field(default_factory=list)
    metadata: dict[str, int] = field(default_factory=dict)

    def move(self, commit: Commit) -> None:
        """The store is in another state. A new generation has no chunks of live writers."""
        if commit.generation != self.commit.generation:
            for handle in self.handles:
                handle.began = None
        self.commit = commit


@dataclass(eq=False)
class RemoteState:
    """A remote: the states that it has had, by number, and those whose heads are there."""

    number: int
    path: Path
    pushes: dict[int, Commit] = field(default_factory=dict)
    there: set[int] = field(default_factory=set)
    heads: set[Path] = field(default_factory=set)
    metadata: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.path.as_uri()

    @property
    def last(self) -> int:
        return max(self.pushes, default=0)

    @property
    def latest(self) -> Commit | None:
        return self.pushes.get(self.last)


def log_of(path: Path) -> Key:
    """The identity of a store in a folder, its generation, the entries of its log, and the names of its fields."""
    manifest = read_manifest(path, Files())
    with open_log(path, manifest, Files(), write=False) as log:
        entries = log.read(0)
    return manifest.id, manifest.generation, entries[entries["kind"] != CLOSED].tobytes(), tuple(manifest.fields)


class HostsMachine(RuleBasedStateMachine):
    """Hosts that write to their stores. Those that push and pull are in test_remote_machine.py.

    commits: all states, by what identifies them. in_flight: hosts whose push has begun. staged: records that a job
    commits at a remote. job: the state after it. settled: the state that is pushed if its host goes on. refused: one
    whose head conflicts with one that is there, at a remote that cannot refuse it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.network = Network()
        self.patch = pytest.MonkeyPatch()
        self.network.use(self.patch)
        self.patch.setattr(chunk_merging, "FAN_IN", 3)
        self.patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
        self.commits: dict[Key, Commit] = {}
        self.hosts: list[HostState | None] = [None] * HOSTS
        self.remotes = [RemoteState(number, self.folder / f"remote{number}") for number in range(REMOTES)]
        self.in_flight: list[HostState] = []
        self.staged: Records = []
        self.settled: Commit | None = None
        self.refused: Commit | None = None
        self.job: Commit | None = None
        self.last_number = self.offline_for = 0
        self.made = 0
        self.collected = False
        self.warnings = KeptWarnings()
        logging.getLogger("warmstore").addHandler(self.warnings)

    # What is known

    def new_path(self) -> Path:
        self.made += 1
        return self.folder / f"host{self.made}"

    def committed(self, key: Key, parent: Commit | None, records: Records) -> Commit:
        """The state with this log. The same bytes are the same records, and may come about in several ways."""
        if key not in self.commits:
            self.commits[key] = Commit(*key, list(records), [])
        found = self.commits[key]
        if parent is not None and not found.precedes(parent):
            found.parents.append(parent)
        assert found.records == records
        return found

    def observe(self, host: HostState, records: Records) -> None:
        """Look at what a host has on its disk: these records if its log has changed."""
        store, generation, log, names = key = log_of(host.path)
        at = len(host.commit.log) // ENTRY.itemsize
        new = np.frombuffer(log, ENTRY)[at:]
        if generation == host.commit.generation and len(new) > 1 and new["kind"][0] == SEALED:
            # The chunk of before, as the next one begins. A push may end here.
            sealed = store, generation, log[: (at + 1) * ENTRY.itemsize], names
            host.move(self.committed(sealed, host.commit, host.commit.records))
        if key != host.commit.key:
            host.move(self.committed(key, host.commit, records))

    def look(self, remote: RemoteState) -> None:
        """Look at the heads at a remote: each new one continues the one before."""
        for host in self.in_flight:
            self.observe(host, host.coming)
        remote.there = set()
        for path in sorted(remote.path.glob("heads/*/*.json")):
            number = int(path.stem[:8])
            remote.there.add(number)
            if path not in remote.heads:
                remote.heads.add(path)
                self.look_at(remote, path, number)
        assert remote.there >= set(range(max(1, remote.last - KEPT + 1), remote.last + 1))

    def look_at(self, remote: RemoteState, path: Path, number: int) -> None:
        content = json.loads(path.read_bytes())
        manifest = manifest_of(content["store"], str(path))
        log = (remote.path / "logs" / content["log"]).read_bytes()
        key = manifest.id, manifest.generation, log, tuple(manifest.fields)
        before, present = remote.pushes.get(number - 1), remote.pushes.get(number)
        if key not in self.commits and self.staged:
            assert before is not None
            self.job = self.committed(key, before, before.records + self.staged)
            self.staged = []
        assert key in self.commits, "a state that no host has had"
        commit = self.commits[key]
        assert before is None or before.precedes(commit), "what was pushed before is lost"
        assert present is None or not self.network.conditional
        if present is None or present.precedes(commit):
            remote.pushes[number] = commit
            assert manifest.metadata.items() >= remote.metadata.items(), "an annotation is lost"
            remote.metadata = manifest.metadata
        elif not commit.precedes(
            present
        ):  # of two that were pushed at once the later one is removed, as its error says
            path.unlink()
            self.refused = commit

    def must_push(self, commit: Commit, host: HostState, remote: RemoteState) -> bool:
        """Whether nothing may keep this state from being pushed now."""
        theirs = remote.latest
        if theirs is None:
            return True
        if commit.generation > theirs.generation:
            return theirs.precedes(commit) and host.notes.get(remote.number, (0,))[0] == remote.last
        return self.must_pull(commit, host, remote) or (
            commit.generation == theirs.generation and theirs.precedes(commit)
        )

    def must_pull(self, commit: Commit, host: HostState, remote: RemoteState) -> bool:
        """Whether a host is behind a remote, and can know that."""
        theirs = remote.latest
        if theirs is None or not commit.precedes(theirs):
            return False
        return commit.generation == theirs.generation or host.notes.get(remote.number, (0, None))[1] is commit

    def saw(self, host: HostState, handle: OpenStore) -> OpenStore:
        handle.names, handle.seen = host.commit.names, list(host.commit.records)
        return handle

    def new(self, count: int, names: tuple[str, ...]) -> Records:
        self.last_number += count
        records = []
        for number in range(self.last_number - count + 1, self.last_number + 1):
            one = record(number, list(names), True)
            if one.get("bytes"):
                one["bytes"] = random.Random(number).randbytes(20_000 * (number % 4))  # several blocks of a chunk
            records.append(one)
        return records

    def host(self, which: int) -> HostState:
        """One of the hosts that have a store."""
        return self.there[which % len(self.there)]

    @property
    def there(self) -> list[HostState]:
        return [host for host in self.hosts if host is not None]

    def handle(self, which: int, of: int) -> tuple[HostState, OpenStore]:
        host = self.host(which)
        return host, host.handles[of % len(host.handles)]

    def free(self) -> int | None:
        return next((slot for slot, host in enumerate(self.hosts) if host is None), None)

    def opened(self, host: HostState, chunk_size: int) -> None:
        store = ws.RecordStore.open(host.path, "a", chunk_size=chunk_size)
        self.observe(host, host.commit.records)
        host.handles.append(self.saw(host, OpenStore(store)))

    # Writing

    @rule(which=hosts, of=st.integers(0, 1), count=st.integers(1, 5), flush=st.booleans())
    def extend(self, which: int, of: int, count: int, flush: bool) -> None:
        host, handle = self.handle(which, of)
        if handle.names != host.commit.names:
            handle.store.refresh()
            self.saw(host, handle)
        records = self.new(count, host.commit.names)
        handle.store.extend(as_columns(records))
        handle.pending += records
        if flush:
            self.flush(host, handle)

    def flush(self, host: HostState, handle: OpenStore) -> None:
        began = handle.began or (host.commit if handle.pending else None)
        handle.store.flush()
        self.flushed(host, handle, began)

    def flushed(self, host: HostState, handle: OpenStore, began: Commit | None = None) -> None:
        """A handle has committed what was pending. began: the state before its chunk."""
        records, handle.pending = host.commit.records + handle.pending, []
        self.observe(host, records)
        handle.began = began
        self.saw(host, handle)

    @rule(which=hosts, of=st.integers(0, 1))
    def seal(self, which: int, of: int) -> None:
        host, handle = self.handle(which, of)
        handle.store.seal()
        self.flushed(host, handle)

    @rule(which=hosts, of=st.integers(0, 1), data=st.data())
    def edit(self, which: int, of: int, data: Any) -> None:
        host, handle = self.handle(which, of)
        self.flush(host, handle)
        handle.store.refresh()
        self.saw(host, handle)
        if not handle.seen:
            return
        index, positions = data.draw(indices(len(handle.seen)), "index")
        records = list(host.commit.records)
        began = handle.began or host.commit
        if data.draw(st.booleans(), "delete"):
            handle.store.delete(index)
            remove(records, set(positions))
        else:
            names = ["number", *data.draw(st.sets(st.sampled_from(host.commit.names[1:])), "fields")]
            changes = [
                {name: one[name] for name in host.commit.names if name in names}
                for one in self.new(len(positions), host.commit.names)
            ]
            handle.store.update(index, as_columns(changes))
            replace(records, positions, changes)
        self.observe(host, records)
        handle.began = began
        self.saw(host, handle)

    @rule(which=hosts, of=st.integers(0, 1))
    def rebalance(self, which: int, of: int) -> None:
        host, handle = self.handle(which, of)
        handle.store.rebalance(progress=False)
        self.flushed(host, handle)

    @rule(which=hosts, of=st.integers(0, 1), name=st.sampled_from(list(MORE)))
    def change_fields(self, which: int, of: int, name: str) -> None:
        host, handle = self.handle(which, of)
        self.flush_all(host)
        handle.store.refresh()
        records = host.commit.records
        if name in host.commit.names:
            names = tuple(each for each in host.commit.names if each != name)
            handle.store.drop_field(name, progress=False)
            records = [{each: one[each] for each in names} for one in records]
        else:
            names = (*host.commit.names, name)
            values = [one[name] for one in self.new(len(records), names)]
            given = [as_given(name, value) for value in values]
            handle.store.add_field(name, MORE[name], given or None, progress=False)
            records = [{**one, name: value} for one, value in zip(records, values, strict=True)]
        self.observe(host, records)
        self.saw(host, handle)

    @rule(which=hosts, of=st.integers(0, 1), name=st.sampled_from("abc"))
    def annotate(self, which: int, of: int, name: str) -> None:
        host, handle = self.handle(which, of)
        (one,) = self.new(1, ("number",))
        value = host.metadata.setdefault(name, one["number"])
        assert handle.store.annotate(name, one["number"]) == value
        self.flushed(host, handle, handle.began or (host.commit if handle.pending else None))

    def flush_all(self, host: HostState) -> None:
        for handle in host.handles:
            self.flush(host, handle)

    # Opening, copying and leaving folders

    @rule(which=hosts, chunk_size=st.sampled_from(SIZES))
    def open_second(self, which: int, chunk_size: int) -> None:
        host = self.host(which)
        if len(host.handles) < 2:
            self.opened(host, chunk_size)

    @rule(which=hosts, of=st.integers(0, 1), chunk_size=st.sampled_from(SIZES))
    def reopen(self, which: int, of: int, chunk_size: int) -> None:
        host, handle = self.handle(which, of)
        self.close(host, handle)
        self.opened(host, chunk_size)

    def close(self, host: HostState, handle: OpenStore) -> None:
        handle.store.close()
        self.flushed(host, handle)
        host.handles.remove(handle)

    @precondition(lambda self: self.free() is not None)
    @rule(which=hosts, chunk_size=st.sampled_from(SIZES))
    def copy_folder(self, which: int, chunk_size: int) -> None:
        """The folder of a store is copied while it is open."""
        source, slot, path = self.host(which), self.free(), self.new_path()
        shutil.copytree(source.path, path)
        assert slot is not None
        host = self.hosts[slot] = HostState(
            path, source.commit, notes=dict(source.notes), metadata=dict(source.metadata)
        )
        self.opened(host, chunk_size)

    @rule(which=hosts)
    def leave(self, which: int) -> None:
        """A machine goes away."""
        host = self.host(which)
        if len(self.there) > 1:
            for handle in list(host.handles):
                self.close(host, handle)
            shutil.rmtree(host.path)
            self.hosts[self.hosts.index(host)] = None
