"""Dataset: any source as a map-style data set for torch's DataLoader and Grain; and `collate`."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from warmstore.loading import collate as collating
from warmstore.loading.prefetch.batch_builder import marked
from warmstore.loading.prefetch.device_transfer import ToTorch
from warmstore.loading.source import Source
from warmstore.loading.sources.resolve import source_with_positions
from warmstore.loading.sources.sequence import SequenceSource
from warmstore.records.read.index_arguments import as_positions
from warmstore.records.sample_batch import SampleBatch, without_views
from warmstore.tree.columns import map_columns

_to_torch = ToTorch()


@final
class Dataset:
    """Any source of a `Loader` as a map-style data set for torch's DataLoader, or as a Grain data source.

    RecordStore and its fields are data sets themselves; dicts of sources, files and mixtures need a Dataset.

    Args:
        source: as a `Loader` takes it.
        fields: as a `Loader` takes them.
        collate: as a `Loader` takes it.
        copy: samples own writable memory. False returns views of the source where that costs less.

    Raises:
        BadSource: no source, an iterable without positions, or sources of different lengths.
    """

    def __init__(
        self, source: Any, *, fields: Sequence[str] | None = None, collate: Any = "list", copy: bool = True
    ) -> None:
        self._collation = collating.Collation.of(collate)
        self.source = source_with_positions(source, fields, self._collation, copy=copy)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"Dataset({type(self.source).__name__}, {len(self):,} samples)"

    def _as_source(self) -> Source:
        """The source that a `Loader` reads."""
        return self.source if self._collation.does_nothing else SequenceSource(self)

    @property
    def _samples_identity(self) -> Any:
        """See `Source.identity`."""
        return self.source.identity

    def __getitem__(self, position: int) -> Any:
        """One sample."""
        return self.source.sample(position)

    def __getitems__(self, positions: Any) -> SampleBatch:
        """Many samples, which `ws.collate` turns into a batch at no cost; negative positions count from the end.

        Raises:
            PositionError: a position outside.
        """
        at = as_positions(positions, len(self))
        self.source.begin_pass(getattr(positions, "began", 0))
        batch = self.source.read_in(getattr(positions, "epoch", 0), at)
        return SampleBatch(batch if self._collation.does_nothing else self._collation(batch), len(at), positions)


def collate(samples: Any) -> Any:
    """A `collate_fn` for torch's DataLoader: batches of tensors over the memory that was gathered.

    Args:
        samples: the result of `__getitems__` of a RecordStore, of a field, or of a `Dataset`; or a list of samples.

    Returns:
        A batch as of a `Loader` with to="torch", with the mask "valid" if a `BatchSampler` may repeat rows. Values of
        Bytes fields are bytes instead of memoryviews, which a worker process cannot send.
    """
    if not isinstance(samples, SampleBatch):
        return _to_torch.send(map_columns(_of_batch, without_views(collating.stack(samples))))
    batch, valid = samples.batch, getattr(samples.positions, "valid", None)
    if valid is not None and isinstance(batch, dict):
        batch = marked(batch, valid)
    return _to_torch.send(without_views(batch))


def _of_batch(column: Any) -> Any:
    """A column whose arrays are the batch's own: a tensor over an array of a data set would change it."""
    if not isinstance(column, list):
        return column
    return [value.copy() if isinstance(value, np.ndarray) else value for value in column]
