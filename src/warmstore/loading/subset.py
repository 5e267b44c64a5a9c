"""Subset: some samples of any source, without a copy. Splits and folds are subsets."""

from collections.abc import Callable
from functools import partial
from typing import Any, final

from warmstore.errors import BadSource
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.sources.combined.mixture import MixtureSource
from warmstore.loading.sources.combined.subset import Selection, SubsetSource, positions_of
from warmstore.loading.sources.resolve import source_with_positions
from warmstore.records.read.index_arguments import as_positions
from warmstore.records.sample_batch import SampleBatch


@final
class Subset:
    """The samples of a source at some positions: a source of a `Loader`, `Dataset` or `BatchSampler`, and a map-style
    data set for torch. Only the positions are copied.

    Subsets of one `Pipeline`, or of one of its data sets, share the cached samples.

    Args:
        source: as a `Loader` takes it; or a Subset, whose samples are counted from 0.
        positions: integers [m] in any order, repeats allowed, none negative; or a bool mask [len(source)].

    Raises:
        BadSource: no source, or a `Mixture`, which has an order of its own.
        PositionError: a position outside the source, or a mask of another length.
        TypeError: positions that are no integers.
    """

    def __init__(self, source: Any, positions: Any) -> None:
        self.selection = selection_of(source, partial(positions_of, positions))
        self._source = SubsetSource(self.selection.source, self.selection.positions)

    @property
    def positions(self) -> Any:
        """The positions of the samples in the source: int64 [m], read-only."""
        return self.selection.positions

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"Subset({len(self):,} of {len(self.selection.source):,} samples)"

    def __getitem__(self, position: int) -> Any:
        """One sample."""
        return self._source.sample(position)

    def __getitems__(self, positions: Any) -> SampleBatch:
        """Many samples, which `ws.collate` turns into a batch at no cost; negative positions count from the end.

        Raises:
            PositionError: a position outside.
        """
        at = as_positions(positions, len(self))
        self._source.begin_pass(getattr(positions, "began", 0))
        return SampleBatch(self._source.read_in(getattr(positions, "epoch", 0), at), len(at), positions)


def selection_of(source: Any, choose: Callable[[int], Int64]) -> Selection:
    """Some samples of a source, a subset or a selection; see `Subset`.

    Args:
        choose: returns positions, given the number of samples.
    """
    outer = source.selection if isinstance(source, Subset) else source
    if isinstance(outer, Selection):
        return outer.select(choose(len(outer.positions)))
    resolved = resolve(source)
    of = resolved if hasattr(type(source), "_as_source") else source
    return Selection(of, resolved, choose(len(resolved)))


def resolve(source: Any) -> Source:
    """A source with positions.

    Raises:
        BadSource: a `Mixture`, or no source.
    """
    resolved = source_with_positions(source)
    if isinstance(resolved, MixtureSource):
        raise BadSource("a Mixture has an order of its own: make subsets of its sources, and mix those")
    return resolved
