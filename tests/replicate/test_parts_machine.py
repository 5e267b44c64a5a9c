"""Hosts that fill one cache at a remote, against a plain model: random operations, failing networks, races, kills.

A value is a number that no other put has. A host finds what it has put itself, and what it has pulled; of an id that
only one host has ever pushed it finds the last value. Whoever pulls into an empty folder finds each id that is at the
remote, with a value that some part has now.
"""

import contextlib
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    rule,
)
from tests import warm
from tests.replicate.parts_model import WIDTH, Member, MembersMachine, PushedPart, found_in, ids, joined, members
from tests.slow import either
from tests.state_machines import run_machine

import warmstore as ws
from warmstore.errors import Damaged, NotAStore, NotTrusted, RemoteUnavailable
from warmstore.features.remote_merging import merge_parts
from warmstore.records.format.manifest import read_manifest
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import gc, repair, retire
from warmstore.storage.files import Files

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

CHILD = """if True:
    import pickle, sys
    from pathlib import Path
    import numpy as np
    import warmstore as ws
    from tests.faults.seam import Killing
    from tests.replicate.network import connected
    place, options, remote, how, ids, first, width, at, moment = pickle.loads(Path(sys.argv[1]).read_bytes())
    network, files = connected(), None
    if moment != "request":
        files = Killing(at, moment)
    with ws.FeatureCache(place, "net", files=files, **options) as cache:
        if moment == "request":
            network.set("kill", at)
        values = np.arange(first, first + len(ids), dtype=np.float32)
        cache.put_batch(ids, np.repeat(values[:, None], width, 1))
        cache.flush()
        print("put", flush=True)
        getattr(cache, how)(remote, progress=False)
        print("done", flush=True)
"""
DAY = 24 * 3600.0

faults = st.tuples(st.sampled_from(["", "", "", "before", "after", "twice", "act"]), st.integers(0, 12))


class PartsMachine(MembersMachine):
    """Hosts that push and pull, and what happens at the remote itself."""

    # Pushing and pulling

    def acting(self, busy: Member, data: Any) -> Callable[[], None]:
        """What others do while a request of a host waits."""
        what = data.draw(st.sampled_from(["push", "put", "gc", "merge", "retire"]), "meanwhile")
        others = [member for member in self.members if member is not busy]
        other = others[data.draw(members, "other") % len(others)] if others else None
        if what == "push" and other is not None:
            return lambda: self.exchange(other, "push", ("", 0), None)
        if what == "put" and other is not None:
            return lambda: self.do_put(other, [1, 2, 3], flush=True)
        if what == "merge":
            return lambda: self.do_merge(False, ("", 0))
        if what == "retire" and other is not None:
            return lambda: self.do_retire(other)
        return self.collect

    @rule(which=members, how=st.sampled_from(["push", "push", "pull", "sync"]), fault=faults, data=st.data())
    def exchange_with_remote(self, which: int, how: str, fault: tuple[str, int], data: Any) -> None:
        member = self.member(which)
        self.exchange(member, how, fault, self.acting(member, data) if fault[0] == "act" else None)

    def exchange(self, member: Member, how: str, fault: tuple[str, int], act: Callable[[], None] | None) -> None:
        cache, before = self.cache(member), self.generation(member)
        url = None if member.at_url else self.remote
        self.coming(member)
        sure = True
        try:
            with self.network.with_fault(*fault, act):
                getattr(cache, how)(url, progress=False)
        except RemoteUnavailable:
            assert fault[0] in ("before", "after") or self.network.down
            sure = False
        if how != "push":
            self.pulled(member, sure=sure and act is None)
        if self.generation(member) != before and before:
            self.settle(member)
        if how != "pull":
            self.pushed(member, sure=sure)

    @rule(
        which=members,
        how=st.sampled_from(["push", "pull", "sync"]),
        some=ids,
        at=st.integers(0, 30),
        moment=st.sampled_from(["request", "request", "before", "middle", "after"]),
        beside=st.booleans(),
    )
    def killed(self, which: int, how: str, some: list[int], at: int, moment: str, beside: bool) -> None:
        """Another process of a host puts samples, and pushes or pulls, and kills itself, or ends well before that.

        beside: the host's cache stays open, with a chunk that the push of the other process leaves out.
        """
        member = self.member(which)
        if member.at_url or self.network.down:
            return
        if beside:
            self.cache(member).flush()
        else:
            self.reload(member)
        before, first = self.generation(member), self.last + 1
        self.last += len(some)
        task = self.folder / "task"
        content = str(member.path), {"sign": member.signed}, str(self.remote), how, some, first, WIDTH, at, moment
        task.write_bytes(pickle.dumps(content))
        command = [sys.executable, "-c", CHILD, str(task)]
        done = warm.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        new = dict(zip(some, range(first, first + len(some)), strict=True))
        if beside:
            self.cache(member)._session.version.see_others()
        else:
            self.reload(member)
        found = found_in(self.cache(member))
        there = {sample for sample, value in new.items() if found.get(sample) == value}
        assert there in (set(), set(some))
        assert there or "put" not in done.stdout
        self.holding(member.part, {sample: {new[sample]} for sample in there})
        member.own |= {sample: new[sample] for sample in there}
        self.coming(member)
        if how != "push":
            self.pulled(member, sure="done" in done.stdout)
        if self.generation(member) != before and before:
            self.settle(member)
        if how != "pull":
            self.pushed(member, sure="done" in done.stdout and not beside)

    def reload(self, member: Member) -> None:
        """Open the cache again, which sees all that other processes have done."""
        self.cache(member).close()
        member.cache = ws.FeatureCache(self.place(member), "net", **self.options(member))

    # Upkeep

    @property
    def url(self) -> Path:
        return self.remote / "net"

    @rule(sign=st.booleans(), fault=faults)
    def merge(self, sign: bool, fault: tuple[str, int]) -> None:
        self.do_merge(sign, ("", 0) if fault[0] == "act" else fault)

    def do_merge(self, sign: bool, fault: tuple[str, int]) -> None:
        merged = [part for part in self.seen_by(signed=sign) if part.all]
        if self.network.down or not merged:
            return
        part = PushedPart(sign)
        try:
            with self.network.with_fault(*fault):
                done = merge_parts(Remote(self.url, sign=sign), progress=False)
        except NotTrusted:
            assert not sign
            return
        except NotAStore:
            assert not any(part.must for part in merged)
            return
        except (RemoteUnavailable, Damaged):
            assert fault[0] in ("before", "after")
            self.parts.append(part)
            part.may = joined(*(each.all for each in merged))
            self.holding(part, part.may)
            return
        if done.parts > 1:
            self.parts.append(part)
            part.must = joined(*(each.must for each in merged))
            part.may = joined(*(each.all for each in merged))
            self.holding(part, part.may)
            for each in merged:
                each.must, each.may = {}, {}

    @rule(which=members)
    def retire(self, which: int) -> None:
        self.do_retire(self.member(which))

    def do_retire(self, member: Member) -> None:
        if self.network.down or not member.part.must:
            return
        store = read_manifest(self.cache(member).path, Files()).id
        retire(Remote(self.url, sign=member.signed), store)
        member.part.must, member.part.may = {}, {}

    @rule(days=st.sampled_from([0, 0.6, 2]))
    def age(self, days: float) -> None:
        for path in self.remote.rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime - days * DAY
                os.utime(path, (then, then))
        self.collect()

    def collect(self) -> None:
        if (self.url / "heads").exists() and not self.network.down:
            gc(Remote(self.url), keep=DAY)
            for member in self.members:
                if member.at_url:  # chunks of parts that were replaced or retired are gone until it pulls again
                    member.must = set()

    @rule(pick=st.integers(0, 9), how=st.sampled_from(["flip", "cut", "remove"]))
    def damage(self, pick: int, how: str) -> None:
        """An object is damaged. Nobody finds a wrong value; a repair forgets it, and its host's next push sends it."""
        objects = [path for kind in ("chunks", "sidecars") for path in sorted(self.url.glob(f"{kind}/*"))]
        if not objects or self.network.down or not (self.url / "heads").exists():
            return
        damaged = objects[pick % len(objects)]
        data = damaged.read_bytes()
        damaged.write_bytes(data[: len(data) // 2] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
        if how == "remove":
            damaged.unlink()
        for part in self.parts:
            part.must, part.may = {}, part.ever  # of a chunk that is left out another may have earlier values
        for member in self.members:
            if member.at_url:
                member.must = set()
        self.pull_anew(False)
        for sign in (False, True):
            with contextlib.suppress(NotTrusted):
                repair(Remote(self.url, sign=sign), deep=True)

    @rule(steps=st.integers(1, 4))
    def offline(self, steps: int) -> None:
        """The network is down for the next steps."""
        self.network.down, self.offline_for = True, steps + 1

    @rule(signed=st.booleans())
    def pull_anew(self, signed: bool) -> None:
        """Pull into an empty folder."""
        if self.network.down:
            return
        path = self.folder / "anew"
        parts = self.seen_by(signed=signed)
        with ws.FeatureCache(path, "net", sign=signed) as cache:
            cache.pull(self.remote, progress=False)
            found = found_in(cache)
        shutil.rmtree(path, ignore_errors=True)
        allowed = joined(*(part.all for part in parts))
        assert all(value in allowed.get(sample, ()) for sample, value in found.items())
        assert found.keys() >= joined(*(part.must for part in parts)).keys()

    # What must hold after every step

    @invariant()
    def network_comes_back(self) -> None:
        self.offline_for -= 1
        self.network.down = self.offline_for > 0

    @invariant()
    def everybody_finds_what_it_must(self) -> None:
        for member in self.members:
            self.check(member)

    def teardown(self) -> None:
        self.network.down = False
        try:
            if (self.url / "heads").exists():
                self.pull_anew(False)
                self.pull_anew(True)
            for member in self.members:
                self.close(member)
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder)


def test_hosts_that_share_a_cache() -> None:
    run_machine(PartsMachine, either(6, 100), either(40, 60))
