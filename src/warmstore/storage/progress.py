"""The progress bar of an operation on a whole store: in records if their number is known, else in bytes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int | None], object]
"""Called with the number of new records, and with the bytes of the source read so far, for a bar that counts bytes."""


@contextmanager
def progress_bar(
    rows: int | None, size: int | None, start: int, title: str, shown: bool | None = None
) -> Iterator[Advance]:
    """Show progress. With `shown` None a bar appears on terminals only."""
    from tqdm import tqdm  # imported late: it is slow to import

    in_bytes = rows is None and size is not None
    bar = tqdm(
        total=size if in_bytes else rows,
        initial=0 if in_bytes else start,
        desc=title,
        unit="B" if in_bytes else " records",
        unit_scale=True,
        disable=None if shown is None else not shown,
        dynamic_ncols=True,
    )

    def advance(count: int, done: int | None) -> None:
        bar.update(done - bar.n if in_bytes and done is not None else 0 if in_bytes else count)

    with bar:
        yield advance
