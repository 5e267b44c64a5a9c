"""BatchBuilder: builds the batch of a task: reads, collates, marks and transforms it, in any thread or process.

A builder can be pickled, and has no reference to the loader.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from warmstore.errors import SampleSkipped, SchemaMismatch
from warmstore.loading.collate import Collation, stack
from warmstore.loading.source import PartialBatch, Source, cause_of, filled
from warmstore.loading.steps.shard import RankStep
from warmstore.loading.values.ownership import copied, owned_alone
from warmstore.records.sample_batch import SampleBatch

VALID = "valid"
"""The key of the mask in batches that may have repeated rows: bool [rows], False for repeated rows."""

OnError = Callable[[Exception, int], Any]


class Task(NamedTuple):
    """A batch to build.

    positions: of its samples, int64 [batch]; for an iterable source a list of the samples. began: see
    `Source.begin_pass`.
    """

    epoch: int
    step: RankStep
    positions: Any
    began: int


class Built(NamedTuple):
    """A batch, the number of repeated rows at its end, and its skipped samples: position and error.

    is_empty: all samples are skipped, and `batch` is None.
    """

    batch: Any
    padded: int
    skipped: list[tuple[int, str]]
    is_empty: bool = False


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches.

    collation, transform, random, seed, on_error: as in `Loader`. marks: add the mask of repeated rows to batches that
    are dicts. fills: fill up batches with skipped samples to their size. skips_batches: whether a batch of which all
    samples are skipped is empty, and no error. send: `DeviceTransfer.send`, or None.
    """

    source: Source
    collation: Collation
    marks: bool
    fills: bool
    transform: Callable[..., Any] | None
    random: bool
    seed: int
    on_error: str | OnError
    skips_batches: bool
    send: Callable[[Any], Any] | None

    def __call__(self, task: Task) -> Built:
        """The batch of a task, as NumPy arrays unless it is transformed or sent."""
        epoch, step, positions, began = task
        try:
            self.source.begin_pass(began)
            batch, kept, errors = self._read(epoch, positions)
            skipped = [(int(positions[at]), f"{type(error).__name__}: {error}") for at, error in errors.items()]
            if kept is not None and not len(kept):
                return Built(None, 0, skipped, is_empty=True)
            real = step.last - step.first
            if kept is None and not self.marks:  # most batches: no mask is computed
                return Built(self._finish(batch, None, epoch, step), len(positions) - real, skipped)
            rows = np.arange(len(positions)) if kept is None else kept
            # The first row of a sample that fills up is not repeated.
            valid = (rows < real) & (np.diff(rows, prepend=-1) > 0)
            return Built(self._finish(batch, valid, epoch, step), len(rows) - int(valid.sum()), skipped)
        except StopIteration as error:  # with which the `for` would just end
            raise _noted(RuntimeError("the source or the transform raised StopIteration"), task) from error
        except Exception as error:
            _noted(error, task)
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

    def _read(self, epoch: int, positions: Any) -> PartialBatch:
        """The samples at some positions that can be read.

        Raises:
            Exception: the error of a sample, unless it is skipped or replaced.
        """
        try:
            part = self.source.read_partly(epoch, positions, fills=self.fills)
        except Exception as error:
            if not self._is_left_out(error):
                raise
            part = self._read_good(epoch, positions)
        if part.kept is not None and not len(part.kept) and not self.skips_batches:
            first = next(iter(part.errors.values()))
            first.add_note(
                "warmstore: every sample of the batch is bad, and a rank without a batch would leave the others "
                "waiting: substitute samples with a function as on_error, or take larger batches"
            )
            raise first
        return part

    def _is_left_out(self, error: Exception) -> bool:
        """Whether an error is that of a sample that may be skipped or replaced."""
        return not isinstance(error, MemoryError) and (self.on_error != "raise" or isinstance(error, SampleSkipped))

    def _read_good(self, epoch: int, positions: Any) -> PartialBatch:
        """Read samples one by one to find the good ones, then those at once."""
        samples: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        is_replaced = False
        for at in range(len(positions)):
            try:
                samples[at] = SampleBatch(self.source.read_in(epoch, positions[at : at + 1]), 1)[0]
            except Exception as error:
                if not self._is_left_out(error):
                    raise
                replacement = self._replacement(error, int(positions[at]))
                if replacement is None:
                    errors[at] = cause_of(error)
                else:
                    samples[at], is_replaced = replacement, True
        kept = np.array(list(samples), np.int64)
        if not len(kept):
            return PartialBatch(None, kept, errors)
        if self.fills:
            kept = filled(kept, len(positions))
        if not is_replaced:
            try:
                return PartialBatch(self.source.read_in(epoch, positions[kept]), kept, errors)
            except Exception as error:
                if not self._is_left_out(error):
                    raise  # else a sample that was read just now has failed
        rows = [samples[at] for at in kept.tolist()]
        rows[len(samples) :] = map(copied, rows[len(samples) :])  # those that fill up
        return PartialBatch(stack(rows), kept, errors)

    def _replacement(self, error: Exception, position: int) -> Any:
        """What stands for a sample that cannot be read; None for nothing. The program may keep it for further ones."""
        if isinstance(self.on_error, str) or isinstance(error, SampleSkipped):
            return None
        return owned_alone([self.on_error(error, position)])


def _noted(error: Exception, task: Task) -> Exception:
    """An error with a note of its batch."""
    epoch, step, positions, _ = task
    samples = positions.tolist() if isinstance(positions, np.ndarray) else len(positions)
    what = f"positions {samples!r:.120}" if isinstance(samples, list) else f"{samples} samples"
    error.add_note(
        f"warmstore: in the batch of epoch {epoch}, places {step.first:,} to {step.last:,}, which has the {what}. The "
        "loader's state is before this batch"
    )
    return error


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
