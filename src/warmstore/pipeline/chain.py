"""A chain: a source, and the steps that process each of its samples. It has identities, and caches nothing."""

import os
from collections.abc import Callable, Mapping
from typing import Any, final

from warmstore.errors import BadSource, SampleSkipped, SchemaMismatch
from warmstore.identity.samples.selected_samples import SelectedSamples
from warmstore.loading.collate import stack
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.trainers.dataset import Dataset
from warmstore.loading.values.value_types import is_frame, is_of, many_of
from warmstore.pipeline.batched_steps import first_difference, row_of
from warmstore.pipeline.step_identities import Identities
from warmstore.pipeline.steps import ChainSettings, Step, deterministic
from warmstore.storage.cached_property import cached_property

_SERIES = ("pandas", "Series")


@final
class SeriesRows:
    """The values of a pandas Series by position. The Series itself has them by label."""

    def __init__(self, series: Any) -> None:
        self.series = series

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, index: int) -> Any:
        return self.series.iloc[index]


@final
class Chain:
    """A source and its steps; see `Pipeline`.

    Raises:
        BadSource: the source has no `__len__` or no `__getitem__`.
    """

    def __init__(self, source: Any, steps: tuple[Step, ...] = (), settings: ChainSettings | None = None) -> None:
        if isinstance(source, Mapping | str | os.PathLike) or is_frame(source):
            source = Dataset(source)
        elif is_of(source, _SERIES):
            source = SeriesRows(source)
        kind = type(source)
        if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
            raise BadSource(f"a {kind.__name__} is no source of samples: it needs __len__ and __getitem__, like a list")
        self.source = source
        self.steps = steps
        self.settings = ChainSettings() if settings is None else settings

    def __len__(self) -> int:
        return len(self.source)

    @property
    def cacheable(self) -> int:
        """Steps before the first random one."""
        return deterministic(self.steps)

    def tolerates_errors(self, first: int) -> bool:
        """Whether a step from `first` on skips or substitutes samples."""
        return any(step.on_error != "raise" for step in self.steps[first:])

    @property
    def skipping(self) -> list[str]:
        """The names of the steps that skip samples on which they fail."""
        return [step.name for step in self.steps if step.on_error == "skip"]

    @cached_property
    def identities(self) -> Identities:
        """Identities of the source and the steps, computed at the first access."""
        return Identities(self.source, self.steps, self.settings)

    def select(self, indices: Int64) -> "Chain":
        """The chain of some samples of the source, int64 [m]."""
        chosen = Chain(SelectedSamples(self.source, indices), self.steps, self.settings)
        chosen.identities = self.identities.of_samples(chosen.source)
        return chosen

    def before(self, count: int, last: Step) -> "Chain":
        """The chain of the first `count` steps and another step, which is not random."""
        chain = Chain(self.source, (*self.steps[:count], last), self.settings)
        chain.identities = self.identities.before(count, last)
        return chain

    @property
    def reads_many(self) -> bool:
        """Whether the source reads many samples at once. Others may give one buffer, filled anew for each sample."""
        return self._many is not None

    @property
    def _many(self) -> Callable[[Any], Any] | None:
        return many_of(self.source.of if isinstance(self.source, SelectedSamples) else self.source)

    def raw_values(self, positions: list[int]) -> list[Any]:
        """The raw values at some positions.

        Raises:
            BadSource: `__getitems__` does not return a list with one sample per position.
        """
        get_many = self._many
        if get_many is None or not positions:
            return [self.source[index] for index in positions]
        chosen = self.source.indices[positions].tolist() if isinstance(self.source, SelectedSamples) else positions
        found = get_many(chosen)
        if isinstance(found, Mapping) or len(found) != len(positions):
            raise BadSource(
                f"__getitems__ of {type(self.source).__name__} gave a {type(found).__name__} of {len(found):,} for "
                f"{len(positions):,} positions; return a list with one sample per position"
            )
        return list(found)

    def run_batched(
        self, columns: Any, indices: Int64, *, epoch: int = 0, seed: int = 0, first: int, last: int | None = None
    ) -> Any:
        """Run the steps [first, last), all of them batched, on the columns of a batch, which they may change.

        Args:
            columns: the samples `indices` after the first `first` steps.
        """
        for number, step in enumerate(self.steps[first:last], first):
            try:
                columns = step.on_batch(columns, epoch, seed, indices, number)
            except Exception as error:
                error.add_note(f"warmstore: in step {step.name!r} on a batch of {len(indices):,} samples")
                raise
        return columns

    def check_batched(self, columns: Any, made: Any, indices: Int64, epoch: int, seed: int, first: int) -> None:
        """Compare the batched steps from `first` on with a run of each sample alone.

        Args:
            columns: the batch before these steps. made: the batch after them.

        Raises:
            SchemaMismatch: they differ in a bit.
        """
        alone = [
            self.run(row_of(columns, row), index, epoch=epoch, seed=seed, first=first)
            for row, index in enumerate(indices.tolist())
        ]
        where = first_difference(made, stack(alone))
        if where:
            names = ", ".join(repr(step.name) for step in self.steps[first:])
            raise SchemaMismatch(
                f"batched=True says that a step gives a batch the values that it gives the samples one by one, and "
                f"{names} gave others: {where}. Leave out batched=True, or compute each row on its own"
            )

    def run(
        self,
        value: Any,
        index: int,
        *,
        epoch: int = 0,
        seed: int = 0,
        first: int = 0,
        last: int | None = None,
        substituted: set[int] | None = None,
    ) -> Any:
        """Run the steps [first, last) on a value.

        Args:
            value: sample `index` after the first `first` steps; the raw value for 0.
            substituted: the numbers of failed steps are added whose `on_error` gave the result.

        Raises:
            SampleSkipped: a step fails and skips the sample.
            Exception: any other error of a step or of its `on_error`.
        """
        for number, step in enumerate(self.steps[first:last], first):
            try:
                value = step(value, epoch, seed, index, number)
            except Exception as error:
                error.add_note(f"warmstore: in step {step.name!r} of sample {index:,}")
                if step.on_error == "raise" or isinstance(error, MemoryError):
                    raise
                if step.on_error == "skip":
                    raise SampleSkipped(f"step {step.name!r} skips sample {index:,}: {error}") from error
                value = step.on_error(error, value)
                if substituted is not None:
                    substituted.add(number)
        return value
