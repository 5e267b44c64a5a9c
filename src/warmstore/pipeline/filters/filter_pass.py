"""The pass of a filter over samples: kept answers are read, and others are computed and kept.

Answers are kept like the samples of a tier after one more step: by a hash of what each sample is made from, within the
version of a tier that the steps and the predicate have.
"""

import contextlib
import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.errors import NotPicklable, SampleSkipped, StoreExists
from warmstore.loading.loader import Loader
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.sequential import Sequential
from warmstore.loading.source import Source, cause_of
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.filters.filter import Filter, as_answer
from warmstore.pipeline.native_threads import native_threads_hold
from warmstore.pipeline.pipeline_loader import checked_workers
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.pipeline.tiers.flattening import flatten
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_store import MISSING
from warmstore.pipeline.tiers.sample_stores import CacheLayout
from warmstore.pipeline.tiers.tier_folders import PASS, Wanted, disk_folder, open_place
from warmstore.pipeline.tiers.tier_quota import tier_quota
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.files import Files, file_lock
from warmstore.storage.lease import UsageLease
from warmstore.storage.progress import new_bar
from warmstore.storage.threads import thread_count

_log = logging.getLogger("warmstore")

Answers = np.ndarray[Any, np.dtype[np.int8]]

UNKNOWN, NO, YES, NO_NOW, YES_NOW = range(-1, 4)
"""Answers: not known; no and yes; no and yes that are not kept, since a step failed or the sample has changed."""

_FIRST = 64  # samples that are evaluated in this process, to know how long the others take
_BRIEF = 5.0  # seconds: longer passes use worker processes
_MOST_WORKERS = 4
_AT_ONCE = 8192  # kept answers that are read at once
_BATCH = 64
_SAMPLE_BYTES = 128  # of a kept answer, at most
_FILES_BYTES = 1 << 20


@final
class FilterPass:
    """Answers of a filter for samples of a chain.

    Args:
        chain: the steps before the filter, and the predicate as its last step.
        folder: of the plans; None keeps nothing.

    Raises:
        StoreExists: the folder has other files where tiers are.
    """

    def __init__(self, chain: Chain, by: Filter, folder: Path | None) -> None:
        self.lease: UsageLease | None = None
        self._chain = chain
        self._filter = by
        self._lock: Path | None = None
        self._keys = chain.identities.states.samples.each
        layout = None
        if folder is not None:
            try:
                layout = self._layout(disk_folder(folder.absolute()))
            except StoreExists:
                raise
            except OSError as error:
                _log.warning("the answers of filter %r are not kept: %s", by.predicate.name, error)
        self._source = PipelineSource(chain, kept=layout)

    def _layout(self, tier: Path) -> CacheLayout:
        chain, count = self._chain, len(self._chain)
        steps = chain.identities.descriptions()
        # Answers are few bytes. They count in the budgets of plans, and make no room for themselves.
        limit = folder_bytes(tier) + _FILES_BYTES + _SAMPLE_BYTES * count
        schema = SampleSchema.of([flatten(True)], "raw")
        name = f"answers of filter {self._filter.predicate.name!r}"
        wanted = Wanted(0, len(steps), name, "disk", "raw", steps, lambda: schema)
        place, reason = open_place(wanted, tier, tier_quota(tier, limit, evicts=False), direct=False)
        if reason:
            _log.info("%s: the last ones are of others: %s", name, reason)
        self._lock = tier / f"{place.folder.name}{PASS}"
        self.lease = UsageLease(place.folder)
        return CacheLayout((place,), np.zeros(count, np.int16), self._keys, steps)

    def answers(self, positions: Int64, known: Answers, progress: bool | None) -> Answers:
        """The answers for some samples, int8 [n]: `NO`, `YES`, `NO_NOW` or `YES_NOW`.

        Args:
            known: answers that are known, int8 [n]; `UNKNOWN` for others.
            progress: show a bar; None shows one on a terminal or in a notebook.

        Raises:
            TypeError: the predicate gives neither True nor False.
            Exception: any other error of the predicate, of a step, or of the source.
        """
        found = known.copy()
        with contextlib.ExitStack() as stack:
            if self._lock is not None:
                stack.enter_context(file_lock(self._lock, Files()))  # ranks of a machine evaluate a sample once
            stack.callback(self._source.release)
            self._exchange(positions, found)
            missing = np.flatnonzero(found == UNKNOWN)
            for at, answers in self._evaluated(positions[missing], progress):
                found[missing[at]] = answers
        if len(missing):
            # A sample that has changed meanwhile may have been evaluated as it was or as it is now.
            states = self._chain.identities.states
            changed = ~states.are_unchanged(positions[missing], self._keys)
            found[missing[changed]] |= NO_NOW
        _log.info(
            "filter %r: %s of %s samples pass, %s were evaluated", self._filter.predicate.name,
            f"{int((found & 1).sum()):,}", f"{len(found):,}", f"{len(missing):,}",
        )  # fmt: skip
        return found

    def _exchange(self, positions: Int64, found: Answers) -> None:
        """Read kept answers where `found` has none, and keep those that it has."""
        stores = self._source.cached.open()
        store = None if stores is None else stores.by_number.get(0)
        if stores is None or store is None:
            return
        is_kept = stores.rows[positions] >= 0
        wanted = np.flatnonzero(is_kept & (found == UNKNOWN))
        for at in np.split(wanted, range(_AT_ONCE, len(wanted), _AT_ONCE)):
            rows = stores.rows[positions[at]].astype(np.int64)
            for place, value in zip(at.tolist(), store.read(rows), strict=True):
                if value is not MISSING:
                    found[place] = self._answer(value, int(positions[place]))
        for place in np.flatnonzero(~is_kept & ((found == NO) | (found == YES))).tolist():
            store.add(int(positions[place]), bool(found[place]))
        self._source.cached.close()

    def _evaluated(self, positions: Int64, progress: bool | None) -> Iterator[tuple[Int64, Answers]]:
        """Evaluate samples; yield indices into `positions`, int64 [n], and their answers, int8 [n]."""
        started, done = time.perf_counter(), 0
        name = self._filter.predicate.name
        bar = new_bar(shown=progress, total=len(positions), desc=f"filter {name}", unit=" samples")
        with bar:
            for first, last in ((0, _FIRST), (_FIRST, len(positions))):
                part = positions[first:last]
                if not len(part):
                    return
                each = (time.perf_counter() - started) / max(done, 1)
                workers = self._workers(0.0 if not first else each * len(part))
                if workers:
                    self._source.cached.close()
                evaluation = _Evaluation(self._source, part, self._answer, name)
                with Loader(
                    evaluation, _BATCH, Sequential(), epochs=1, workers=0, processes=workers, rank=0, world_size=1
                ) as loader:
                    for answers in loader:
                        yield np.arange(done, done + len(answers)), answers
                        done += len(answers)
                        bar.update(len(answers))

    def _workers(self, seconds: float) -> int:
        """The number of worker processes for what takes so long in this one."""
        if self._filter.workers is not None:
            return checked_workers(self._chain.steps, self._filter.workers, None)
        if seconds < _BRIEF or importlib.util.find_spec("torch") is None:
            return 0
        with contextlib.suppress(NotPicklable):
            return checked_workers(self._chain.steps, min(thread_count(), _MOST_WORKERS), None)
        return 0

    def _answer(self, value: Any, index: int) -> bool:
        return as_answer(value, self._filter.predicate.name, index)


@final
class _Evaluation(Source):
    """Samples to evaluate. Reading a batch gives answers, and keeps those that may be kept."""

    def __init__(self, source: PipelineSource, indices: Int64, answer: Callable[[Any, int], bool], name: str) -> None:
        self._source = source
        self._indices = indices
        self._answer = answer
        self._name = name
        self._notes: list[str] = []
        self._is_told = False

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, positions: Int64) -> Any:
        indices = self._indices[positions]
        answers: Answers = np.empty(len(indices), np.int8)
        for place, trial in enumerate(self._source.trials(indices, stored_only=False)):
            index = int(indices[place])
            if isinstance(trial, SampleSkipped):
                answers[place] = NO_NOW
                self._tell(index, cause_of(trial))
            else:
                answer = YES if self._answer(trial.value, index) else NO
                is_kept = not trial.substituted and not trial.watch.written() and native_threads_hold()
                answers[place] = answer if is_kept else answer + NO_NOW
        return answers

    def _tell(self, index: int, error: Exception) -> None:
        _log.info("filter %r leaves out the bad sample %d: %r", self._name, index, error)
        if not self._is_told:
            self._is_told = True
            self._notes.append(
                f"filter {self._name!r} leaves out the bad sample {index:,}: {type(error).__name__}: {error}. Further "
                "ones are logged; the next run tries them again"
            )

    def finish(self) -> None:
        self._source.finish()

    def notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return [*notes, *self._source.notes()]

    def release(self) -> None:
        self._source.cached.close()
