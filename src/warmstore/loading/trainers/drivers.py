"""Driver: the library that reads a batch sampler: torch's DataLoader, or a trainer that shards its batches.

These libraries do not tell a batch sampler how many batches were handed out, or whether they shard the batches. So the
calling frames are inspected. Verified with torch 2.4 to 2.13 and accelerate 1.15; `tests/interop` fails if a later
release differs.
"""

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_LIBRARIES = ("torch.utils.data.", "torchdata.", "accelerate.data_loader")
_LIGHTNING = ("lightning.pytorch.loops.", "pytorch_lightning.loops.")
_DEPTH = 16  # the most frames between a batch sampler and the `for` of a trainer


@dataclass
class Driver:
    """The caller of a batch sampler.

    name: of the trainer. shards_over: the trainer's processes if it shards the batches; else 0. draws_a_step: batches
    drawn for one step of a rank. epoch: the trainer's count, if the trainer does not call `set_epoch`. ahead: batches
    that the workers of a DataLoader draw before the first is handed out. held_back: whether the trainer buffers one
    batch. is_unordered: the DataLoader has in_order=False. skipped: batches at the start of an epoch that are drawn and
    not handed out.
    """

    name: str = ""
    shards_over: int = 0
    draws_a_step: int = 1
    epoch: int | None = None
    ahead: int = 0
    held_back: bool = False
    is_unordered: bool = False
    skipped: int = 0
    # Weak references to the iterator of torch's DataLoader, and to the trainer's loader that buffers a batch.
    _loader: Any = field(default=None, repr=False)
    _trainer: Any = field(default=None, repr=False)
    _drawn_from: Any = field(default=None, repr=False)  # the DataLoader's iterator over the batch sampler

    @property
    def is_known(self) -> bool:
        """Whether the caller is known. Batches that an unknown caller draws count as handed out."""
        return self._loader is not None or bool(self.shards_over)

    def check(self, *, is_over: bool) -> None:
        """Raise ValueError if it is unknown which batches were handed out."""
        if is_over:
            return
        if self.is_unordered:
            raise ValueError(
                "a DataLoader with in_order=False hands out batches in any order, but a state is a place in the order: "
                "leave in_order at True, or take states between epochs"
            )
        if self.shards_over and self._running() is None and not self._has_ended():
            raise ValueError(
                f"the DataLoader of {self.name} was deleted, so the number of batches handed out is unknown: pass "
                "batches="
            )

    def _has_ended(self) -> bool:
        """Whether the trainer has handed out the last batch."""
        return bool(getattr(_target(self._trainer), "end_of_dataloader", False))

    def handed_out(self, calls: int, drawn: int, failed: int, *, is_exhausted: bool) -> int:
        """How many of the drawn batches were handed out, or failed.

        Args:
            calls: calls of `next`, with those after the last batch.
            failed: batches that raised an error and were not handed out.
            is_exhausted: `next` was called after the last batch.
        """
        loader, has_ended = self._running(), self._has_ended()
        if self.shards_over:
            if has_ended:
                return drawn
            if loader is None:
                return 0
            steps = max(int(loader._num_yielded) - self.held_back, 0) + self.skipped
            return min(drawn, steps * self.draws_a_step)
        handed_out = min(drawn, max(calls - self.ahead, 0))
        if loader is not None:
            handed_out = min(handed_out, int(loader._num_yielded) + failed + self.skipped)
        if self.held_back and not (has_ended if self.ahead else is_exhausted):
            handed_out = max(handed_out - 1, 0)
        return handed_out

    def begin(self) -> None:
        """Called with the first batch of an epoch: from now on the DataLoader reads this epoch."""
        loader = _target(self._loader)
        if loader is None:
            return
        self._drawn_from = loader._sampler_iter
        if loader._num_workers:
            self.ahead = loader._num_workers * loader._prefetch_factor
            self.is_unordered = not getattr(loader, "_in_order", True)

    def _running(self) -> Any:
        """The DataLoader's iterator while it reads this epoch; persistent workers reuse it for the next epoch."""
        loader = _target(self._loader)
        return loader if getattr(loader, "_sampler_iter", None) is self._drawn_from else None

    def failed(self, calls: int, failed: int) -> int:
        """How many batches before the current call raised an error."""
        loader = self._running()
        if loader is None or self.shards_over:
            return failed
        return max(calls - self.ahead - self.skipped - int(loader._num_yielded), failed)


def _target(reference: Any) -> Any:
    return None if reference is None else reference()


def driver_of() -> Driver:
    """The driver that is calling a method of a batch sampler."""
    driver = Driver()
    for caller, _ in _callers():
        kind = type(caller)
        if kind.__module__ == "accelerate.data_loader":
            _see_accelerate(driver, caller, kind.__name__)
        elif driver._loader is None and hasattr(caller, "_index_sampler") and hasattr(caller, "_num_workers"):
            driver._loader = weakref.ref(caller)
    return driver


def is_automatic() -> bool:
    """Whether accelerate is setting the epoch to its own count, at the beginning of a `for`."""
    return any(
        frame.f_code.co_name == "__iter__" and type(caller).__module__ == "accelerate.data_loader"
        for caller, frame in _callers()
    )


def buffered_by_lightning() -> int:
    """Batches that Lightning has fetched and not trained on, if it is saving a state.

    If a loader has no length, Lightning fetches one batch ahead to find the last.
    """
    for caller, _ in _callers(_LIGHTNING):
        fetcher = getattr(caller, "_data_fetcher", None)
        if fetcher is not None:
            return len(getattr(fetcher, "batches", ()))
    return 0


def _see_accelerate(driver: Driver, caller: Any, name: str) -> None:
    driver.name = "accelerate"
    if name in ("BatchSamplerShard", "DataLoaderDispatcher"):
        processes = caller.num_processes if name == "BatchSamplerShard" else caller.state.num_processes
        if processes > 1:
            driver.shards_over = processes
            driver.draws_a_step = 1 if caller.split_batches else processes
    elif name == "SkipBatchSampler":
        driver.skipped += caller.skip_batches
    if name in ("DataLoaderShard", "DataLoaderDispatcher"):
        driver.held_back = True
        driver._trainer = weakref.ref(caller)
        driver.epoch = vars(caller).get("iteration")  # missing during construction


def _callers(libraries: tuple[str, ...] = _LIBRARIES) -> Iterator[tuple[Any, FrameType]]:
    """The objects of these libraries on the call stack, from the innermost on, each with its frame.

    Variables of other frames are not read: up to Python 3.12, reading `f_locals` keeps them alive with the frame.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        if str(frame.f_globals.get("__name__")).startswith(libraries):
            caller = frame.f_locals.get("self")
            if caller is not None:
                yield caller, frame
        frame = frame.f_back
