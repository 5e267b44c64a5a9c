"""Machines that share remotes, against a plain model: random operations, failing networks, races and children that die.

A state of a store is a `Commit`, which has a parent. The model knows which states each machine holds and which ones
each remote has had. Whatever happens, each state at a remote continues the one before it, a push that was acknowledged
is in what the remote has, and whoever opens, clones or pulls has the records of such a state, value by value.
"""

import logging
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests import warm
from tests.records.test_machine import FIELDS, as_columns, shown
from tests.replicate.remote_model import KEPT, SIZES, HostState, OpenStore, RemoteState, hosts, log_of
from tests.replicate.remote_readers import faults, remotes
from tests.replicate.remote_upkeep import UpkeepMachine
from tests.slow import either
from tests.state_machines import run_machine

import warmstore as ws
from warmstore.errors import Diverged, NotAStore, RemoteUnavailable
from warmstore.records.format.manifest import read_manifest
from warmstore.storage.files import Files

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

CHILD = """if True:
    import pickle, sys
    from pathlib import Path
    import warmstore as ws
    from tests.faults.seam import Killing
    from tests.replicate.network import connected
    path, remote, how, columns, at, moment, conditional = pickle.loads(Path(sys.argv[1]).read_bytes())
    network = connected(conditional=conditional)
    files = None
    if moment == "request":
        network.set("kill", at)
    else:
        files = Killing(at, moment)
    try:
        with ws.RecordStore.open(path, "a", files=files) as store:
            if columns:
                store.extend(columns)
            store.flush()
            print("added", flush=True)
            getattr(store, how)(remote, progress=False)
            print("done", flush=True)
    except ws.Diverged:
        print("diverged", flush=True)
"""


class RemoteMachine(UpkeepMachine):
    """Hosts that push and pull."""

    @initialize(
        chunk_size=st.sampled_from(SIZES),
        count=st.sampled_from([0, 1, 12]),
        conditional=st.sampled_from([True, True, False]),
    )
    def create(self, chunk_size: int, count: int, conditional: bool) -> None:
        self.network.conditional = conditional
        path = self.new_path()
        store = ws.RecordStore.create(path, FIELDS, chunk_size=chunk_size)
        host = self.hosts[0] = HostState(path, self.committed(log_of(path), None, []))
        host.handles.append(self.saw(host, OpenStore(store)))
        if count:
            self.extend(0, 0, count, True)
        self.do_push(host, host.handles[0], self.remotes[0])
        self.do_clone(self.remotes[0], None, chunk_size)

    # Pushing and pulling

    def acting(self, busy: HostState, handle: OpenStore | None, remote: RemoteState, data: Any) -> Callable[[], None]:
        """What others do while a request of a host waits."""
        what = data.draw(st.sampled_from(["push", "gc", "staged", "refresh", "extend"]), "meanwhile")
        others = [host for host in self.there if host is not busy]
        if what == "push" and others:
            other = others[data.draw(hosts, "pusher") % len(others)]
            return lambda: self.do_push(other, other.handles[0], remote)
        beside = [each for each in busy.handles if each is not handle]
        if what == "extend" and beside:
            return lambda: self.extend_and_flush(busy, beside[0])
        if what == "staged":
            return lambda: self.do_staged(remote, 2)
        if what == "refresh":
            return self.refresh_all
        return lambda: self.collect(remote)

    def extend_and_flush(self, host: HostState, handle: OpenStore) -> None:
        """Another process of a host that pushes or pulls commits records."""
        if host in self.in_flight:
            self.observe(host, host.coming)
        self.settled = host.commit
        handle.store.refresh()
        handle.names = host.commit.names
        records = self.new(2, host.commit.names)
        handle.store.extend(as_columns(records))
        handle.pending += records
        self.flush(host, handle)
        host.coming = host.commit.records

    @rule(which=hosts, of=st.integers(0, 1), to=remotes, verify=st.booleans(), fault=faults, data=st.data())
    def push(self, which: int, of: int, to: int, verify: bool, fault: tuple[str, int], data: Any) -> None:
        host, handle = self.handle(which, of)
        act = self.acting(host, handle, self.remotes[to], data) if fault[0] == "act" else None
        self.do_push(host, handle, self.remotes[to], verify, fault, act)

    def do_push(
        self,
        host: HostState,
        handle: OpenStore,
        remote: RemoteState,
        verify: bool = False,
        fault: tuple[str, int] = ("", 0),
        act: Callable[[], None] | None = None,
    ) -> None:
        self.look(remote)
        host.coming, self.settled, self.refused = host.commit.records + handle.pending, None, None
        before = remote.last
        waits = [each.began for each in host.handles if each is not handle and each.began is not None]
        said: Any = None
        with self.fault(fault, act):
            self.in_flight.append(host)
            handle.pending = []  # whatever follows
            try:
                said = handle.store.push(remote.path, verify=verify, progress=False)
            except (Diverged, RemoteUnavailable) as error:
                said = error
            finally:
                self.observe(host, host.coming)
                self.in_flight.remove(host)
                handle.began = None
        sent = self.settled or host.commit
        handle.names, handle.seen = sent.names, list(sent.records)
        could = self.must_push(sent, host, remote)
        self.look(remote)
        if isinstance(said, RemoteUnavailable):
            assert fault[0] in ("before", "after") or self.network.down
            self.died(host, remote, before)
        elif isinstance(said, Diverged):
            moved = remote.last != before
            assert not could or (moved and not self.must_push(sent, host, remote))
        else:
            assert self.refused is not sent
            if said.waiting and waits:
                sent = min(waits, key=lambda commit: len(commit.log))
            latest = remote.latest
            assert latest is not None
            # Chunks may have been merged behind those of a live writer: then those that they are made of wait, too.
            # Whether the rows that wait have diverged is told when they are pushed.
            is_left = remote.last == before or latest.precedes(sent)
            assert sent.precedes(latest) or (said.waiting and is_left)
            if sent.generation == latest.generation and latest.precedes(sent):  # else it may be behind
                assert remote.metadata.keys() >= host.metadata.keys()
            if latest is sent:
                host.notes[remote.number] = remote.last, latest
            elif remote.last != before:
                host.notes.pop(remote.number, None)

    @rule(which=hosts, other=hosts, to=remotes, at=st.integers(0, 16), verify=st.booleans(), pulls=st.booleans())
    def race(self, which: int, other: int, to: int, at: int, verify: bool, pulls: bool) -> None:
        """Two hosts are up to date and add records, and one pushes while the other does; or it has pushed, and a pull
        of the other is beside a writer there."""
        remote, first, second = self.remotes[to], self.host(which), self.host(other)
        if self.network.down or first is second:
            return
        for host in (first, second):
            self.do_pull(host, host.handles[0], remote)
            self.extend_and_flush(host, host.handles[0])
            if pulls:
                break
        if not pulls:
            self.do_push(
                first,
                first.handles[0],
                remote,
                verify,
                ("act", at),
                lambda: self.do_push(second, second.handles[0], remote),
            )
            return
        self.do_push(first, first.handles[0], remote)
        self.open_second(other, 1 << 30)
        writer = second.handles[1]
        self.do_pull(
            second,
            second.handles[0],
            remote,
            "pull",
            False,
            ("act", at),
            lambda: self.extend_and_flush(second, writer),
        )

    def died(self, host: HostState, remote: RemoteState, before: int) -> None:
        """A push has ended before its end. If its head is there, it was a push."""
        if remote.last != before and remote.latest is host.commit:
            host.notes[remote.number] = remote.last, host.notes.get(remote.number, (0, None))[1]

    @rule(
        which=hosts,
        of=st.integers(0, 1),
        to=remotes,
        how=st.sampled_from(["pull", "pull", "sync", "clone"]),
        again=st.booleans(),
        fault=faults,
        data=st.data(),
    )
    def pull(self, which: int, of: int, to: int, how: str, again: bool, fault: tuple[str, int], data: Any) -> None:
        """Pull, synchronise or clone into a folder with a store. A host that has diverged may start again."""
        host, handle = self.handle(which, of)
        act = self.acting(host, handle, self.remotes[to], data) if fault[0] == "act" else None
        self.do_pull(host, handle, self.remotes[to], how, again, fault, act)

    def do_pull(
        self,
        host: HostState,
        handle: OpenStore,
        remote: RemoteState,
        how: str = "pull",
        again: bool = False,
        fault: tuple[str, int] = ("", 0),
        act: Callable[[], None] | None = None,
    ) -> None:
        if remote.latest is None:
            return
        self.flush_all(host)  # else rows may be pending whose fields are changed
        if how != "clone":
            handle.store.seal()
            self.flushed(host, handle)
        self.look(remote)
        theirs, before, annotated, mine = remote.latest, remote.last, remote.metadata, host.commit
        could = self.must_push(mine, host, remote)
        said: Any = None
        with self.fault(fault, act):
            try:
                if how == "clone":
                    ws.RecordStore.clone(remote.path, host.path, progress=False).close()
                else:
                    getattr(handle.store, how)(remote.path, progress=False)
            except (Diverged, RemoteUnavailable) as error:
                said = error
        if (key := log_of(host.path)) in self.commits:
            host.move(self.commits[key])
        self.look(remote)
        latest = remote.latest
        handle.store.refresh()
        self.saw(host, handle)
        if isinstance(said, RemoteUnavailable):
            assert fault[0] in ("before", "after") or self.network.down
            assert host.commit is mine or how == "sync"
            self.died(host, remote, before)
        elif isinstance(said, Diverged):
            assert host.commit is mine or fault[0] == "act"
            lives = any(each.began is not None for each in host.handles)
            assert not could or lives or fault[0] == "act"
            if again:
                self.leave(self.there.index(host))
                self.do_clone(remote, None, 1 << 30)
        else:
            assert mine.precedes(host.commit)
            assert theirs.precedes(host.commit)
            assert not (host.path / ".pull").exists()
            metadata = read_manifest(host.path, Files()).metadata
            assert metadata.items() >= (host.metadata | annotated).items()
            host.metadata = metadata
            if latest is host.commit:
                host.notes[remote.number] = remote.last, latest
            elif host.commit is not mine:
                host.notes.pop(remote.number, None)

    @rule(
        which=hosts,
        to=remotes,
        how=st.sampled_from(["push", "pull", "sync"]),
        count=st.integers(0, 2),
        at=st.integers(0, 30),
        moment=st.sampled_from(["request", "request", "before", "middle", "after"]),
    )
    def killed(self, which: int, to: int, how: str, count: int, at: int, moment: str) -> None:
        """Another process of a host adds records, and pushes or pulls; it kills itself at a request, or at an operation
        on a file, or ends well before it comes to that."""
        host, remote = self.host(which), self.remotes[to]
        self.flush_all(host)
        self.look(remote)
        if how != "push" and remote.latest is None:
            return
        before, mine = remote.last, host.commit
        records = self.new(count, mine.names)
        task = self.folder / "task"
        conditional = self.network.conditional
        task.write_bytes(
            pickle.dumps((host.path, remote.path, how, as_columns(records) if count else {}, at, moment, conditional))
        )
        done = warm.run(
            [sys.executable, "-c", CHILD, str(task)], cwd=Path(__file__).parents[2], capture_output=True, text=True
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        key = log_of(host.path)
        if key not in self.commits:
            with ws.RecordStore.open(host.path) as store:
                found = shown(store)
            assert found in (mine.records, mine.records + records)
            self.committed(key, mine, found)
        host.move(self.commits[key])
        self.look(remote)
        assert mine.precedes(host.commit)
        assert "added" not in done.stdout or count == 0 or host.commit is not mine
        host.metadata = read_manifest(host.path, Files()).metadata
        latest = remote.latest
        if "done" in done.stdout and host.commit is latest:
            host.notes[to] = remote.last, latest
        elif how == "pull" and host.commit is latest and latest is not mine:
            host.notes[to] = 0, latest
        else:
            self.died(host, remote, before)
        if "done" in done.stdout and how != "pull":
            assert latest is not None
            assert host.commit.precedes(latest) or any(handle.began for handle in host.handles)

    @precondition(lambda self: self.free() is not None)
    @rule(to=remotes, back=st.integers(0, 6), fault=faults, chunk_size=st.sampled_from(SIZES), data=st.data())
    def clone(self, to: int, back: int, fault: tuple[str, int], chunk_size: int, data: Any) -> None:
        """Clone the last state, or an earlier one; after a failure again."""
        remote = self.remotes[to]
        self.look(remote)
        at = remote.last - back + 1 if back else None
        if at is not None and at < 1:
            return
        act = self.acting(self.host(0), None, remote, data) if fault[0] == "act" else None
        self.do_clone(remote, at, chunk_size, fault, act)

    def do_clone(
        self,
        remote: RemoteState,
        at: int | None,
        chunk_size: int,
        fault: tuple[str, int] = ("", 0),
        act: Callable[[], None] | None = None,
    ) -> None:
        slot, annotated = self.free(), remote.metadata
        path, allowed = self.new_path(), [remote.pushes.get(at or remote.last)]
        store: ws.RecordStore | None = None
        for turn in (fault, ("", 0)):
            try:
                with self.fault(turn, act):
                    store = ws.RecordStore.clone(remote.path, path, at=at, progress=False)
                break
            except RemoteUnavailable:
                assert turn[0] in ("before", "after") or self.network.down
                assert not path.exists()
            except NotAStore:
                self.look(remote)
                assert remote.latest is None or (at is not None and at <= remote.last - KEPT)
                return
        self.look(remote)
        allowed.append(remote.pushes.get(at or remote.last))
        if store is None:
            return
        with store:
            commit = self.commits[log_of(path)]
            assert commit in allowed
            assert shown(store) == commit.records
            assert store.verify(progress=False).ok
            metadata = store.metadata
            assert at is not None or metadata.items() >= annotated.items()
        assert not [*self.folder.glob(f".{path.name}.*.tmp")]
        if slot is None:
            return
        host = self.hosts[slot] = HostState(path, commit, metadata=metadata)
        if at is None and commit is remote.latest:
            host.notes[remote.number] = remote.last, commit
        self.opened(host, chunk_size)

    # What must hold after every step

    @invariant()
    def everybody_shows_what_it_must(self) -> None:
        for host in self.there:
            for handle in host.handles:
                assert tuple(handle.store.fields) == handle.names
                assert shown(handle.store) == handle.expected
        told = [text for text in self.warnings.messages if str(self.folder) in text]  # not of one that was collected
        told = [text for text in told if "network is down" not in text and "is lost" not in text]
        assert told == []

    def teardown(self) -> None:
        logging.getLogger("warmstore").removeHandler(self.warnings)
        self.network.down = False
        try:
            for remote in self.remotes:
                self.look(remote)
                for number in remote.there:
                    cache = self.folder / "last"
                    with ws.RecordStore.open(remote.url, at=number, cache_dir=cache) as store:
                        assert shown(store) == remote.pushes[number].records
            for host in self.there:
                for handle in list(host.handles):
                    self.close(host, handle)
                with ws.RecordStore.open(host.path) as store:
                    assert shown(store) == host.commit.records
                    assert store.verify(progress=False).ok
        finally:
            for lazy in self.lazies:
                lazy.store.close()
            self.patch.undo()
            shutil.rmtree(self.folder)


def test_machines_that_share_remotes() -> None:
    run_machine(RemoteMachine, either(3, 100), either(40, 60))
