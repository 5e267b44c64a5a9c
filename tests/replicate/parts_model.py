"""What is known of hosts that share a cache, and their programs that put samples. See test_parts_machine.py."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.replicate.network import Network

import warmstore as ws
from warmstore.records.format.manifest import read_manifest
from warmstore.records.write import chunk_merging
from warmstore.remote.signing import KEY
from warmstore.storage.files import Files

WIDTH = 3000
IDS = 12

Values = dict[int, set[int]]

members = st.integers(0, 3)
ids = st.lists(st.integers(0, IDS - 1), min_size=1, max_size=6, unique=True)


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
    """A host. own: what it has put. must: other ids that it finds. exact: their values, if those are certain.

    deleted: ids that it has deleted since. They may come back with a pull.
    """

    path: Path
    signed: bool
    at_url: bool
    part: PushedPart
    cache: ws.FeatureCache | None = None
    own: dict[int, int] = field(default_factory=dict)
    must: set[int] = field(default_factory=set)
    exact: dict[int, int] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)


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


class MembersMachine(RuleBasedStateMachine):
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
        self.patch.setattr(chunk_merging, "FAN_IN", 3)
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
            others = [part for part in self.seen_by(signed=member.signed) if part is not member.part]
            for part in others:
                member.must |= part.must.keys() - member.deleted
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

    def do_put(
        self, member: Member, some: list[int], *, flush: bool = True, cache: ws.FeatureCache | None = None
    ) -> None:
        """Put samples with the open cache of a host, or with another one of its folder."""
        values = np.arange(self.last + 1, self.last + 1 + len(some), dtype=np.float32)
        self.last += len(some)
        cache = cache or self.cache(member)
        cache.put_batch(some, np.repeat(values[:, None], WIDTH, 1))
        member.own |= dict(zip(some, values.astype(int).tolist(), strict=True))
        if flush:
            cache.flush()

    @rule(which=members, some=ids, again=st.booleans())
    def put_beside(self, which: int, some: list[int], again: bool) -> None:
        """Two processes of a host put the same samples, by turns: the last come into the chunk that was begun first."""
        member = self.member(which)
        if not member.at_url:
            self.do_put(member, some)
            with ws.FeatureCache(self.place(member), "net", **self.options(member)) as second:
                self.do_put(member, some, cache=second)
            self.cache(member)._session.version.see_others()
            if again:
                self.do_put(member, some[:1])

    @rule(which=members, pick=st.integers(0, IDS - 1))
    def delete(self, which: int, pick: int) -> None:
        member = self.member(which)
        there = sorted(member.own.keys() | member.must)
        if not member.at_url and there:
            sample = there[pick % len(there)]
            del self.cache(member)[sample]
            assert sample not in self.cache(member)
            member.own.pop(sample, None)
            member.deleted.add(sample)
            member.must.discard(sample)
            member.exact.pop(sample, None)

    @rule(which=members)
    def rebalance(self, which: int) -> None:
        member = self.member(which)
        if not member.at_url:
            self.cache(member).rebalance(progress=False)
            self.settle(member)
