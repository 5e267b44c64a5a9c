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

_LIBRARIES = ("torch.utils.data.", "torchdata.", "accelerate.data_loader")
_LIGHTNING = ("lightning.pytorch.loops.", "pytorch_lightning.loops.")
_DEPTH = 16  # frames between a batch sampler and the `for` of a trainer, at most


@dataclass
class Driver:
    """What is known of who draws.

    name: of the trainer. shards_over: its processes, where it shards the batches; else 0. draws_a_step: batches drawn
    for one step of a rank. epoch: as the trainer counts, where it does not say so itself. ahead: batches that the
    workers of a DataLoader draw before the first is handed out. held_back: whether the trainer holds one batch back.
    is_unordered: batches are handed out as they come. skipped: batches at the start of an epoch that are drawn and not
    handed out.
    """

    name: str = ""
    shards_over: int = 0
    draws_a_step: int = 1
    epoch: int | None = None
    ahead: int = 0
    held_back: bool = False
    is_unordered: bool = False
    skipped: int = 0
    _loader: Any = field(default=None, repr=False)  # a weak reference to the iterator of torch's DataLoader
    _drawn_from: Any = field(default=None, repr=False)
    _trainer: Any = field(default=None, repr=False)  # and one to what holds a batch back

    @property
    def is_known(self) -> bool:
        """Whether something is known of what draws: without that, a batch that is drawn is handed out."""
        return self._loader is not None or bool(self.shards_over)

    def check(self, *, is_over: bool) -> None:
        """Raise ValueError where nobody knows how many batches were handed out, or which."""
        if is_over:
            return
        if self.is_unordered:
            raise ValueError(
                "a DataLoader with in_order=False hands batches out in any order, and a state is a place in one: leave "
                "in_order at True, or take states between epochs"
            )
        trainer = None if self._trainer is None else self._trainer()
        if self.shards_over and self._running() is None and not getattr(trainer, "end_of_dataloader", False):
            raise ValueError(
                f"the DataLoader that {self.name} drew with is gone, and with it the number of batches that training "
                "had: pass batches="
            )

    def handed(self, asked: int, drawn: int, failed: int, *, is_exhausted: bool) -> int:
        """How many of the drawn batches were handed out, or failed.

        Args:
            asked: how often a batch was asked for, also after the last.
            failed: batches that were not handed out, as making them raised.
            is_exhausted: one was asked for after the last.
        """
        loader = self._running()
        trainer = None if self._trainer is None else self._trainer()
        has_ended = bool(getattr(trainer, "end_of_dataloader", False))
        if self.shards_over:
            if has_ended:
                return drawn
            if loader is None:
                return 0
            steps = max(int(loader._num_yielded) - self.held_back, 0) + self.skipped
            return min(drawn, steps * self.draws_a_step)
        handed = min(drawn, max(asked - self.ahead, 0))
        if loader is not None:
            handed = min(handed, int(loader._num_yielded) + failed + self.skipped)
        if self.held_back and not (has_ended if self.ahead else is_exhausted):
            handed = max(handed - 1, 0)
        return handed

    def begin(self) -> None:
        """The first batch is drawn: what the DataLoader draws from now is this epoch."""
        loader = None if self._loader is None else self._loader()
        if loader is None:
            return
        self._drawn_from = loader._sampler_iter
        if loader._num_workers:
            self.ahead = loader._num_workers * loader._prefetch_factor
            self.is_unordered = not getattr(loader, "_in_order", True)

    def _running(self) -> Any:
        """The iterator of the DataLoader, as long as it is in this epoch: one with persistent workers is used again."""
        loader = None if self._loader is None else self._loader()
        return loader if getattr(loader, "_sampler_iter", None) is self._drawn_from else None

    def failed(self, asked: int, failed: int) -> int:
        """How many batches were not handed out before the one that is asked for now."""
        loader = self._running()
        if loader is None or self.shards_over:
            return failed
        return max(asked - self.ahead - self.skipped - int(loader._num_yielded), failed)


def driver_of() -> Driver:
    """Who calls a method of a batch sampler now."""
    driver = Driver()
    for caller, _ in _callers():
        kind = type(caller)
        if kind.__module__ == "accelerate.data_loader":
            _see_accelerate(driver, caller, kind.__name__)
        elif driver._loader is None and hasattr(caller, "_index_sampler") and hasattr(caller, "_num_workers"):
            driver._loader = weakref.ref(caller)
    return driver


def is_automatic() -> bool:
    """Whether accelerate sets the epoch by itself now, from its own count at the beginning of a `for`."""
    return any(
        frame.f_code.co_name == "__iter__" and type(caller).__module__ == "accelerate.data_loader"
        for caller, frame in _callers()
    )


def held_by_lightning() -> int:
    """Batches that Lightning has fetched and not trained on, where it saves a state now.

    It fetches one ahead where a loader has no length, to know which is the last.
    """
    for caller, _ in _callers(_LIGHTNING):
        fetcher = getattr(caller, "_data_fetcher", None)
        if fetcher is not None:
            return len(getattr(fetcher, "batches", ()))
    return 0


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


def _callers(libraries: tuple[str, ...] = _LIBRARIES) -> Iterator[tuple[Any, FrameType]]:
    """The objects of these libraries whose methods run now, from the innermost on, each with its frame.

    The variables of other frames are left alone: Python keeps what is looked at, up to 3.12, as long as the frame runs.
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
