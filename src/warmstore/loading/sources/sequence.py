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


class InEpoch(list[int]):
    """Positions for a data set of warmstore, with the epoch of a loader. began: see `Source.begin_pass`."""

    def __init__(self, positions: list[int], epoch: int, began: int) -> None:
        super().__init__(positions)
        self.epoch = epoch
        self.began = began


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
        self._is_own = hasattr(type(samples), "_samples_identity")  # a data set of warmstore
        self._began = 0

    @cached_property
    def identity(self) -> Any:
        """A hash of all values of a list of plain values; that of the source of a data set of warmstore; else None."""
        if not isinstance(self._samples, list | tuple | range):
            return self._samples._samples_identity if self._is_own else None
        found = hash_of_plain(self._samples)
        return None if found is None else {"kind": "values", "rows": len(self), "hash": found}

    def __len__(self) -> int:
        return len(self._samples)

    def begin_pass(self, began: int) -> None:
        self._began = began

    def read(self, positions: Int64) -> Any:
        return self._read(positions.tolist())

    def read_in(self, epoch: int, positions: Int64) -> Any:
        at = positions.tolist()
        return self._read(InEpoch(at, epoch, self._began) if self._is_own and self._began else at)

    def _read(self, positions: list[int]) -> Any:
        if self._many is None:
            samples: Any = [self._samples[at] for at in positions]
        else:
            samples = self._many(positions)
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
