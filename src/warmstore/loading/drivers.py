"""Who draws from a batch sampler: torch's DataLoader, with workers that draw ahead, or a trainer that shards.

None of them says so. What a batch sampler must know of them is found in the frames that called it: what shards its
batches once more, and how many batches were handed out of those that were drawn. Verified against torch 2.4 to 2.13 and
accelerate 1.15; `tests/interop` fails where a later one differs.
"""

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_DEPTH = 16  # frames between a batch sampler and the `for` of a trainer, at most


@dataclass
class Driver:
    """What is known of who draws.

    name: of the trainer. shards_over: its processes, where it shards the batches; else 0. draws_a_step: batches drawn
    for one step of a rank. epoch: as the trainer counts, where it does not say so itself. ahead: batches that the
    workers of a DataLoader draw before the first is handed out. held_back: whether the trainer holds one batch back.
    """

    name: str = ""
    shards_over: int = 0
    draws_a_step: int = 1
    epoch: int | None = None
    ahead: int = 0
    held_back: bool = False
    skipped: int = 0
    _loader: Any = field(default=None, repr=False)  # a weak reference to the iterator of torch's DataLoader
    _trainer: Any = field(default=None, repr=False)  # and one to what holds a batch back

    def handed(self, asked: int, drawn: int, *, is_exhausted: bool) -> int | None:
        """How many of the drawn batches were handed out, in steps of this rank; None for all.

        Args:
            asked: how often a batch was asked for, also after the last.
            is_exhausted: one was asked for after the last.

        Raises:
            ValueError: under a trainer that shards it is known only while its DataLoader lives.
        """
        trainer = None if self._trainer is None else self._trainer()
        has_ended = bool(getattr(trainer, "end_of_dataloader", False))
        if self.shards_over:
            if has_ended:
                return None
            loader = None if self._loader is None else self._loader()
            if loader is None:
                raise ValueError(
                    f"the DataLoader that {self.name} drew with is gone, and with it the number of batches that "
                    "training had: pass batches="
                )
            return max(int(loader._num_yielded) - self.held_back, 0) + self.skipped
        if not self.ahead and not self.held_back:
            return None
        handed = min(drawn, max(asked - self.ahead, 0))
        if self.held_back and not (has_ended if self.ahead else is_exhausted):
            handed = max(handed - 1, 0)
        return handed


def driver_of() -> Driver:
    """Who calls a method of a batch sampler now."""
    driver = Driver()
    for caller, _ in _callers():
        kind = type(caller)
        if kind.__module__ == "accelerate.data_loader":
            _see_accelerate(driver, caller, kind.__name__)
        elif driver._loader is None and hasattr(caller, "_num_yielded") and hasattr(caller, "_num_workers"):
            driver.ahead = caller._num_workers * caller._prefetch_factor if caller._num_workers else 0
            driver._loader = weakref.ref(caller)
    return driver


def is_automatic() -> bool:
    """Whether accelerate sets the epoch by itself now, from its own count at the beginning of a `for`."""
    return any(
        frame.f_code.co_name == "__iter__" and type(caller).__module__ == "accelerate.data_loader"
        for caller, frame in _callers()
    )


def _see_accelerate(driver: Driver, caller: Any, name: str) -> None:
    driver.name = "accelerate"
    if name == "BatchSamplerShard" and caller.num_processes > 1:
        driver.shards_over = caller.num_processes
        driver.draws_a_step = 1 if caller.split_batches else caller.num_processes
    elif name == "DataLoaderDispatcher" and caller.state.num_processes > 1:
        driver.shards_over = caller.state.num_processes
        driver.draws_a_step = 1 if caller.split_batches else caller.state.num_processes
    elif name == "SkipBatchSampler":
        driver.skipped += caller.skip_batches
    if name in ("DataLoaderShard", "DataLoaderDispatcher"):
        driver.held_back = True
        driver._trainer = weakref.ref(caller)
        driver.epoch = vars(caller).get("iteration")  # while it is being made it has none


def _callers() -> Iterator[tuple[Any, FrameType]]:
    """The objects whose methods run now, from the innermost on, each with its frame."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        caller = frame.f_locals.get("self")
        if caller is not None:
            yield caller, frame
        frame = frame.f_back
