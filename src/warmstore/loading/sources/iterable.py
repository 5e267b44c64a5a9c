"""Iterables as sources: samples that come one after the other, and have no positions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from warmstore.errors import BadSource
from warmstore.loading.collate import stack
from warmstore.loading.source import Source
from warmstore.loading.values.ownership import owned


@final
class IterableSource(Source):
    """What can be iterated over again and again: Hugging Face's streaming data sets, WebDataset, torch's iterable ones.

    A batch is read from its samples, not from positions.

    Args:
        iterable: an object whose `__iter__` begins anew every time, or a function that gives an iterator. If it has
            `set_epoch`, that is called before every epoch.
        copy: batches own their memory.
    """

    def __init__(self, iterable: Iterable[Any] | Callable[[], Iterator[Any]], *, copy: bool = True) -> None:
        self._iterable = iterable
        self._copy = copy

    @property
    def has_epochs(self) -> bool:
        """Whether the iterable knows of epochs, and may order each in its own way."""
        return hasattr(self._iterable, "set_epoch")

    @property
    def length(self) -> int | None:
        """How many samples there are, if the iterable says so."""
        try:
            return len(self._iterable)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def __len__(self) -> int:
        known = self.length
        if known is None:
            raise TypeError("an iterable source has no length before it was read to its end")
        return known

    def begin(self, epoch: int) -> Iterator[Any]:
        """The samples of an epoch from the first on.

        Raises:
            BadSource: an iterable that cannot be begun again.
        """
        if self.has_epochs:
            self._iterable.set_epoch(epoch)  # type: ignore[union-attr]
        iterable = self._iterable
        begun = iter(iterable if isinstance(iterable, Iterable) else iterable())
        if begun is self._iterable:
            raise BadSource(ONCE)
        return begun

    def read(self, positions: Any) -> Any:
        """The batch of some samples."""
        batch = stack(positions)
        return owned(batch) if self._copy else batch


ONCE = (
    "an iterator or generator can be read only once, and every epoch begins anew: hand in the function that makes it, "
    "or an object whose __iter__ does"
)


def iterable_source(value: Any, *, copy: bool = True) -> IterableSource:
    """The source over an iterable or a generator function.

    Raises:
        BadSource: an iterator, which can be read only once.
    """
    if isinstance(value, Iterator):
        raise BadSource(ONCE)
    return IterableSource(value, copy=copy)
