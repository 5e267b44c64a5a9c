"""Stores that are open at the URL of a remote, while others push to it, and while the network is away."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.records.test_machine import indices, plain, shown
from tests.replicate.remote_model import Commit, HostsMachine, HostState, OpenStore, RemoteState

import warmstore as ws
from warmstore.errors import BadBudget, Damaged, NotAStore, RemoteUnavailable

remotes = st.sampled_from([0, 0, 0, 1])
faults = st.tuples(st.sampled_from(["", "", "", "before", "after", "twice", "act", "act"]), st.integers(0, 12))


@dataclass(eq=False)
class OpenCopy:
    """A store that is open at a URL."""

    store: ws.RecordStore
    copy: tuple[int, int, int | None]
    commit: Commit


class ReadersMachine(HostsMachine):
    """copies: the states of local copies, by their folder, remote and pinned number. collected: whether garbage was."""

    def __init__(self) -> None:
        super().__init__()
        self.lazies: list[OpenCopy] = []
        self.copies: dict[tuple[int, int, int | None], Commit] = {}
        self.whole: set[tuple[tuple[int, int, int | None], Commit]] = set()

    def acting(self, busy: HostState, handle: OpenStore | None, remote: RemoteState, data: Any) -> Callable[[], None]:
        """What others do while a request of a host waits."""
        raise NotImplementedError

    @contextlib.contextmanager
    def fault(self, fault: tuple[str, int], act: Callable[[], None] | None = None) -> Iterator[None]:
        if self.in_flight:  # no fault within another operation
            yield
            return
        with self.network.with_fault(*fault, act):
            yield

    @rule(to=remotes, cache=st.integers(0, 1), back=st.integers(0, 5))
    def open_lazy(self, to: int, cache: int, back: int) -> None:
        """Open a store at a URL with one of two folders for blocks, of which one is bounded."""
        remote, size = self.remotes[to], (None, 1 << 20)[cache]
        self.look(remote)
        at = remote.last - back + 1 if back else None
        if at is not None and at < 1:
            return
        copy = (cache, to, at)
        try:
            store = ws.RecordStore.open(remote.url, at=at, cache_dir=self.folder / f"cache{cache}", cache_size=size)
        except RemoteUnavailable:
            assert self.network.down
            assert copy not in self.copies
            return
        except NotAStore:
            assert remote.latest is None
            return
        if not self.network.down:
            self.copies[copy] = remote.pushes[at or remote.last]
        self.lazies.append(OpenCopy(store, copy, self.copies[copy]))
        if len(self.lazies) > 3:
            self.lazies.pop(0).store.close()

    @precondition(lambda self: self.lazies)
    @rule(which=st.integers(0, 2))
    def refresh_lazy(self, which: int) -> None:
        lazy = self.lazies[which % len(self.lazies)]
        remote = self.remotes[lazy.copy[1]]
        self.look(remote)
        if lazy.copy[2] is not None and lazy.copy[2] not in remote.there and not self.network.down:
            with pytest.raises(NotAStore):
                lazy.store.refresh()
            return
        lazy.store.refresh()
        if not self.network.down and not (self.network.left >= 0 and self.network.kind):
            self.copies[lazy.copy] = remote.pushes[lazy.copy[2] or remote.last]
        lazy.commit = self.copies[lazy.copy]

    @precondition(lambda self: self.lazies)
    @rule(which=st.integers(0, 2), whole=st.booleans(), fault=faults, data=st.data())
    def read_lazy(self, which: int, whole: bool, fault: tuple[str, int], data: Any) -> None:
        lazy = self.lazies[which % len(self.lazies)]
        assert len(lazy.store) == len(lazy.commit.records)
        if not lazy.commit.records:
            return
        index, positions = data.draw(indices(len(lazy.commit.records)), "index")
        act = self.acting(self.host(0), None, self.remotes[lazy.copy[1]], data) if fault[0] == "act" else None
        commit = lazy.commit
        try:
            with self.fault(fault, act):
                if whole:
                    found = shown(lazy.store)
                else:
                    read = lazy.store.gather(index, ["number", "text", "bytes"])
        except BadBudget:
            assert lazy.copy[0] == 1
        except RemoteUnavailable:
            is_left = self.copies[lazy.copy].generation > commit.generation + 1  # its folder may have been removed
            assert fault[0] in ("before", "after") or self.network.down or is_left
            # What was read once can be read again, unless a newer state has come into the folder meanwhile.
            assert (lazy.copy, commit) not in self.whole or lazy.copy[0] == 1 or self.copies[lazy.copy] is not commit
        except Damaged:
            remote = self.remotes[lazy.copy[1]]
            assert self.collected
            assert commit not in [remote.pushes[number] for number in remote.there]
        else:
            expected = [commit.records[at] for at in positions]
            if commit is not lazy.commit:
                return
            if whole:
                assert found == commit.records
                self.whole.add((lazy.copy, commit))
            else:
                for name in ("number", "text", "bytes"):
                    assert [plain(value) for value in read[name]] == [one[name] for one in expected]

    def refresh_all(self) -> None:
        for which in range(len(self.lazies)):
            self.refresh_lazy(which)
