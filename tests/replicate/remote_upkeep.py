"""What happens at a remote itself: jobs that add records, garbage collections, damage; and the network."""

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tests.records.test_machine import as_columns, shown
from tests.replicate.remote_model import RemoteState, hosts
from tests.replicate.remote_readers import ReadersMachine, faults, remotes

import warmstore as ws
from warmstore.errors import Damaged, RemoteUnavailable
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.staged_write import StagedWrite
from warmstore.replicate.upkeep import gc

DAY = 24 * 3600.0


class UpkeepMachine(ReadersMachine):
    """collected: whether garbage was. offline_for: the steps after which the network is there again."""

    @rule(to=remotes, count=st.integers(1, 4), fault=faults, data=st.data())
    def stage(self, to: int, count: int, fault: tuple[str, int], data: Any) -> None:
        """A job adds records at the remote."""
        remote = self.remotes[to]
        act = self.acting(self.host(0), None, remote, data) if fault[0] == "act" else None
        self.do_staged(remote, count, fault, act)

    def do_staged(
        self, remote: RemoteState, count: int, fault: tuple[str, int] = ("", 0), act: Callable[[], None] | None = None
    ) -> None:
        self.look(remote)
        if remote.latest is None or self.staged or self.network.down:
            return
        names = remote.latest.names
        records, before = self.new(count, names), remote.last
        try:
            job = StagedWrite(remote.url, append=True)
            with job.part() as part:
                part.extend(as_columns(records))
            parts = [part.finish()]
            self.staged = records
            with self.fault(fault, act):
                job.commit(parts)
        except RemoteUnavailable:
            assert fault[0] in ("before", "after")
            self.look(remote)
            if self.staged:
                job.commit(parts)
        except ws.SchemaMismatch:
            assert remote.latest.names != names
            self.staged = []
        self.look(remote)
        assert not self.staged
        assert remote.last > before
        assert self.refused is not self.job

    @rule(to=remotes, days=st.sampled_from([0, 0.6, 2]))
    def age(self, to: int, days: float) -> None:
        for path in self.remotes[to].path.rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime - days * DAY
                os.utime(path, (then, then))
        self.collect(self.remotes[to])

    @rule(which=hosts, to=remotes, pick=st.integers(0, 9), how=st.sampled_from(["flip", "cut", "remove"]))
    def damage(self, which: int, to: int, pick: int, how: str) -> None:
        """An object at a remote is damaged. Nobody reads a wrong value, and a push from a whole copy mends it."""
        host, remote = self.host(which), self.remotes[to]
        self.flush_all(host)
        host.handles[0].store.seal()
        self.flushed(host, host.handles[0])
        self.look(remote)
        lives = any(handle.began for handle in host.handles)
        latest = remote.latest
        if latest is None or not latest.precedes(host.commit) or lives or self.network.down:
            return
        if not self.must_push(host.commit, host, remote):
            return
        objects = [*sorted(remote.path.glob("chunks/*")), *sorted(remote.path.glob("logs/*"))]
        damaged = objects[pick % len(objects)]
        data = damaged.read_bytes()
        damaged.write_bytes(
            data[: len(data) // 2] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1] if data else b"")
        )
        if how == "remove":
            damaged.unlink()
        path = self.new_path()
        with contextlib.suppress(Damaged), ws.RecordStore.clone(remote.path, path, progress=False) as store:
            assert shown(store) == latest.records
        self.in_flight.append(host)
        host.coming = host.commit.records
        remote.metadata = dict(host.metadata)  # of a head whose log is damaged nothing is known
        host.handles[0].store.push(remote.path, verify=True, progress=False)
        self.in_flight.remove(host)
        if not damaged.exists() or damaged.read_bytes() != data:  # it belongs to earlier states alone
            damaged.write_bytes(data)
        self.look(remote)
        assert remote.latest is host.commit
        host.notes[to] = remote.last, host.commit
        with ws.RecordStore.clone(remote.path, path, progress=False) as store:
            assert shown(store) == host.commit.records
        shutil.rmtree(path)

    def collect(self, remote: RemoteState) -> None:
        if remote.latest is not None and not self.network.down:
            gc(Remote(remote.path), keep=DAY)
            self.collected = True

    @rule(steps=st.integers(1, 4))
    def offline(self, steps: int) -> None:
        """The network is down for the next steps."""
        self.network.down, self.offline_for = True, steps + 1

    @invariant()
    def network_comes_back(self) -> None:
        self.offline_for -= 1
        self.network.down = self.offline_for > 0
