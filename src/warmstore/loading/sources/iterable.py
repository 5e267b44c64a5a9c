"""Iterables as sources: samples without positions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource
from warmstore.loading.collate import stack
from warmstore.loading.source import Source
from warmstore.loading.values.ownership import owned


@final
class IterableSource(Source):
    """An iterable that can be read repeatedly: a streaming data set of Hugging Face, WebDataset, an IterableDataset.

    `read` takes samples instead of positions.

    Args:
        iterable: an object whose `__iter__` starts again every time, or a function that returns an iterator. If it has
            `set_epoch`, that is called before every epoch.
        copy: batches own their memory.

    Raises:
        BadSource: an iterator, which can be read only once.
    """

    def __init__(self, iterable: Iterable[Any] | Callable[[], Iterator[Any]], *, copy: bool = True) -> None:
        if isinstance(iterable, Iterator):
            raise BadSource(ONCE)
        self._iterable = iterable
        self._copy = copy

    @property
    def has_epochs(self) -> bool:
        """Whether the order may depend on the epoch."""
        return hasattr(self._iterable, "set_epoch")

    @property
    def length(self) -> int | None:
        """The number of samples, if the iterable has a length."""
        try:
            return len(self._iterable)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def __len__(self) -> int:
        known = self.length
        if known is None:
            raise TypeError("the length of this iterable source is unknown")
        return known

    def begin(self, epoch: int) -> Iterator[Any]:
        """The samples of an epoch.

        Raises:
            BadSource: an iterable that can be read only once.
        """
        if self.has_epochs:
            self._iterable.set_epoch(epoch)  # type: ignore[union-attr]
        iterable = self._iterable
        begun = iter(iterable if isinstance(iterable, Iterable) else iterable())
        if begun is self._iterable:
            raise BadSource(ONCE)
        return begun

    def read(self, positions: Any) -> Any:
        """The batch of a list of samples.

        Raises:
            BadSource: positions, as of a loader's `dataset`.
        """
        if isinstance(positions, np.ndarray):
            raise BadSource("an iterable has no positions, so no sample can be read by its position")
        batch = stack(positions)
        return owned(batch) if self._copy else batch


ONCE = (
    "an iterator or generator can be read only once, and every epoch reads it again: pass the function that makes it, "
    "or an object whose __iter__ does"
)
