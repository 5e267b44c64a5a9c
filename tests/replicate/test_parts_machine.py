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
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests import warm
from tests.replicate.network import Network
from tests.slow import either

import warmstore as ws
from warmstore.errors import Damaged, NotAStore, NotTrusted, RemoteUnavailable
from warmstore.features.remote_merging import merge_parts
from warmstore.records.format.manifest import read_manifest
from warmstore.remote.signing import KEY
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
WIDTH = 3000
IDS = 24

Values = dict[int, set[int]]

members = st.integers(0, 3)
ids = st.lists(st.integers(0, IDS - 1), min_size=1, max_size=6, unique=True)
faults = st.tuples(st.sampled_from(["", "", "", "before", "after", "twice", "act"]), st.integers(0, 12))


@dataclass(eq=False)
class PushedPart:
    """What a host has at the remote: values that it has, those that it may have besides, and all that it ever had."""

    signed: bool
    must: Values = field(default_factory=dict)
    may: Values = field(default_factory=dict)
    ever: Values = field(default_factory=dict)

    @property
    def all(self) -> Values:
        return joined(self.must, self.may)


@dataclass(eq=False)
class Member:
    """A host. own: what it has put. must: other ids that it finds. exact: their values, if those are certain."""

    path: Path
    signed: bool
    at_url: bool
    part: PushedPart
    cache: ws.FeatureCache | None = None
    own: dict[int, int] = field(default_factory=dict)
    must: set[int] = field(default_factory=set)
    exact: dict[int, int] = field(default_factory=dict)


def joined(*values: Values) -> Values:
    """All values of each sample."""
    found: Values = {}
    for each in values:
        for sample, those in each.items():
            found[sample] = found.get(sample, set()) | those
    return found


def found_in(cache: ws.FeatureCache) -> dict[int, int]:
    """The values that are found of all ids. All bytes of a value are equal."""
    values, missing = cache.get_batch(list(range(IDS)))
    gone = set(missing.tolist())
    there = [sample for sample in range(IDS) if sample not in gone]
    if values is None:
        return {}
    rows = np.asarray(values)
    assert rows.shape == (len(there), WIDTH)
    assert rows.dtype == np.float32
    assert (rows == rows[:, :1]).all()
    return dict(zip(there, rows[:, 0].astype(int).tolist(), strict=True))


class PartsMachine(RuleBasedStateMachine):
    """parts: of all hosts, those that have left included, and of merges. ever: all values that were pushed, or may be.

    holders: the parts that ever had an id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.remote = self.folder / "remote"
        self.network = Network()
        self.patch = pytest.MonkeyPatch()
        self.network.use(self.patch)
        self.patch.setenv("XDG_CACHE_HOME", str(self.folder / "cached"))
        self.patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
        self.patch.setenv(KEY, "hmac:" + "5a" * 32)
        self.parts: list[PushedPart] = []
        self.members: list[Member] = []
        self.ever: Values = {}
        self.holders: dict[int, set[PushedPart]] = {}
        self.last = self.made = self.offline_for = 0

    # Hosts

    @initialize(signed=st.sampled_from([False, False, True]), at_url=st.booleans())
    def begin(self, signed: bool, at_url: bool) -> None:
        self.join(False, False)
        self.join(signed, at_url)

    @rule(signed=st.sampled_from([False, False, True]), at_url=st.booleans())
    def join(self, signed: bool, at_url: bool) -> None:
        if len(self.members) < 4:
            self.made += 1
            member = Member(self.folder / f"host{self.made}", signed, at_url, PushedPart(signed))
            self.parts.append(member.part)
            self.members.append(member)
            self.open(member)

    def options(self, member: Member) -> dict[str, Any]:
        options: dict[str, Any] = {"sign": member.signed, "async_write": False}
        return {**options, "cache_dir": str(member.path)} if member.at_url else options

    def place(self, member: Member) -> str:
        return self.remote.as_uri() if member.at_url else str(member.path)

    def open(self, member: Member) -> None:
        member.cache = ws.FeatureCache(self.place(member), "net", **self.options(member))
        if member.at_url:
            self.pulled(member, sure=not self.network.down)

    def close(self, member: Member) -> None:
        self.coming(member)
        self.cache(member).close()
        if member.at_url:
            self.pushed(member, sure=not self.network.down)

    def cache(self, member: Member) -> ws.FeatureCache:
        assert member.cache is not None
        return member.cache

    def member(self, which: int) -> Member:
        return self.members[which % len(self.members)]

    @rule(which=members)
    def reopen(self, which: int) -> None:
        member = self.member(which)
        self.close(member)
        self.open(member)

    @rule(which=members)
    def leave(self, which: int) -> None:
        member = self.member(which)
        if len(self.members) > 1:
            self.close(member)
            self.members.remove(member)

    # What is known

    def seen_by(self, *, signed: bool) -> list[PushedPart]:
        return [part for part in self.parts if part.signed or not signed]

    def holding(self, part: PushedPart, values: Values) -> None:
        """A part has these values, or may have them."""
        self.ever, part.ever = joined(self.ever, values), joined(part.ever, values)
        for sample in values:
            self.holders.setdefault(sample, set()).add(part)

    def coming(self, member: Member) -> None:
        """A push of a host begins."""
        self.holding(member.part, {sample: {value} for sample, value in member.own.items()})

    def pushed(self, member: Member, *, sure: bool) -> None:
        part, now = member.part, {sample: {value} for sample, value in member.own.items()}
        if sure:
            part.must, part.may = now, {}
        else:
            part.must, part.may = (
                {sample: those for sample, those in part.must.items() if now.get(sample) == those},
                joined(part.all, now),
            )

    def pulled(self, member: Member, *, sure: bool) -> None:
        """A host has pulled, all of it or perhaps some."""
        member.exact = {}
        if sure:
            for part in self.seen_by(signed=member.signed):
                member.must |= part.must.keys()
                for sample, those in part.must.items():
                    if self.holders[sample] == {part} and part.all[sample] == those and len(those) == 1:
                        member.exact[sample] = min(those)

    def generation(self, member: Member) -> int:
        path = self.cache(member).path
        return read_manifest(path, Files()).generation if (path / "store.json").exists() else 0

    def settle(self, member: Member) -> None:
        """All that a host finds is its own from now on."""
        self.check(member)
        member.own, member.must, member.exact = found_in(self.cache(member)), set(), {}
        self.coming(member)

    def check(self, member: Member) -> None:
        found = found_in(self.cache(member))
        for sample, value in found.items():
            if sample in member.own:
                assert value == member.own[sample]
            else:
                assert value in ({member.exact[sample]} if sample in member.exact else self.ever[sample])
        missing = (member.own.keys() | member.must) - found.keys()
        assert not missing or (member.at_url and self.network.down and not missing & member.own.keys())

    # Writing

    @rule(which=members, some=ids, flush=st.booleans())
    def put(self, which: int, some: list[int], flush: bool) -> None:
        self.do_put(self.member(which), some, flush=flush)

    def do_put(self, member: Member, some: list[int], *, flush: bool) -> None:
        values = np.arange(self.last + 1, self.last + 1 + len(some), dtype=np.float32)
        self.last += len(some)
        self.cache(member).put_batch(some, np.repeat(values[:, None], WIDTH, 1))
        member.own |= dict(zip(some, values.astype(int).tolist(), strict=True))
        if flush:
            self.cache(member).flush()

    @rule(which=members, sample=st.integers(0, IDS - 1))
    def delete(self, which: int, sample: int) -> None:
        member = self.member(which)
        if not member.at_url and sample in member.own.keys() | member.must:
            del self.cache(member)[sample]
            assert sample not in self.cache(member)
            member.own.pop(sample, None)
            member.must.discard(sample)
            member.exact.pop(sample, None)

    @rule(which=members)
    def rebalance(self, which: int) -> None:
        member = self.member(which)
        if not member.at_url:
            self.cache(member).rebalance(progress=False)
            self.settle(member)

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
            if act is not None:
                member.part.may = joined(member.part.may, {})

    @rule(
        which=members,
        how=st.sampled_from(["push", "pull", "sync"]),
        some=ids,
        at=st.integers(0, 30),
        moment=st.sampled_from(["request", "request", "before", "middle", "after"]),
    )
    def killed(self, which: int, how: str, some: list[int], at: int, moment: str) -> None:
        """Another process of a host puts samples, and pushes or pulls, and kills itself."""
        member = self.member(which)
        if member.at_url or self.network.down:
            return
        self.reload(member)  # a push leaves out the chunks of writers that live
        before, first = self.generation(member), self.last + 1
        self.last += len(some)
        task = self.folder / "task"
        content = str(member.path), {"sign": member.signed}, str(self.remote), how, some, first, WIDTH, at, moment
        task.write_bytes(pickle.dumps(content))
        command = [sys.executable, "-c", CHILD, str(task)]
        done = warm.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        new = dict(zip(some, range(first, first + len(some)), strict=True))
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
            self.pushed(member, sure="done" in done.stdout)

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


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        PartsMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_hosts_that_share_a_cache() -> None:
    run(either(3, 25), 40, derandomize=True)


@pytest.mark.slow
def test_hosts_that_share_a_cache_for_long() -> None:
    run(300, 60, derandomize=False)
