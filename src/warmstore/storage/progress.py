"""The progress bar of what goes through a whole store: records where their number is known, else bytes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int | None], object]
"""Called with how many records came, and how many bytes of the source were read by now where that is what counts."""


@contextmanager
def progress_bar(
    rows: int | None, size: int | None, start: int, title: str, shown: bool | None = None
) -> Iterator[Advance]:
    """Show how far it is. Without `shown` a bar appears on terminals only."""
    from tqdm import tqdm  # only who waits for something pays for it

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
