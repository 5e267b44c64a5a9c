"""What caches must have, for programs that are drawn: the operations, and the checks of what each returns."""

import contextlib
import gc
import logging
import re
import shutil
import stat
import sys
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from tests.faults.seam import Calling
from tests.features.drawn_module import SAMPLES, VALUES, WIDTHS, Batch, Drawn, Sample, State, expected, one, same, spoil
from tests.state_machines import KeptWarnings

import warmstore as ws
from warmstore.storage.disk_usage import entries_below

NAMES = ("one", "two")

Known = dict[State, set[Sample]]


def merged(*all_of_them: Known) -> Known:
    return {
        state: set().union(*(known.get(state, ()) for known in all_of_them)) for known in all_of_them for state in known
    }


@dataclass(eq=False)
class Truth:
    """What the folder of one name has. `maybe`: what it may have; `states`: those that were called."""

    durable: Known = field(default_factory=dict)
    maybe: Known = field(default_factory=dict)
    states: set[State] = field(default_factory=set)
    widths: set[tuple[State, int]] = field(default_factory=set)
    loose: bool = False  # whether a state may be in two folders


@dataclass(eq=False)
class Opened:
    """An open cache; `pending` is what it has accepted."""

    name: str
    options: dict[str, Any]
    cache: ws.FeatureCache
    files: Calling | None
    modules: dict[int, ws.CachedModule] = field(default_factory=dict)
    pending: Known = field(default_factory=dict)
    settled: set[State] = field(default_factory=set)
    unsure: bool = False  # whether it may have found samples in a folder that is removed

    def module(self, number: int, net: Drawn) -> Any:
        if number not in self.modules:
            self.modules[number] = ws.CachedModule(net, self.cache)
        return self.modules[number]

    @property
    def writes(self) -> bool:
        return not self.options["read_only"] and self.options["writer_ranks"] is None


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "versions": draw(st.sampled_from(["raise", "new", "new"])),
        "flush_every": draw(st.sampled_from([1, 3, 2048, 2048])),
        "async_write": draw(st.booleans()),
        "read_only": draw(st.sampled_from([False] * 5 + [True])),
        "writer_ranks": draw(st.sampled_from([None] * 5 + [[1]])),
        "hot_size": draw(st.sampled_from([None, None, "all", "20KB"])),
        "codec": draw(st.sampled_from(["raw", "raw", "zstd", "lz4"])),
    }


class CacheWorld(RuleBasedStateMachine):
    """Open caches in one folder, and what they have. `truths` says what is on the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "caches"
        self.nets = [Drawn(), Drawn()]
        self.states = [State(), State()]
        self.truths = {name: Truth() for name in NAMES}
        self.common: dict[str, Any] = {}  # options of all caches
        self.copied: dict[Any, Truth] = {}
        self.opened: list[Opened] = []
        self.was_removed = False
        self.above_limit: set[str] = set()  # names whose limit was lowered, until something is written
        self.patches = pytest.MonkeyPatch()
        self.logged = KeptWarnings()
        logger = logging.getLogger("warmstore")
        logger.addHandler(self.logged)
        self.patches.setattr(logger, "propagate", False)  # pytest keeps what is logged, and errors keep their caches

    # What may be found

    def known(self, opened: Opened, state: State) -> set[Sample]:
        """What a call must not compute."""
        truth = self.truths[opened.name]
        found = opened.pending.get(state, set())
        if truth.loose or self.common["max_size"]:
            return set()
        return found | truth.durable.get(state, set())

    def unknown(self, opened: Opened, state: State) -> set[Sample]:
        """What it may compute or not."""
        truth = self.truths[opened.name]
        if truth.loose or opened.unsure or self.common["max_size"]:
            return set(SAMPLES)
        others = [other.pending for other in self.opened if other.name == opened.name and other is not opened]
        return merged(truth.maybe, *others).get(state, set())

    def errors(self, opened: Opened) -> tuple[type[Exception], ...]:
        """Those that operations of a cache may raise."""
        truth = self.truths[opened.name]
        errors: list[type[Exception]] = []
        if opened.options["versions"] == "raise" and len(truth.states) > 1:
            errors.append(ws.StaleCache)
        if not self.common["variable"] and len(truth.widths) > len({state for state, _ in truth.widths}):
            errors.append(ws.SchemaMismatch)
        return tuple(errors)

    def touch(self, opened: Opened, state: State, samples: list[Sample]) -> None:
        truth = self.truths[opened.name]
        truth.states.add(state)
        truth.widths.add((state, samples[0].width))

    def refused(self, opened: Opened) -> None:
        """An operation was an error: what was pending may be dropped."""
        truth = self.truths[opened.name]
        truth.maybe = merged(truth.maybe, opened.pending)
        opened.pending = {}

    def committed(self, opened: Opened) -> None:
        truth = self.truths[opened.name]
        truth.durable = merged(truth.durable, opened.pending)
        opened.pending = {}

    def give(self, number: int, name: str, value: Any, how: int) -> None:
        """Give a part of a module another value."""
        self.nets[number].change(name, value, how)
        self.states[number] = replace(self.states[number], **{name: value})

    def which(self, number: int) -> Opened:
        return self.opened[number % len(self.opened)]

    def open_cache(self, name: str, given: dict[str, Any]) -> Opened:
        files = Calling()
        opened = Opened(name, given, ws.FeatureCache(self.root, name, files=files, **self.common, **given), files)
        self.opened.append(opened)
        return opened

    def close_cache(self, opened: Opened) -> None:
        for _ in range(1 + 2 * len(SAMPLES)):
            try:
                opened.cache.close()
                break
            except self.errors(opened):
                self.refused(opened)
        assert opened.cache.closed
        self.committed(opened)
        self.opened.remove(opened)

    def may_have(self, opened: Opened, state: State, samples: list[Sample]) -> None:
        """Some samples are stored or not."""
        truth = self.truths[opened.name]
        self.touch(opened, state, samples)
        if opened.writes:
            truth.maybe = merged(truth.maybe, {state: set(samples)})

    def called(self, opened: Opened, number: int, batch: Batch) -> None:
        """Call a module, and check what it returns and computes."""
        net, state = self.nets[number], batch.state(self.states[number])
        self.touch(opened, state, batch.samples)
        known, unknown = self.known(opened, state), self.unknown(opened, state)
        x, ids = batch.arguments()
        settings = {} if batch.argument is None else {"argument": batch.argument}
        before = len(net.seen)
        output = None
        with batch.modes():
            try:
                output = opened.module(number, net)(x, cache_ids=ids, **settings)
            except self.errors(opened):
                self.refused(opened)
            except (ValueError, KeyboardInterrupt):
                assert batch.broken is not None
            else:
                assert same(output, expected(state, batch.samples)), (output, expected(state, batch.samples))
                spoil(output)
        computed = {SAMPLES[at - 1] for at in net.seen[before:]}
        wanted = set(batch.samples)
        assert computed <= wanted
        if state.form != "nested" or state in opened.settled:  # one sample of several parts does not show their samples
            assert not computed & known, computed & known
        if output is not None:
            assert computed >= wanted - known - unknown, wanted - known - unknown - computed
            if opened.writes:
                opened.pending = merged(opened.pending, {state: computed if opened.unsure else wanted})
            if len(batch.samples) > 1:
                opened.settled.add(state)

    def uncertain(self, opened: Opened, net: int, batch: Batch, old: State, new: State) -> None:
        """A call during which the module changes."""
        for state in (old, new):
            self.may_have(opened, state, batch.samples)
        x, ids = batch.arguments()
        try:
            output = opened.module(net, self.nets[net])(x, cache_ids=ids)
        except ws.StaleCache:
            self.refused(opened)
        except self.errors(opened):
            self.refused(opened)
        else:
            assert any(same(output, expected(state, batch.samples)) for state in (old, new)), output
            spoil(output)

    def beside_others(
        self, opened: Opened, module: Any, state: State, batch: Batch, then: str, refused: list[Opened]
    ) -> None:
        """What one of several threads does."""
        try:
            for _ in range(2):
                x, ids = batch.arguments()
                output = module(x, cache_ids=ids)
                assert same(output, expected(state, batch.samples))
                spoil(output)
                if then == "flush":
                    opened.cache.flush()
                elif then == "rebalance" and opened.writes:
                    opened.cache.rebalance(progress=False)
                elif then == "look":
                    assert len(dict(opened.cache.items())) <= len(SAMPLES)
        except self.errors(opened):
            refused.append(opened)

    def samples_of(self, batch: Batch, net: int) -> Known:
        return {batch.state(self.states[net]): set(batch.samples)}

    def as_child(self, child: Opened, net: int, parts: list[Batch], end: str, beside: list[Known]) -> None:
        """What a forked child does, while its parent calls others and commits what it has."""
        truth = self.truths[child.name]
        pending = [opened.pending for opened in self.opened if opened.name == child.name]
        truth.maybe = merged(truth.maybe, *pending, *beside)
        self.opened = [child]
        for part in parts:
            self.called(child, net, part)
        try:
            if end == "close":
                child.cache.close()
            elif end != "lost":
                child.cache.flush()
        except self.errors(child):
            self.refused(child)

    def version(self, opened: Opened) -> State | None:
        """The state of the outputs that a cache has; None if it has none, or several states have them."""
        try:
            assert "nobody" not in opened.cache  # it sees there whether its folder was removed
            outputs = ((sample, opened.cache.get(sample.id)) for sample in SAMPLES)
            sample, output = next((each for each in outputs if each[1] is not None), (None, None))
        except self.errors(opened):
            self.refused(opened)
            return None
        if sample is None:
            assert not list(opened.cache)
            return None
        states = [state for state in self.truths[opened.name].states if same(output, one(state, sample))]
        assert states, (sample, output)
        return states[0] if len(states) == 1 else None

    def deleted(self, opened: Opened, state: State, samples: set[Sample]) -> None:
        """A version was flushed, and samples of it deleted. What others have accepted may have been there."""
        truth = self.truths[opened.name]
        truth.durable = merged(truth.durable, {state: opened.pending.pop(state, set())})
        truth.durable[state] -= samples
        truth.maybe[state] = truth.maybe.get(state, set()) - samples
        for other in self.opened:
            if other.name == opened.name and (found := other.pending.get(state, set()) & samples):
                truth.maybe[state] |= found
                other.pending[state] -= found

    def bytes_of(self, name: str) -> int:
        """Bytes of all versions of a cache."""
        folders = self.root.glob(f"{name}*")
        found = [status for folder in folders for _, status in entries_below(folder)]  # a thread may remove one
        return sum(status.st_size for status in found if not stat.S_ISDIR(status.st_mode))

    def nothing_untrue_is_said(self) -> None:
        for message in self.logged.messages:
            if "was removed while it was open" in message:
                assert self.was_removed
            elif "writing cached features failed; they stay pending" in message:
                assert any(self.errors(opened) for opened in self.opened)
            elif "missing or damaged" in message and any(opened.options["async_write"] for opened in self.opened):
                # a copy of what a thread wrote just then, or a folder that it writes into while it is removed
                assert "/copy " in message or self.was_removed, message
            else:
                assert re.match("hot_size=.*too small for rows", message), message
        self.logged.messages.clear()

    def teardown(self) -> None:
        logging.getLogger("warmstore").removeHandler(self.logged)
        self.patches.undo()
        failed = sys.exc_info()[0] is not None
        try:
            while self.opened and not failed:
                self.close_cache(self.opened[0])
            if not failed:
                self.reopened()
        finally:
            while self.opened:
                with contextlib.suppress(Exception):
                    self.opened.pop().cache.close()
            shutil.rmtree(self.folder)
        if failed:
            return
        gc.collect()
        assert "warmstore-writer" not in {thread.name for thread in threading.enumerate()}
        files = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        assert not [path for path in files if path.is_relative_to(self.folder)]
        assert str(self.folder) not in Path("/proc/self/maps").read_text()

    def reopened(self) -> None:
        """Everything that is durable is found by another program, and right."""
        for name in NAMES if self.common else ():
            opened = self.open_cache(name, {"versions": "new", "read_only": True, "writer_ranks": None})
            for state, samples in list(self.truths[name].durable.items()):
                self.nets[0], self.states[0] = Drawn(), state
                opened.modules.clear()
                for part in VALUES:
                    self.nets[0].change(part, getattr(state, part), 0)
                for width in WIDTHS:
                    if batch := sorted((each for each in samples if each.width == width), key=SAMPLES.index):
                        modes = state.argument, state.autocast, state.default
                        self.called(opened, 0, Batch(batch, 0, "grad", *modes))
            self.close_cache(opened)
