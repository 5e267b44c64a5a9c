"""Building a batch of a task: read, collated, padded, transformed. The same in any thread and any process.

What builds batches is a value that a pickle carries; it knows nothing of the loader that asked for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.collate import Collation, stack
from warmstore.loading.source import Source
from warmstore.loading.steps.shard import RankStep
from warmstore.records.sample_batch import SampleBatch

VALID = "valid"
"""The key of the mask in batches that may hold repeated rows: bool [rows], False for those."""

OnError = Callable[[Exception, int], Any]


class Task(NamedTuple):
    """What a batch is made from.

    positions: of its samples, int64 [batch]; the samples themselves where the source is an iterable.
    """

    epoch: int
    step: RankStep
    positions: Any


class Built(NamedTuple):
    """A batch, how many rows at its end are repeated, and the bad samples it lacks, each with what was wrong."""

    batch: Any
    padded: int
    skipped: list[tuple[int, str]]


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches.

    source: what is read. collation, transform, random, seed, on_error: as a `Loader` has them. marks: add the mask of
    repeated rows to batches that are dicts. fills: batches keep their size where samples are skipped. send: what a
    transfer does where a batch was made, or None.
    """

    source: Source
    collation: Collation
    marks: bool
    fills: bool
    transform: Callable[..., Any] | None
    random: bool
    seed: int
    on_error: str | OnError
    send: Callable[[Any], Any] | None

    def __call__(self, task: Task) -> Built:
        """The batch of one task, as NumPy arrays unless it is transformed or sent."""
        epoch, step, positions = task
        try:
            batch, kept, skipped = self._read(epoch, positions)
            real = step.last - step.first
            if kept is None and not self.marks:  # most batches: no mask is made of them
                return Built(self._finish(batch, None, epoch, step), len(positions) - real, skipped)
            rows = np.arange(len(positions)) if kept is None else kept
            # Of samples that fill up for skipped ones the first one has its row already.
            valid = (rows < real) & (np.diff(rows, prepend=-1) > 0)
            return Built(self._finish(batch, valid, epoch, step), len(rows) - int(valid.sum()), skipped)
        except Exception as error:
            error.add_note(_where(task))
            raise

    def finish(self, samples: Any) -> Any:
        """The batch of a list of samples that somebody else has read, as of the start of epoch 0."""
        count = len(samples)
        return self._finish(stack(samples), np.ones(count, np.bool_), 0, RankStep(0, count, count))

    def _finish(self, batch: Any, valid: np.ndarray[Any, np.dtype[np.bool_]] | None, epoch: int, step: RankStep) -> Any:
        """Collate, mark, transform and send what was read."""
        if not self.collation.does_nothing:
            batch = self.collation(batch)
        if self.marks and valid is not None and isinstance(batch, dict):
            batch = marked(batch, valid)
        if self.transform is not None:
            rng = [np.random.default_rng([self.seed, epoch, step.first])] if self.random else []
            batch = self.transform(batch, *rng)
        return batch if self.send is None else self.send(batch)

    def _read(self, epoch: int, positions: Any) -> tuple[Any, np.ndarray[Any, Any] | None, list[tuple[int, str]]]:
        """The samples at some positions, which of them they are (None for all), and those that were skipped."""
        try:
            return self.source.read_in(epoch, positions), None, []
        except MemoryError:
            raise
        except Exception as error:
            if self.on_error == "raise":
                raise
            found = self._read_one_by_one(epoch, positions)
            kept = np.array([at for at, (sample, _) in enumerate(found) if sample is not None], np.int64)
            if not len(kept):
                error.add_note("warmstore: every sample of the batch is bad, so none can be skipped")
                raise
            if self.fills:
                kept = np.append(kept, np.full(len(positions) - len(kept), kept[-1]))
            skipped = [(int(positions[at]), said) for at, (sample, said) in enumerate(found) if sample is None]
            if any(sample is not None and said for sample, said in found):  # some were replaced
                samples = [sample for sample, _ in found]
                return stack([samples[at][0] for at in kept.tolist()]), kept, skipped
        return self.source.read_in(epoch, positions[kept]), kept, skipped

    def _read_one_by_one(self, epoch: int, positions: Any) -> list[tuple[Any, str]]:
        """For every position a sample in a list, or None for a bad one; and what was wrong with it, or ""."""
        found: list[tuple[Any, str]] = []
        for at in range(len(positions)):
            try:
                found.append((SampleBatch(self.source.read_in(epoch, positions[at : at + 1]), 1), ""))
            except MemoryError:
                raise
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                other = None if isinstance(self.on_error, str) else self.on_error(error, int(positions[at]))
                found.append((None if other is None else [other], said))
        return found


def marked(batch: dict[str, Any], valid: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    """A batch with the mask of its repeated rows.

    Raises:
        SchemaMismatch: it has a value of that name already.
    """
    if VALID in batch:
        raise SchemaMismatch(f"batches have {VALID!r} already, which is the mask of repeated rows: rename it")
    return {**batch, VALID: valid}


def _where(task: Task) -> str:
    epoch, step, positions = task
    known = (
        f"positions {positions.tolist()!r:.120}" if isinstance(positions, np.ndarray) else f"{len(positions)} samples"
    )
    return (
        f"warmstore: in the batch of epoch {epoch}, places {step.first:,} to {step.last:,}, which holds the {known}. "
        "The loader stands before it"
    )
