"""Lists and map-style data sets as sources."""

from typing import Any, final

from warmstore.errors import BadSource
from warmstore.loading.collate import stack
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.values.content_hash import hash_of_plain
from warmstore.loading.values.ownership import owned, owned_alone
from warmstore.loading.values.value_types import many_of
from warmstore.records.sample_batch import SampleBatch
from warmstore.storage.cached_property import cached_property


@final
class SequenceSource(Source):
    """Anything with a length and samples by position.

    Args:
        samples: a list, a tuple, a map-style data set.
        copy: copy objects that `samples` keeps; objects made for the batch are not copied.

    Raises:
        BadSource: in use, if `__getitems__` returns a list or tuple of another length than the positions.
    """

    def __init__(self, samples: Any, *, copy: bool = True) -> None:
        self._samples = samples
        self._many = many_of(samples)
        self._copy = copy

    @cached_property
    def identity(self) -> Any:
        """A hash of all values of a list of plain values; that of the source of a data set of warmstore; else None."""
        if not isinstance(self._samples, list | tuple | range):
            is_own = hasattr(type(self._samples), "_samples_identity")
            return self._samples._samples_identity if is_own else None
        found = hash_of_plain(self._samples)
        return None if found is None else {"kind": "values", "rows": len(self), "hash": found}

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, positions: Int64) -> Any:
        if self._many is None:
            samples: Any = [self._samples[at] for at in positions.tolist()]
        else:
            samples = self._many(positions.tolist())
        if isinstance(samples, SampleBatch):
            return samples.batch
        if isinstance(samples, list | tuple):
            if len(samples) != len(positions):
                raise BadSource(
                    f"__getitems__ of {type(self._samples).__name__} gave a {type(samples).__name__} of "
                    f"{len(samples):,} for {len(positions):,} positions; return a list with one sample per position, "
                    "or a batch as a dict or an array"
                )
            batch = stack(samples)
            del samples  # references of this frame would count as a second owner
            return owned(batch) if self._copy else batch
        if not self._copy:
            return samples
        holder = [samples]  # a batch as a whole
        del samples
        return owned_alone(holder)
