"""Run the steps on a sample, watch for writes to outside memory, and decide whether the result may be cached.

After such a write the sample is computed a second time. It may be cached if both results are equal bit for bit: a step
may fill a buffer of its own, or set an entry to the same value again.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xxhash

from warmstore.errors import SampleSkipped, UnsupportedType
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.sample_spec import Taken, unmarked
from warmstore.pipeline.trials.outside_memory import ReachableObjects, is_simple
from warmstore.pipeline.trials.write_watch import WriteWatch

_log = logging.getLogger("warmstore")

_FIRST = 4  # samples whose large parts are compared; later ones at powers of two


class LargeParts:
    """Selects the samples whose large parts are compared, which takes long. One per process and step.

    seen: number of samples with large parts.
    """

    def __init__(self) -> None:
        self.seen = 0

    def are_compared(self) -> bool:
        """Whether the large parts of the next sample are compared."""
        return self.seen < _FIRST or self.seen & (self.seen - 1) == 0


class Trial:
    """One sample, computed step by step.

    Args:
        raw: a list of the raw value, owned by the trial from now on.
        beside: objects reachable from the raw values of the batch.
        traceless: the watch can undo writes to outside memory.
    """

    def __init__(
        self,
        chain: Chain,
        index: int,
        raw: list[Any],
        large: LargeParts,
        beside: ReachableObjects | None = None,
        *,
        traceless: bool = False,
    ) -> None:
        self.watch = WriteWatch(raw, beside, large=large.are_compared(), copies=traceless)
        self._chain = chain
        self._index = index
        self._large = large
        self._done = 0
        self.substituted: set[int] = set()  # numbers of failed steps whose `on_error` gave the result
        self._bits: Any = None
        if beside is None or not beside.are_private:
            self.watch.look(0)

    @property
    def value(self) -> Any:
        """The sample as it is now."""
        return self.watch.values[0]

    def run(self, last: int) -> None:
        """Run the steps up to `last`."""
        values = self.watch.values
        for number in range(self._done, last):
            values[0] = self._chain.run(
                values[0], self._index, first=number, last=number + 1, substituted=self.substituted
            )
            self._done = number + 1
            self.watch.look(self._done)

    def stages(self) -> Iterator[tuple[bytes, int]]:
        """For the sample after each step: a hash that is equal if samples are, and its bytes; b"" and 0 if it cannot be
        stored."""
        for last in range(len(self._chain.steps) + 1):
            self.run(last)
            try:
                data = to_bytes(*flatten(self.value))
            except UnsupportedType:
                yield b"", 0
            else:
                yield xxhash.xxh3_128_digest(data), len(data)

    def take(self, *, copy: bool = False) -> Taken:
        """Flatten the sample as it is now, with its parts in outside memory marked.

        Args:
            copy: see `flatten`.

        Raises:
            UnsupportedType: it cannot be stored.
        """
        self._large.seen += self.watch.has_large
        taken = flatten(self.value, copy=copy, outside=self.watch.parts)
        self._bits = _bits(taken) if self.watch else None
        return taken

    def settle(self) -> Taken | None:
        """Decide whether the sample may be cached, after `take` and the remaining steps.

        Returns:
            None; or the value to cache instead, if steps wrote to outside memory without changing the sample.

        Raises:
            WrittenOutside: steps wrote to outside memory, and a second computation gave another sample.
        """
        written = self.watch.written()
        if not written:
            return None
        now = self.watch.now()
        try:
            other = Trial(self._chain, self._index, self._chain.raw_values([self._index]), LargeParts())
            other.run(self._done)
            taken = flatten(other.value)
            if _bits(taken) == self._bits:
                return taken
        except Exception as error:  # steps raise anything
            _log.info("sample %s cannot be computed twice: %r", f"{self._index:,}", error)
        finally:
            now.restore()
        raise WrittenOutside(written[-1], _write_message(self._chain, written[-1]))


class WrittenOutside(UnsupportedType):
    """A step wrote to outside memory, which the sample refers to after `stage` steps."""

    def __init__(self, stage: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def reachable(raws: list[Any]) -> ReachableObjects | None:
    """The objects reachable from raw values; None if all of them are immutable."""
    return None if all(map(is_simple, raws)) else ReachableObjects(raws)


def examples(chain: Chain, indices: list[int], step: int) -> Iterator[Taken]:
    """Yield samples after `step` steps, and undo writes to outside memory. Those that fail are left out.

    Raises:
        UnsupportedType: a sample cannot be stored.
    """
    large = LargeParts()
    raws: list[Any] = []
    indices = [index for index in indices if _read(chain, index, raws)]
    beside = reachable(raws)
    for at, index in enumerate(indices):
        trial = Trial(chain, index, [raws[at]], large, beside, traceless=True)
        try:
            try:
                trial.run(step)
                if trial.substituted:
                    continue
                taken = trial.take(copy=True)
            except UnsupportedType:
                raise
            except Exception as error:  # reading the sample raises it again
                _log.info("sample %s fails: %r", f"{index:,}", error)
                continue
            yield trial.settle() or taken
        finally:
            trial.watch.restore()


def changes(chain: Chain, index: int, goes_on: Callable[[], bool]) -> tuple[list[bool], list[str], int] | None:
    """Compute a sample twice, and undo writes to outside memory.

    Args:
        goes_on: called in between; if it is false, the sample is not computed again.

    Returns:
        For each stage, whether the second result differs, and a message if steps write to outside memory that the
        sample refers to by then, else ""; and the bytes of the largest stage. None if the sample was computed once, if
        it cannot be read, or if a step fails on it and skips or substitutes it.
    """
    raw: list[Any] = []
    again: list[Any] = []
    if not _read(chain, index, raw):
        return None
    trial = Trial(chain, index, raw, LargeParts(), traceless=True)
    try:
        first = list(trial.stages())
        if not goes_on() or not _read(chain, index, again):
            return None
        other = Trial(chain, index, again, LargeParts())
        second = list(other.stages())
        written = trial.watch.written()
    except SampleSkipped:
        return None
    finally:
        trial.watch.restore()
    if trial.substituted or other.substituted:
        return None
    seen = [[stage for stage in written if stage <= k] for k in range(len(first))]
    differs = [before != after for before, after in zip(first, second, strict=True)]
    messages = [_write_message(chain, stages[-1]) if stages else "" for stages in seen]
    return differs, messages, max(size for _, size in first)


def _read(chain: Chain, index: int, raws: list[Any]) -> bool:
    """Append the raw value of a sample to a list, which has the only new reference; False if the source fails on it."""
    try:
        raws += chain.raw_values([index])
    except Exception as error:  # sources raise anything; reading the sample raises it again
        _log.info("sample %s cannot be read: %r", f"{index:,}", error)
        return False
    return True


def _bits(taken: Taken) -> Any:
    """A value that is equal if two samples are equal bit for bit, marks aside."""
    structure, leaves = unmarked(*taken)
    return repr(structure), [
        (leaf.shape, xxhash.xxh3_128_digest(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data))
        if isinstance(leaf, np.ndarray)
        else leaf
        for leaf in leaves
    ]


def _write_message(chain: Chain, stage: int) -> str:
    what = f"the result of step {chain.steps[stage - 1].name!r}" if stage else "a sample of the source"
    return (
        f"{what} shares memory with the source, an argument, a global or a memo, and a step writes to it; "
        "write to a copy"
    )
