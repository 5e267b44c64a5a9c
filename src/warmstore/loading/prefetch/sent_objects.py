"""What worker processes that are not forked can import: not what a notebook's cell or a prompt defines."""

import multiprocessing
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

from warmstore.errors import NotPicklable


def main_can_be_imported() -> bool:
    """Whether another process can import this one's `__main__`."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (file is not None and Path(file).is_file())


def check_importable(content: Any, start_method: str | None) -> None:
    """Check that worker processes find the classes and functions in the source and the transform of a loader.

    Raises:
        NotPicklable: one of them is defined in a notebook or at a prompt, and the processes are not forked.
    """
    if (start_method or multiprocessing.get_start_method()) == "fork" or main_can_be_imported():
        return
    finder = _OfMain(_Nowhere())
    with suppress(Exception):  # what cannot be pickled at all raises in the workers' start
        finder.dump(content)
    if finder.found is not None:
        raise NotPicklable(
            f"{finder.found} is defined in a notebook or at a prompt, and worker processes with start_method="
            f"{start_method or multiprocessing.get_start_method()!r} cannot import it: define it in a module, pass "
            "start_method='fork', or use threads (workers=)"
        )


class _OfMain(pickle.Pickler):
    """Finds the first class or function of `__main__`."""

    found: str | None = None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__" and self.found is None:
            self.found = value.__qualname__
            raise pickle.PicklingError(self.found)
        return NotImplemented


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: bytes) -> int:
        return len(data)
