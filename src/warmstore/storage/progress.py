"""Progress bars of tqdm, on terminals and in notebooks. Elsewhere nothing is shown unless the caller asks for it."""

import functools
import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from warmstore.storage.locks import is_held, renewed_in_children

Advance = Callable[[int, int | None], object]
"""Called with the number of new records, and with the bytes of the source read so far, for a bar that counts bytes."""


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, and no child of it. Its streams are no terminals."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if get_ipython is None or multiprocessing.parent_process() is not None:
        return False
    return "IPKernelApp" in (getattr(get_ipython(), "config", None) or ())


@functools.cache
def _without_lock_of_processes(kind: Any) -> Any:
    """A kind of bar that takes the lock which bars of all threads have in common, and no more.

    tqdm's own lock is also one of all forked processes. One that is killed as it shows a bar keeps it for ever, and all
    others wait. As it is made it chooses how multiprocessing starts processes, which no library may do.
    """
    from tqdm.std import TqdmDefaultWriteLock

    def in_child() -> Any:
        lock = TqdmDefaultWriteLock.th_lock
        return threading.RLock() if is_held(lock) else lock

    new: Any = type(kind.__name__, (kind,), {})
    renewed_in_children(new, "_lock", in_child)
    new.set_lock(TqdmDefaultWriteLock.th_lock)
    return new


def new_bar(iterable: Any = None, *, shown: bool | None, **options: Any) -> Any:
    """A bar of tqdm: a widget in a notebook, or text where ipywidgets is not installed.

    Args:
        shown: None shows the bar on terminals and in notebooks only.
        options: of tqdm.
    """
    # Imported late: tqdm is slow to import.
    hidden = None if shown is None else not shown
    options = {"dynamic_ncols": True, **options}
    if hidden or not is_notebook():
        from tqdm import tqdm

        return _without_lock_of_processes(tqdm)(iterable, disable=hidden, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm's advice to install ipywidgets: a bar of text does as well
        from tqdm.auto import tqdm as notebook_tqdm
    return _without_lock_of_processes(notebook_tqdm)(iterable, disable=False, **options)


@contextmanager
def progress_bar(
    rows: int | None, size: int | None, start: int, title: str, shown: bool | None = None
) -> Iterator[Advance]:
    """Show the progress of an operation on a whole store: in records if their number is known, else in bytes.

    `shown` is that of `new_bar`.
    """
    in_bytes = rows is None and size is not None
    bar = new_bar(
        shown=shown,
        total=size if in_bytes else rows,
        initial=0 if in_bytes else start,
        desc=title,
        unit="B" if in_bytes else " records",
        unit_scale=True,
    )

    def advance(count: int, done: int | None) -> None:
        bar.update(done - bar.n if in_bytes and done is not None else 0 if in_bytes else count)

    with bar:
        yield advance
