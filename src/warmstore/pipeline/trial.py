"""A sample that goes through the steps under watch: whether what comes of it may be kept.

Where a step has written into memory from outside the sample, the sample is made once more. It may be kept if it is the
same again, bit for bit, as it is where a step fills a buffer of its own or sets an entry to what it is already.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.errors import BadSource, UnsupportedType
from warmstore.pipeline.outside import Objects, Watch, is_simple
from warmstore.pipeline.values import Structure, take_apart, to_bytes
from warmstore.records.arrays import is_tensor, to_numpy

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline

_log = logging.getLogger("warmstore")

Taken = tuple[Structure, list[Any]]
"""A value that was taken apart."""

_FIRST = 16
_EVERY = 64


class Doubt:
    """What one process has learned of memory of which nobody says who refers to it, such as that of `from_numpy`.

    outside: some of it was found to come from outside the samples.
    """

    def __init__(self) -> None:
        self.outside = False
        self._trials = 0
        self._asked = 0

    def is_early(self) -> bool:
        """Whether the next sample is one of the first, of which all is compared."""
        self._trials += 1
        return self._trials <= _FIRST

    def is_due(self) -> bool:
        """Whether to make a sample twice, to see whether its memory is another each time."""
        self._asked += 1
        return self._asked <= _FIRST or self._asked % _EVERY == 0


class Trial:
    """One sample, made step by step.

    Args:
        raw: a list with what the source holds of it, which the trial takes over.
        beside: what can be reached from the list of raw values that it is one of.
    """

    def __init__(
        self, pipe: "Pipeline", index: int, raw: list[Any], doubt: Doubt, beside: Objects | None = None
    ) -> None:
        self.watch = Watch(raw, beside, large=doubt.is_early())
        self._pipe = pipe
        self._index = index
        self._doubt = doubt
        self._done = 0
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

    def finish(self) -> None:
        """Send a sample through the steps that are left, without looking."""
        self._pipe.run(self.value, self._index, first=self._done)

    def stages(self) -> Iterator[bytes]:
        """The sample after each step, as bytes that are equal where samples are; b"" of what cannot be kept."""
        for last in range(len(self._pipe.steps) + 1):
            self.run(last)
            try:
                yield to_bytes(*take_apart(self.value))
            except UnsupportedType:
                yield b""

    def another(self) -> "Trial":
        """Another trial of the same sample, which begins where the source does."""
        return Trial(self._pipe, self._index, raw_values(self._pipe.source, [self._index]), self._doubt)

    def take(self) -> Taken:
        """The sample as it is now, taken apart, with its parts from outside marked.

        Raises:
            UnsupportedType: it cannot be kept.
        """
        self._decide()
        return take_apart(self.value, outside=self.watch.parts(certain=True))

    def settled(self, taken: Taken) -> Taken:
        """What to keep of a sample, after the steps that follow.

        Raises:
            UnsupportedType: a step wrote into memory from outside, so that the sample is another one now.
        """
        stage = self.watch.written()
        if stage is None:
            return taken
        taken = unmarked(taken)
        if not self._comes_again(taken):
            raise WrittenOutside(stage, _said(self._pipe, stage))
        return taken

    def _decide(self) -> None:
        """Find out whether memory of which nobody says who refers to it comes from outside."""
        unsure = self.watch.parts(certain=False)
        if not unsure:
            return
        if not self._doubt.outside and self._doubt.is_due():
            now = self.watch.again()
            try:
                other = self.another()
                other.run(self._done)
                self._doubt.outside = _overlap(unsure, other.watch.values[1:])
            except Exception:  # steps raise anything
                self._doubt.outside = True
            finally:
                now.restore()
        self.watch.decide(outside=self._doubt.outside)

    def _comes_again(self, taken: Taken) -> bool:
        now = self.watch.again()
        try:
            other = self.another()
            other.run(self._done)
            return to_bytes(*take_apart(other.value)) == to_bytes(*taken)
        except Exception as error:  # steps raise anything
            _log.info("sample %s cannot be made twice: %r", f"{self._index:,}", error)
            return False
        finally:
            now.restore()


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


def reachable(raws: list[Any]) -> Objects | None:
    """What can be reached from raw values; None where that is nothing that changes."""
    return None if all(map(is_simple, raws)) else Objects(raws)


def examples(pipe: "Pipeline", indices: list[int], step: int) -> Iterator[Taken]:
    """Samples as they are after so many steps. What making them changes outside is put back.

    Raises:
        UnsupportedType: a sample cannot be kept.
    """
    doubt = Doubt()
    raws = raw_values(pipe.source, indices)
    beside = reachable(raws)
    for at, index in enumerate(indices):
        trial = Trial(pipe, index, [raws[at]], doubt, beside)
        try:
            try:
                trial.run(step)
                taken = trial.take()
                if trial.watch:
                    trial.finish()
            except UnsupportedType:
                raise
            except Exception as error:  # it will be raised when the sample's turn comes
                _log.info("sample %s fails: %r", f"{index:,}", error)
                continue
            yield trial.settled(taken)
        finally:
            trial.watch.restore()


def changes(pipe: "Pipeline", index: int) -> tuple[int | None, str]:
    """Make a sample twice, and put back what that changes outside.

    Returns:
        The first number of steps after which it is not the same again, or None; and, where the reason is a step that
        writes into memory from outside, that reason.
    """
    trial = Trial(pipe, index, raw_values(pipe.source, [index]), Doubt())
    try:
        first = list(trial.stages())
        second = list(trial.another().stages())
        varying = next((k for k, (one, other) in enumerate(zip(first, second, strict=True)) if one != other), None)
        trial.watch.decide(outside=True)
        stage = trial.watch.written()
        return varying, "" if varying is None or stage is None else _said(pipe, stage)
    finally:
        trial.watch.restore()


def unmarked(taken: Taken) -> Taken:
    """The same without marks of parts from outside."""
    structure, leaves = taken
    return (structure[-1][0] if structure[0] == "outside" else structure), leaves


def _said(pipe: "Pipeline", stage: int) -> str:
    what = f"what step {pipe.steps[stage - 1].name!r} returns" if stage else "a sample of the source"
    return (
        f"{what} lies in memory that the source, an argument, a global or a memo refers to as well, and a step writes "
        "there, so that the next epoch finds something else: have it write into a copy"
    )


def _overlap(some: list[Any], others: list[Any]) -> bool:
    """Whether arrays or tensors among some parts and others lie in the same memory."""
    arrays = [[to_numpy(part) for part in parts if isinstance(part, np.ndarray) or is_tensor(part)]
              for parts in (some, others)]  # fmt: skip
    return any(np.may_share_memory(one, other) for one in arrays[0] for other in arrays[1])
