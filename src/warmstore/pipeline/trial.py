"""A sample that goes through the steps under watch: whether what comes of it may be kept.

Where a step has written into memory from outside the sample, the sample is made once more. It may be kept if it is the
same again, bit for bit, as it is where a step fills a buffer of its own or sets an entry to what it is already.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from warmstore.errors import BadSource, UnsupportedType
from warmstore.pipeline.outside_memory import ReachableObjects, is_simple
from warmstore.pipeline.tiers.sample_values import TreeSpec, flatten, to_bytes, unmarked
from warmstore.pipeline.write_watch import WriteWatch

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline

_log = logging.getLogger("warmstore")

Taken = tuple[TreeSpec, list[Any]]
"""A value that was taken apart."""

_FIRST = 4  # samples whose large parts are compared, and then ever fewer


class LargeParts:
    """In which samples of one process, made up to one step, parts of many bytes are compared: that takes a while.

    seen: how many samples had such parts.
    """

    def __init__(self) -> None:
        self.seen = 0

    def are_compared(self) -> bool:
        """Whether they are in the next sample."""
        return self.seen < _FIRST or self.seen & (self.seen - 1) == 0


class Trial:
    """One sample, made step by step.

    Args:
        raw: a list with what the source holds of it, which the trial takes over.
        beside: what can be reached from the list of raw values that it is one of.
        traceless: the watch can restore what the steps change outside.
    """

    def __init__(
        self,
        pipe: "Pipeline",
        index: int,
        raw: list[Any],
        large: LargeParts,
        beside: ReachableObjects | None = None,
        *,
        traceless: bool = False,
    ) -> None:
        self.watch = WriteWatch(raw, beside, large=large.are_compared(), copies=traceless)
        self._pipe = pipe
        self._index = index
        self._large = large
        self._done = 0
        self._bits: Any = None
        if beside is None or not beside.are_private:
            self.watch.look(0)

    @property
    def value(self) -> Any:
        """The sample as it is now."""
        return self.watch.values[0]

    def run(self, last: int) -> None:
        """Send the sample through the steps up to `last`."""
        values = self.watch.values
        for number in range(self._done, last):
            values[0] = self._pipe.run(values[0], self._index, first=number, last=number + 1)
            self._done = number + 1
            self.watch.look(self._done)

    def stages(self) -> Iterator[bytes]:
        """The sample after each step, as bytes that are equal where samples are; b"" of what cannot be kept."""
        for last in range(len(self._pipe.steps) + 1):
            self.run(last)
            try:
                yield to_bytes(*flatten(self.value))
            except UnsupportedType:
                yield b""

    def another(self) -> "Trial":
        """Another trial of the same sample, which begins where the source does."""
        return Trial(self._pipe, self._index, raw_values(self._pipe.source, [self._index]), LargeParts())

    def take(self, *, copy: bool = False) -> Taken:
        """The sample as it is now, flattened, with its parts from outside marked.

        Args:
            copy: see `flatten`.

        Raises:
            UnsupportedType: it cannot be kept.
        """
        self._large.seen += self.watch.has_large
        taken = flatten(self.value, copy=copy, outside=self.watch.parts)
        self._bits = _bits(taken) if self.watch else None
        return taken

    def settle(self) -> Taken | None:
        """See whether a sample that was taken and then finished may be kept.

        Returns:
            None; or what to keep in its place, where steps have written into memory from outside to no effect.

        Raises:
            WrittenOutside: steps have written into memory from outside, and the sample is another one now.
        """
        written = self.watch.written()
        if not written:
            return None
        now = self.watch.now()
        try:
            other = self.another()
            other.run(self._done)
            taken = flatten(other.value)
            if _bits(taken) == self._bits:
                return taken
        except Exception as error:  # steps raise anything
            _log.info("sample %s cannot be made twice: %r", f"{self._index:,}", error)
        finally:
            now.restore()
        raise WrittenOutside(written[-1], _said(self._pipe, written[-1]))


class WrittenOutside(UnsupportedType):
    """A step wrote into memory from outside a sample, which is seen after `stage` steps."""

    def __init__(self, stage: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def raw_values(source: Any, positions: list[int]) -> list[Any]:
    """What a source holds at some positions.

    Raises:
        BadSource: its `__getitems__` gives something else than a sample for each.
    """
    many = getattr(source, "__getitems__", None)
    if many is None:
        return [source[index] for index in positions]
    found = many(positions)
    if isinstance(found, Mapping) or len(found) != len(positions):
        raise BadSource(
            f"__getitems__ of {type(source).__name__} gave a {type(found).__name__} of {len(found):,} for "
            f"{len(positions):,} positions; it must give a list with a sample for each"
        )
    return list(found)


def reachable(raws: list[Any]) -> ReachableObjects | None:
    """What can be reached from a list of raw values; None where nothing of it changes."""
    return None if all(map(is_simple, raws)) else ReachableObjects(raws)


def examples(pipe: "Pipeline", indices: list[int], step: int) -> Iterator[Taken]:
    """Samples as they are after so many steps. What making them changes outside is put back.

    Raises:
        UnsupportedType: a sample cannot be kept.
    """
    large = LargeParts()
    raws = raw_values(pipe.source, indices)
    beside = reachable(raws)
    for at, index in enumerate(indices):
        trial = Trial(pipe, index, [raws[at]], large, beside, traceless=True)
        try:
            try:
                trial.run(step)
                taken = trial.take(copy=True)
            except UnsupportedType:
                raise
            except Exception as error:  # it will be raised when the sample's turn comes
                _log.info("sample %s fails: %r", f"{index:,}", error)
                continue
            yield trial.settle() or taken
        finally:
            trial.watch.restore()


def changes(pipe: "Pipeline", index: int) -> tuple[list[bool], list[str]]:
    """Make a sample twice, and put back what that changes outside.

    Returns:
        For each number of steps whether the sample is another one the second time; and what steps write into memory
        from outside that the sample had till then, "" where they do not.
    """
    trial = Trial(pipe, index, raw_values(pipe.source, [index]), LargeParts(), traceless=True)
    try:
        first = list(trial.stages())
        second = list(trial.another().stages())
        written = trial.watch.written()
    finally:
        trial.watch.restore()
    seen = [[stage for stage in written if stage <= k] for k in range(len(first))]
    return [one != other for one, other in zip(first, second, strict=True)], [
        _said(pipe, stages[-1]) if stages else "" for stages in seen
    ]


def _bits(taken: Taken) -> Any:
    """What is equal where two samples are equal bit for bit, but for marks."""
    structure, leaves = unmarked(*taken)
    return structure, [
        (leaf.shape, xxhash.xxh3_128_digest(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data))
        if isinstance(leaf, np.ndarray)
        else leaf
        for leaf in leaves
    ]


def _said(pipe: "Pipeline", stage: int) -> str:
    what = f"what step {pipe.steps[stage - 1].name!r} returns" if stage else "a sample of the source"
    return (
        f"{what} shares memory with the source, an argument, a global or a memo, and a step writes there: have it "
        "write into a copy"
    )
