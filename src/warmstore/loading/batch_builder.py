"""Making a batch of a task: read, collated, padded, transformed. The same in any thread and any process.

What makes batches is a value that a pickle carries; it knows nothing of the loader that asked for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.loading.collate import Collation
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.shard import Step
from warmstore.loading.sources.source import Source

Task = tuple[int, Step, Int64]  # epoch, step, positions

VALID = "valid"
"""With pad=True, under this key of every batch: bool [batch_size], False for samples that are repeated."""


@dataclass(frozen=True)
class BatchBuilder:
    """Makes batches.

    source: what is read. collation, pad, transform, random, seed: as a `Loader` has them. send: what a delivery does
    where a batch was made, or None.
    """

    source: Source
    collation: Collation
    pad: bool
    transform: Callable[..., Any] | None
    random: bool
    seed: int
    send: Callable[[Any], Any] | None

    def __call__(self, task: Task) -> Any:
        """The batch of one task, as NumPy arrays unless it is transformed or sent."""
        epoch, step, positions = task
        try:
            batch = self.source.read_in(epoch, positions)
            if not self.collation.does_nothing:
                batch = self.collation(batch)
            if self.pad:
                batch = {**batch, VALID: np.arange(len(positions)) < step.last - step.first}
            if self.transform is not None:
                rng = [np.random.default_rng([self.seed, epoch, step.first])] if self.random else []
                batch = self.transform(batch, *rng)
            return batch if self.send is None else self.send(batch)
        except Exception as error:
            error.add_note(_where(task))
            raise


def _where(task: Task) -> str:
    epoch, step, positions = task
    return (
        f"warmstore: in the batch of epoch {epoch}, places {step.first:,} to {step.last:,}, which holds the "
        f"positions {positions.tolist()!r:.120}. The loader stands before it"
    )
