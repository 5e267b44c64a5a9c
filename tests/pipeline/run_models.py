"""What programs of `programs` must give: samples computed the plain way, and all that a batch may be at a moment."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.pipeline.edited_steps import TOO_LARGE, TRAP, Constants, PipelinePlot, kept, made
from tests.pipeline.functions import change, change_in_place, shake
from tests.pipeline.making import same
from tests.pipeline.programs import Opening, ProgramInChild

from warmstore.loading.collate import stack
from warmstore.pipeline.sample_generators import sample_generator
from warmstore.records.sample_batch import SampleBatch

SKIPPED = object()
"""Stands for a sample that is left out, and for a batch without any."""

_MOST = 4000  # of the batches that may be


@dataclass(eq=False)
class SourceModel:
    """The numbers of a source's samples. Those of files are everybody's."""

    numbers: list[int]


@dataclass(eq=False)
class CellModel:
    """A pipeline in a program: its data, and the constants of its steps."""

    data: SourceModel
    constants: Constants


@dataclass(eq=False)
class LoaderModel:
    """chosen: the positions of the samples that passed the filter. parts: those of the batches that are left of an
    epoch, and the places after each; None where none is running. older: earlier numbers of samples, by position, and
    earlier constants, which may be met until the epoch ends. is_bare: the
    epoch has no batch for this rank."""

    cell: int
    opening: Opening
    chosen: list[int]
    data: list[int]
    epoch: int = 0
    place: int = 0
    is_loaded: bool = False
    running: int = 0
    is_bare: bool = False
    parts: list[tuple[list[int], int]] | None = None
    older: dict[int, list[int]] = field(default_factory=dict)
    constants: list[Constants] = field(default_factory=list)

    def begin(self) -> None:
        """Begin or resume an epoch."""
        if self.place and not self.is_loaded and not self.opening.resumes:
            self.epoch, self.place = self.epoch + self.opening.shuffles, 0
        self.running, self.older, self.constants = self.epoch, {}, []
        count, size, world = len(self.chosen), self.opening.batch_size, self.opening.rank[1]
        order = self.opening.order
        positions = order.indices(0, order.length(count), count, self.epoch).tolist()
        self.parts = []
        for first in range(self.place, count, size * world):
            together = positions[first : first + size * world]
            ranks = np.array_split(together, world)
            if len(together) == size * world:
                ranks = np.split(np.array(together), world)
            if part := ranks[self.opening.rank[0]].tolist():
                self.parts.append((part, first + len(together)))
        self.is_bare = not self.parts

    def hand_out(self) -> None:
        """The first of the parts is handed out."""
        assert self.parts is not None
        _, self.place = self.parts.pop(0)
        self.is_loaded = False
        if not self.parts:
            self.epoch, self.place = self.running + 1, 0


@dataclass(eq=False)
class ProgramModel:
    program: Any
    data: SourceModel
    cells: list[CellModel] = field(default_factory=list)
    loaders: dict[int, LoaderModel] = field(default_factory=dict)

    @property
    def is_child(self) -> bool:
        return isinstance(self.program, ProgramInChild)


@dataclass(eq=False)
class PipelineTruth:
    """What holds for all programs of an example. in_files: the constants that are in files."""

    plot: PipelinePlot
    files: SourceModel
    in_files: Constants

    def number(self, cell: CellModel, index: int) -> int:
        return (self.files if self.plot.source == "files" else cell.data).numbers[index]

    def constants_of(self, cell: CellModel) -> Constants:
        is_shared = {name: self.plot.knobs[name] == "file" for name in cell.constants}
        return {name: self.in_files[name] if is_shared[name] else by for name, by in cell.constants.items()}

    def passes(self, number: int, constants: Constants) -> bool:
        if not self.plot.has_filter:
            return True
        return kept(made(number, constants["decode"], self.plot.kind), constants["filter"])

    def value(self, number: int | None, constants: Constants, position: int, seed: int, epoch: int) -> Any:
        """A sample, computed the plain way; of a substitute where there is no number."""
        plot = self.plot
        value = np.zeros(2) if number is None else made(number, constants["decode"], plot.kind)
        by = constants["shift"]
        value = change(value, by) if isinstance(value, np.ndarray) else (value, by)
        if plot.writes:
            value = change_in_place(value)
        if plot.is_random:
            value = shake(value, sample_generator(seed, epoch, position, plot.cacheable))
        return value * 2 if plot.is_batched else value

    def allowed(self, running: ProgramModel, loader: LoaderModel, position: int) -> list[Any]:
        """What a sample may be now, first what it is most likely."""
        cell, index = running.cells[loader.cell], loader.chosen[position]
        numbers = [self.number(cell, index), *loader.older.get(index, [])]
        arguments = position, loader.opening.seed, loader.running
        found = []
        for constants in [self.constants_of(cell), *loader.constants]:
            for number in numbers:
                found.append(self.value(number, constants, *arguments))
                if TRAP.is_broken and number > TOO_LARGE:
                    if self.plot.on_error == "skip":
                        found.append(SKIPPED)
                    elif self.plot.on_error == "substitute":
                        found.append(self.value(None, constants, *arguments))
        return found

    def chosen(self, cell: CellModel) -> list[int]:
        """The positions of the samples that pass the filter now."""
        constants = self.constants_of(cell)
        return [at for at in range(len(cell.data.numbers)) if self.passes(self.number(cell, at), constants)]

    def batches_of(self, running: ProgramModel, loader: LoaderModel, part: list[int]) -> Iterator[Any]:
        """All that a batch may be; `SKIPPED` for one without samples."""
        for chosen in itertools.product(*(self.allowed(running, loader, position) for position in part)):
            samples = [sample for sample in chosen if sample is not SKIPPED]
            yield stack(samples) if samples else SKIPPED

    def may_fail(self, running: ProgramModel, loader: LoaderModel, part: list[int]) -> bool:
        cell = running.cells[loader.cell]
        indices = [loader.chosen[position] for position in part]
        numbers = [self.number(cell, index) for index in indices]
        numbers += [number for index in indices for number in loader.older.get(index, [])]
        if self.plot.on_error == "skip" and loader.opening.rank[1] > 1:  # a batch that is left out lets others wait
            return self.may_be_empty(running, loader, part)
        return TRAP.is_broken and self.plot.on_error == "raise" and max(numbers) > TOO_LARGE

    def may_be_empty(self, running: ProgramModel, loader: LoaderModel, part: list[int]) -> bool:
        """Whether all samples of a batch may be left out."""
        return all(any(one is SKIPPED for one in self.allowed(running, loader, position)) for position in part)

    def is_one_of(self, batch: Any, batches: Iterator[Any]) -> bool:
        """Whether a batch is one of those that may be."""
        return any(one is not SKIPPED and same(batch, one) for one in itertools.islice(batches, _MOST))


def as_rows(batch: Any, count: int, way: str) -> Any:
    """A batch as torch's DataLoader makes it of rows of a data set, or of single ones."""
    rows = list(SampleBatch(batch, count))
    if way == "parts":
        rows = [SampleBatch(stack([row]), 1)[0] for row in rows]
    return batch if way == "loader" else stack(rows)
