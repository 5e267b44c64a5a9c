"""Feature caches against plain functions: random programs of several caches, modules that change, and children.

A call returns what a function of the module's state computes without a cache, bit for bit. It computes no sample that
a cache has, and each sample that none can have. Errors are those that the program earned: of a second state where
there is one version, of a second shape where shapes are fixed.
"""

import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.faults.children import begun, well
from tests.faults.seam import Killing
from tests.features.cache_world import NAMES, CacheWorld, Opened, Truth, merged, options
from tests.features.drawn_module import (
    SAMPLES,
    VALUES,
    WIDTHS,
    Batch,
    Sample,
    State,
    batches,
    expected,
    one,
    same,
    spoil,
)
from tests.slow import either
from tests.state_machines import run_machine

import warmstore as ws
from warmstore.features.keyed import cache_session
from warmstore.storage.humanize import parse_size

pytestmark = pytest.mark.forks

ANY = st.integers(0, 2)  # an open cache
NET = st.sampled_from([0, 0, 1])
opened_any = precondition(lambda self: self.opened)


class CacheMachine(CacheWorld):
    """Random programs."""

    @initialize(
        variable=st.booleans(),
        max_size=st.sampled_from([None, None, None, "4MB", "9MB"]),
        given=options(),
        in_use=st.sampled_from([1, 8]),
    )
    def begin(self, variable: bool, max_size: str | None, given: dict[str, Any], in_use: int) -> None:
        self.patches.setattr(cache_session, "_IN_USE", in_use)
        self.common = {"variable": variable, "max_size": max_size, "lists": "per_sample"}
        self.open_cache(NAMES[0], given)

    # Opening and closing

    @precondition(lambda self: len(self.opened) < 3)
    @rule(name=st.sampled_from([NAMES[0], *NAMES]), given=options())
    def open(self, name: str, given: dict[str, Any]) -> None:
        self.open_cache(name, given)

    @opened_any
    @rule(number=ANY)
    def close(self, number: int) -> None:
        self.close_cache(self.which(number))

    # Calling

    @rule(number=st.integers(0, 1), name=st.sampled_from(list(VALUES)), data=st.data(), how=st.integers(0, 3))
    def change(self, number: int, name: str, data: Any, how: int) -> None:
        value = data.draw(st.sampled_from(VALUES[name]), "value")
        self.nets[number].change(name, value, how)
        self.states[number] = replace(self.states[number], **{name: value})

    @opened_any
    @rule(number=ANY, net=NET, batch=batches())
    def call(self, number: int, net: int, batch: Batch) -> None:
        self.called(self.which(number), net, batch)

    @opened_any
    @rule(
        number=ANY,
        net=NET,
        width=st.sampled_from([2, 2, 5]),
        order=st.permutations(range(14)),
        size=st.integers(1, 5),
        stop=st.integers(1, 6),
    )
    def epochs(self, number: int, net: int, width: int, order: list[int], size: int, stop: int) -> None:
        """An epoch, of which the second one is broken off, and each sample in order."""
        samples = [WIDTHS[width][at] for at in order]
        parts = [samples[first : first + size] for first in range(0, len(samples), size)]
        for part in [*parts, *parts[:stop], WIDTHS[width]]:
            self.called(self.which(number), net, Batch(part))

    @opened_any
    @rule(number=ANY, net=NET, batch=batches(plain=True), name=st.sampled_from(list(VALUES)), data=st.data())
    def call_again(self, number: int, net: int, batch: Batch, name: str, data: Any) -> None:
        """A batch is called again and again, and the module changes once."""
        for step in ("", "flush", "", "change", ""):
            self.called(self.which(number), net, batch)
            if step == "flush":
                self.flush(number)
            elif step == "change":
                self.change(net, name, data, 1)

    @opened_any
    @rule(number=ANY)
    def flush(self, number: int) -> None:
        opened = self.which(number)
        try:
            opened.cache.flush()
        except self.errors(opened):
            self.refused(opened)
        else:
            if opened.writes:
                self.committed(opened)

    @opened_any
    @rule(number=ANY, net=NET, order=st.permutations(range(14)), plain=st.booleans())
    def fill(self, number: int, net: int, order: list[int], plain: bool) -> None:
        """Fill a cache by a loader of both widths, with the module or what is wrapped."""
        opened, state = self.which(number), self.states[net]
        wide = self.common["variable"] and state.form != "items"
        parts = [[WIDTHS[width][at] for at in order[:9]] for width in ((2, 5) if wide else (2,))]
        for part in parts:
            self.touch(opened, state, part)
        module = self.nets[net] if plain else opened.module(net, self.nets[net])
        before = len(self.nets[net].seen)
        try:
            result = opened.cache.fill(
                module, [Batch(part[at : at + 3]).arguments() for part in parts for at in (0, 3, 6)]
            )
        except ws.ReadOnly:
            assert opened.options["read_only"]
            return
        except self.errors(opened):
            self.refused(opened)
            return
        computed = {SAMPLES[at - 1] for at in self.nets[net].seen[before:]}
        wanted = set().union(*parts)
        known, unknown = self.known(opened, state), self.unknown(opened, state)
        if opened.writes:
            assert (result.batches, result.computed + result.found) == (3 * len(parts), 9 * len(parts))
            assert wanted - known - unknown <= computed <= wanted
            assert state not in opened.settled or not computed & known
            opened.pending = merged(opened.pending, {state: wanted})
            self.committed(opened)
            opened.settled.add(state)
        else:
            assert not computed

    # Looking into the version that a cache has open

    @opened_any
    @rule(number=ANY, batch=batches(plain=True))
    def look(self, number: int, batch: Batch) -> None:
        """Read a cache as a dict, and a batch of it."""
        opened = self.which(number)
        state = self.version(opened)
        if state is None:
            return
        while not self.looked(opened, state, batch):
            pass

    def looked(self, opened: Opened, state: State, batch: Batch) -> bool:
        """Whether a cache was read while no thread of another one committed; all of it is right then."""
        listed = set(opened.cache)
        found = {each for each in SAMPLES if each.id in opened.cache}
        count, stats = len(opened.cache), opened.cache.stats()
        values = {sample: opened.cache.get(sample.id) for sample in found}
        _, ids = batch.arguments()
        output, missing = opened.cache.get_batch(ids)
        if set(opened.cache) != listed:
            return False
        known, unknown = self.known(opened, state), self.unknown(opened, state)
        assert known <= found <= known | unknown
        assert listed == {ws.HashedId.of(each.id) for each in found}
        assert count == len(found)
        for sample, value in values.items():
            assert same(value, one(state, sample))
        assert missing.tolist() == [at for at, sample in enumerate(batch.samples) if sample not in found]
        there = [sample for sample in batch.samples if sample in found]
        assert same(output, expected(state, there)) if there else output is None
        spoil(output)
        assert stats.entries + stats.pending >= len(found)
        return True

    @opened_any
    @rule(number=ANY, batch=batches(plain=True))
    def put(self, number: int, batch: Batch) -> None:
        opened = self.which(number)
        state = self.version(opened)
        if state is None or not opened.writes:
            return
        self.touch(opened, state, batch.samples)
        output = expected(state, batch.samples)
        try:
            opened.cache.put_batch(batch.arguments()[1], output)
        except self.errors(opened):
            self.refused(opened)
        else:
            opened.pending = merged(opened.pending, {state: set(batch.samples)})
        spoil(output)

    @opened_any
    @rule(number=ANY, sample=st.sampled_from(SAMPLES))
    def delete(self, number: int, sample: Sample) -> None:
        opened = self.which(number)
        state = self.version(opened)
        if state is None or not opened.writes:
            return
        try:
            del opened.cache[sample.id]
        except KeyError:
            assert sample not in self.known(opened, state)
            return
        except self.errors(opened):
            self.refused(opened)
            return
        self.deleted(opened, state, {sample})

    @opened_any
    @rule(number=ANY)
    def clear(self, number: int) -> None:
        opened = self.which(number)
        state = self.version(opened)
        if state is None or not opened.writes:
            return
        try:
            opened.cache.clear()
        except self.errors(opened):
            self.refused(opened)
            return
        self.deleted(opened, state, set(SAMPLES))

    @opened_any
    @rule(number=ANY)
    def rebalance(self, number: int) -> None:
        opened = self.which(number)
        if not opened.writes:
            return
        try:
            opened.cache.rebalance(progress=False)
        except self.errors(opened):
            self.refused(opened)
        else:
            self.committed(opened)

    # Folders

    @rule(name=st.sampled_from([NAMES[0], *NAMES]), one=st.none() | st.integers(0, 3))
    def remove(self, name: str, one: int | None) -> None:
        """Remove all versions of a cache, or one of them."""
        folders = sorted(path for path in self.root.glob(f"{name}*") if path.is_dir())
        if not folders:
            return
        for folder in folders if one is None else [folders[one % len(folders)]]:
            while folder.exists():  # an open cache may be writing into it
                shutil.rmtree(folder, ignore_errors=True)
        self.was_removed = True
        truth = self.truths[name]
        users = [opened for opened in self.opened if opened.name == name]
        if one is not None or users:
            # An open store of a removed folder may serve what it had; what was committed in the background is lost.
            truth.maybe = merged(truth.maybe, truth.durable)
            truth.durable = {}
            truth.loose |= one is not None or any(opened.options["versions"] == "new" for opened in users)
            for opened in users:
                opened.unsure = True
                if opened.options["flush_every"] < len(SAMPLES):
                    self.refused(opened)
        else:
            self.truths[name] = Truth()

    @rule(number=st.integers(0, 1), net=NET, given=options())
    def copy(self, number: int, net: int, given: dict[str, Any]) -> None:
        """Copy the folder of all caches, and use the copy."""
        if not self.root.exists():  # no precondition: threads of caches make it at any time
            return
        root, self.root = self.root, self.folder / f"copy {number}"
        truths, everybody = self.truths, self.opened
        shutil.rmtree(self.root, ignore_errors=True)
        try:
            shutil.copytree(root, self.root)
        except shutil.Error as error:  # what a cache was writing has its name by now
            if not all(".tmp" in name for name, *_ in error.args[0]):  # or is in a folder that had such a name
                raise
        truth = truths[NAMES[0]]
        maybe = merged(truth.maybe, *(opened.pending for opened in everybody if opened.name == NAMES[0]))
        self.truths = {NAMES[0]: replace(truth, maybe=maybe, states=set(truth.states), widths=set(truth.widths))}
        self.opened = []
        try:
            opened = self.open_cache(NAMES[0], given)
            for width in WIDTHS:
                self.called(opened, net, Batch(WIDTHS[width]))
            self.close_cache(opened)
        finally:
            self.copied[number] = self.truths[NAMES[0]]
            self.root, self.truths, self.opened = root, truths, everybody

    @opened_any
    @rule(number=ANY, which=st.sampled_from([0, 1, *NAMES]))
    def merge(self, number: int, which: int | str) -> None:
        """Merge a copy that was used, or another name."""
        opened = self.which(number)
        source = self.folder / f"copy {which}" / NAMES[0] if type(which) is int else self.root / str(which)
        if not (source / "store.json").exists() or not opened.writes or which == opened.name:
            return
        for state in list((self.truths[which] if type(which) is str else self.copied[which]).states):
            for samples in WIDTHS.values():
                self.may_have(opened, state, samples)
        try:
            opened.cache.merge(source, progress=False)
        except self.errors(opened):
            self.refused(opened)

    # Changes that happen meanwhile

    @precondition(lambda self: any(opened.files for opened in self.opened))
    @rule(number=ANY, net=NET, name=st.sampled_from(list(VALUES)), data=st.data(), batch=batches(plain=True))
    def change_amid(self, number: int, net: int, name: str, data: Any, batch: Batch) -> None:
        """The module changes at an operation on files of a call."""
        able = [opened for opened in self.opened if opened.files]
        opened = able[number % len(able)]
        value = data.draw(st.sampled_from(VALUES[name]), "value")
        left = [data.draw(st.integers(0, 30), "operations")]
        old, new = self.states[net], replace(self.states[net], **{name: value})

        def check() -> None:
            left[0] -= threading.current_thread() is threading.main_thread()
            if left[0] == 0:
                left[0] = -1
                self.nets[net].change(name, value, 1)
                self.states[net] = new

        assert opened.files is not None
        opened.files.check = check
        try:
            self.uncertain(opened, net, batch, old, new)
        finally:
            opened.files.check = None

    @opened_any
    @rule(
        plans=st.lists(
            st.tuples(ANY, NET, batches(plain=True), st.sampled_from(["", "flush", "rebalance", "look"])),
            min_size=2,
            max_size=4,
        )
    )
    def threads(self, plans: list[tuple[int, int, Batch, str]]) -> None:
        """Threads call modules, flush and rebalance at once."""
        refused: list[Opened] = []
        works = []
        for number, net, batch, then in plans:
            opened, state = self.which(number), self.states[net]
            self.may_have(opened, state, batch.samples)
            works.append((opened, opened.module(net, self.nets[net]), state, batch, then, refused))
        with ThreadPoolExecutor(len(works)) as threads:
            for done in [threads.submit(self.beside_others, *work) for work in works]:
                done.result()
        for opened in refused:
            self.refused(opened)

    # Other processes

    @opened_any
    @rule(number=ANY)
    def pickled(self, number: int) -> None:
        """What a process gets that this one starts."""
        opened = self.which(number)
        if len(self.opened) < 3:
            cache = pickle.loads(pickle.dumps(opened.cache))
            self.opened.append(Opened(opened.name, opened.options, cache, None))

    @opened_any
    @rule(
        number=ANY,
        net=NET,
        parts=st.lists(batches(), min_size=1, max_size=3),
        kind=st.sampled_from(["inherited", "pickled", "own"]),
        end=st.sampled_from(["flush", "close", "lost", "killed"]),
        killing=st.tuples(st.integers(0, 60), st.sampled_from(["before", "middle", "after"])),
        beside=st.lists(st.tuples(ANY, NET, batches()), max_size=3),
    )
    def child(
        self,
        number: int,
        net: int,
        parts: list[Batch],
        kind: str,
        end: str,
        killing: tuple[int, str],
        beside: list[tuple[int, int, Batch]],
    ) -> None:
        """A forked child calls a module and ends in some way, while this process calls others."""
        opened = self.which(number)
        inherited = opened.module(net, self.nets[net])

        def work(say: Callable[[Any], None]) -> None:
            child = replace(opened, pending={}, settled=set(), modules={net: inherited})
            if kind == "pickled":
                child.cache = pickle.loads(pickle.dumps(opened.cache))
            elif kind == "own" or end == "killed":
                files = Killing(*killing) if end == "killed" else None
                child.cache = ws.FeatureCache(self.root, opened.name, files=files, **self.common, **opened.options)
            if child.cache is not opened.cache:
                child.modules.clear()
            self.as_child(child, net, parts, end, [self.samples_of(part, other_net) for _, other_net, part in beside])
            say(child.pending)

        for part in parts:
            self.may_have(opened, part.state(self.states[net]), part.samples)
        for other, other_net, part in beside:
            self.touch(self.which(other), part.state(self.states[other_net]), part.samples)
        ended = begun(work)
        for other, other_net, part in beside:
            self.called(self.which(other), other_net, part)
        done = ended()
        if done.signal and end == "killed":
            return
        (pending,) = well(done)
        if end != "lost":
            self.truths[opened.name].durable = merged(self.truths[opened.name].durable, pending)

    # Limits

    @precondition(lambda self: self.common.get("max_size") == "9MB")
    @rule(given=options())
    def lower(self, given: dict[str, Any]) -> None:
        """The program is started again with a lower limit."""
        while self.opened:
            self.close_cache(self.opened[0])
        self.common["max_size"] = "4MB"
        self.above_limit = set(NAMES)
        self.open_cache(NAMES[0], given)

    @invariant()
    def no_cache_is_above_its_limit(self) -> None:
        for name in NAMES if self.common.get("max_size") else ():
            if name not in self.above_limit:
                assert self.bytes_of(name) <= parse_size(self.common["max_size"])

    @invariant()
    def only_the_truth_is_said(self) -> None:
        self.nothing_untrue_is_said()


def test_caches_equal_functions() -> None:
    run_machine(CacheMachine, either(3, 150), either(30, 60))
