"""Hosts that share what they compiled by a remote, against a dict: random makes, lookups, kills, damage and prunes.

What a host has published when it is closed, every new host finds, unless it was pruned or damaged since. Nothing else
than what some host has made is ever found.
"""

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.compiling.environments import HERE
from tests.compiling.hosts import KEY, Host
from tests.slow import either, unforked
from tests.state_machines import run_machine

from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.remote.remote_prune import prune
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring

pytestmark = [pytest.mark.forks, pytest.mark.remotes]

NUMBERS = st.integers(0, 3)
WAIT = 120.0
"""Seconds that a host waits for the remote: no answer is missed because the machine is busy."""


def version(number: int, at: int) -> bytes:
    """What a compiler made of a number: its output is not the same every time."""
    return random.Random(f"{number} {at}").randbytes(500 + 100 * at)


def make_one(host: Host, number: int, at: int) -> None:
    host.tier.offer(host.store.put(f"k/{number}", "cpp.so", version(number, at), environment=HERE, job="job"))


def make_and_die(folder: Path, remote: Path, number: int, at: int) -> None:
    make_one(Host(folder, remote, wait=WAIT), number, at)
    time.sleep(random.Random(at).random() / 50)
    os.kill(os.getpid(), signal.SIGKILL)


class HostsMachine(RuleBasedStateMachine):
    """`made`: all that any host has made of a number. `published`: what a new host must find."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.remote = self.folder / "remote"
        self.made: dict[int, set[bytes]] = {}
        self.published: set[int] = set()
        self.doubtful: set[int] = set()  # may be damaged in the remote, and not made since by a host that knows
        self.hosts: list[Host] = []
        self.offered: list[set[int]] = [set(), set()]  # by each host since it was opened
        self.opened = 0

    @initialize()
    def open(self) -> None:
        self.hosts = [self.host("a"), self.host("b")]

    def host(self, name: str) -> Host:
        return Host(self.folder / name, self.remote, wait=WAIT)

    def look(self, host: Host, number: int) -> bool:
        """As a session does: here first, then in the remote."""
        found = host.find(number)
        if found is None and host.tier.fetch(f"k/{number}"):
            found = host.find(number)
        if found is None:
            return False
        assert host.store.read(found) in self.made.get(number, set())
        return True

    def close_one(self, which: int) -> None:
        self.hosts[which].close()
        self.published |= self.offered[which] - self.doubtful
        self.offered[which] = set()

    # Using it

    @rule(which=st.integers(0, 1), some=st.lists(st.tuples(NUMBERS, st.integers(0, 2)), min_size=1, max_size=3))
    def make(self, which: int, some: list[tuple[int, int]]) -> None:
        for number, at in some:
            self.made.setdefault(number, set()).add(version(number, at))
            make_one(self.hosts[which], number, at)
            self.offered[which].add(number)
            assert self.look(self.hosts[which], number)

    @rule(which=st.integers(0, 1), number=NUMBERS)
    def find(self, which: int, number: int) -> None:
        self.look(self.hosts[which], number)

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.close_one(which)
        self.hosts[which] = self.host("ab"[which])

    @rule(which=st.integers(0, 1))
    def reopen_in_an_empty_folder(self, which: int) -> None:
        self.close_one(which)
        shutil.rmtree(self.folder / "ab"[which])
        self.hosts[which] = self.host("ab"[which])
        for number in self.published:
            assert self.look(self.hosts[which], number), number

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        """What was offered and is gone before the thread has read it is not published."""
        self.hosts[which].store.clear()
        self.offered[which] = set()

    @rule()
    def begin_anew(self) -> None:
        """A new host finds all that was published."""
        self.opened += 1
        host = self.host(f"new{self.opened}")
        for number in self.published:
            assert self.look(host, number), number
        host.close()

    @rule(number=NUMBERS, at=st.integers(0, 2))
    def killed(self, number: int, at: int) -> None:
        """A host that is killed before it is closed has published what it offered, or not."""
        self.made.setdefault(number, set()).add(version(number, at))
        process = multiprocessing.get_context(unforked()).Process(
            target=make_and_die, args=(self.folder / "killed", self.remote, number, at)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL

    @rule(number=NUMBERS, at=st.integers(0, 2))
    def make_what_a_new_host_misses(self, number: int, at: int) -> None:
        """What is damaged in the remote is whole again, though compilers may not make the same bytes twice.

        Where a manifest and a blob in it are both damaged, only the second host learns that the blob is.
        """
        for _ in range(2):
            self.opened += 1
            host = self.host(f"new{self.opened}")
            if not self.look(host, number):
                self.made.setdefault(number, set()).add(version(number, at))
                make_one(host, number, at)
            host.close()
        self.doubtful.discard(number)
        self.published.add(number)

    # What goes wrong

    @rule(at=st.integers(0, 1 << 20), how=st.sampled_from(["flip", "cut", "remove"]))
    def damage(self, at: int, how: str) -> None:
        """An object of the remote; blobs are the only ones whose loss says what is missing."""
        files = sorted(path for path in self.remote.rglob("*") if path.is_file())
        if not files:
            return
        path = files[at % len(files)]
        data = bytearray(path.read_bytes())
        if how == "remove":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif data:
            data[at % len(data)] ^= 1 << at % 8
            path.write_bytes(data)
        self.unsure()

    @rule(most=st.sampled_from([0, 1000, 2000, 1 << 30]))
    def prune(self, most: int) -> None:
        with Objects(self.remote) as objects:
            prune(objects, Keyring((KEY,)), RemoteMemory(self.folder / "collector", objects.identity), max_size=most)
        if most < 1 << 30:
            self.unsure()

    def unsure(self) -> None:
        """Anything may be missing; and hosts that are open may take for published what is gone."""
        self.published, self.doubtful = set(), set(self.made)
        for which in range(2):
            self.hosts[which].close()
            self.offered[which] = set()
            self.hosts[which] = self.host("ab"[which])

    def teardown(self) -> None:
        for which in range(len(self.hosts)):
            self.close_one(which)
        if self.hosts:
            self.begin_anew()
        shutil.rmtree(self.folder, ignore_errors=True)


def test_hosts_find_what_was_published() -> None:
    run_machine(HostsMachine, either(2, 60), either(10, 30))
