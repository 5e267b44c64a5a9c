"""BatchBuilder: builds the batch of a task: reads, collates, marks and transforms it, in any thread or process.

A builder can be pickled, and has no reference to the loader.
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
"""The key of the mask in batches that may have repeated rows: bool [rows], False for repeated rows."""

OnError = Callable[[Exception, int], Any]


class Task(NamedTuple):
    """A batch to build. positions: of its samples, int64 [batch]; for an iterable source a list of the samples."""

    epoch: int
    step: RankStep
    positions: Any


class Built(NamedTuple):
    """A batch, the number of repeated rows at its end, and its skipped samples: position and error."""

    batch: Any
    padded: int
    skipped: list[tuple[int, str]]


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches.

    collation, transform, random, seed, on_error: as in `Loader`. marks: add the mask of repeated rows to batches that
    are dicts. fills: fill up batches with skipped samples to their size. send: `DeviceTransfer.send`, or None.
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
        """The batch of a task, as NumPy arrays unless it is transformed or sent."""
        epoch, step, positions = task
        try:
            batch, kept, skipped = self._read(epoch, positions)
            real = step.last - step.first
            if kept is None and not self.marks:  # most batches: no mask is computed
                return Built(self._finish(batch, None, epoch, step), len(positions) - real, skipped)
            rows = np.arange(len(positions)) if kept is None else kept
            # The first row of a sample that fills up is not repeated.
            valid = (rows < real) & (np.diff(rows, prepend=-1) > 0)
            return Built(self._finish(batch, valid, epoch, step), len(rows) - int(valid.sum()), skipped)
        except Exception as error:
            samples = positions.tolist() if isinstance(positions, np.ndarray) else len(positions)
            what = f"positions {samples!r:.120}" if isinstance(samples, list) else f"{samples} samples"
            error.add_note(
                f"warmstore: in the batch of epoch {epoch}, places {step.first:,} to {step.last:,}, which has the "
                f"{what}. The loader's state is before this batch"
            )
            raise

    def finish(self, samples: Any) -> Any:
        """The batch of a list of samples, as at the start of epoch 0."""
        count = len(samples)
        return self._finish(stack(samples), np.ones(count, np.bool_), 0, RankStep(0, count, count))

    def _finish(self, batch: Any, valid: np.ndarray[Any, np.dtype[np.bool_]] | None, epoch: int, step: RankStep) -> Any:
        """Collate, mark, transform and send a batch."""
        if not self.collation.does_nothing:
            batch = self.collation(batch)
        if self.marks and valid is not None and isinstance(batch, dict):
            batch = marked(batch, valid)
        if self.transform is not None:
            rng = [np.random.default_rng([self.seed, epoch, step.first])] if self.random else []
            batch = self.transform(batch, *rng)
        return batch if self.send is None else self.send(batch)

    def _read(self, epoch: int, positions: Any) -> tuple[Any, np.ndarray[Any, Any] | None, list[tuple[int, str]]]:
        """The samples at some positions, the indices of the samples that were read (None for all), and the skipped."""
        try:
            return self.source.read_in(epoch, positions), None, []
        except MemoryError:
            raise
        except Exception as error:
            if self.on_error == "raise":
                raise
            samples = self._read_one_by_one(epoch, positions)
            kept = np.array([at for at, (sample, _) in enumerate(samples) if sample is not None], np.int64)
            if not len(kept):
                error.add_note("warmstore: every sample of the batch is bad, so none can be skipped")
                raise
            if self.fills:
                kept = np.append(kept, np.full(len(positions) - len(kept), kept[-1]))
            skipped = [(int(positions[at]), message) for at, (sample, message) in enumerate(samples) if sample is None]
            if any(sample is not None and message for sample, message in samples):  # some samples were replaced
                return stack([samples[at][0][0] for at in kept.tolist()]), kept, skipped
        return self.source.read_in(epoch, positions[kept]), kept, skipped

    def _read_one_by_one(self, epoch: int, positions: Any) -> list[tuple[Any, str]]:
        """For every position a list of the sample, or None for a skipped sample; and the error message, or ""."""
        samples: list[tuple[Any, str]] = []
        for at in range(len(positions)):
            try:
                samples.append((SampleBatch(self.source.read_in(epoch, positions[at : at + 1]), 1), ""))
            except MemoryError:
                raise
            except Exception as error:
                replacement = None if isinstance(self.on_error, str) else self.on_error(error, int(positions[at]))
                samples.append((None if replacement is None else [replacement], f"{type(error).__name__}: {error}"))
        return samples


def marked(batch: dict[str, Any], valid: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    """A batch with the mask of its repeated rows.

    Raises:
        SchemaMismatch: the batch has a value with the name of the mask.
    """
    if VALID in batch:
        raise SchemaMismatch(
            f"batches have {VALID!r} already, the name of the mask of repeated rows: rename that field"
        )
    return {**batch, VALID: valid}
