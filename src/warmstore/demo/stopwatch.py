"""Reports the progress of a training job as JSON lines on stdout.

The job stays readable: it only names its phases (`with watch("decode"):`) and marks the ends of steps and epochs. Each
line is one object with a `kind`: `step` (with its part of an epoch), `epoch` (with the seconds of each phase) or
`result`.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Stopwatch:
    """Adds up wall-clock seconds by phase, from one `end_epoch` to the next."""

    def __init__(self, steps_per_epoch: int) -> None:
        self._part = 1 / steps_per_epoch
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start

    def each(self, phase: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. The time to get each one counts for a phase."""
        iterator = iter(items)
        while True:
            with self(phase):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def end_step(self) -> None:
        tell("step", part=self._part)

    def end_epoch(self) -> None:
        tell("epoch", seconds=self._seconds)
        self._seconds = {}


def tell(kind: str, **content: Any) -> None:
    """Print one message."""
    print(json.dumps({"kind": kind, **content}), flush=True)
