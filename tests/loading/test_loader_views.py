"""A loader in a notebook: what it reads, in which order, and where it is."""

from collections.abc import Iterator

import numpy as np
from tests.display.reading import cells_of

import warmstore as ws


def after(cells: list[str], name: str) -> str:
    return cells[cells.index(name) + 1]


def double(batch: np.ndarray) -> np.ndarray:
    return batch * 2


def test_shows_the_options_and_the_position() -> None:
    with ws.Loader(np.arange(10), 2, ws.Shuffle(seed=3), transform=double, workers=1) as loader:
        iteration = iter(loader)
        for _ in range(3):
            next(iteration)
        cells = cells_of(loader._repr_html_())
        iteration.close()
    assert after(cells, "samples") == "10"
    assert after(cells, "batches in an epoch") == "5"
    assert after(cells, "sampler") == "Shuffle(seed=3)"
    assert after(cells, "transform") == "double"
    assert after(cells, "workers") == "1 threads"
    assert after(cells, "position") == "epoch 0, sample 6 of 10"
    assert "closed" in cells_of(loader._repr_html_())


def test_the_position_is_one_in_the_epoch_of_the_sampler() -> None:
    loader = ws.Loader(np.arange(10), 5, ws.Uniform(samples=100))
    iteration = iter(loader)
    for _ in range(10):
        next(iteration)
    assert after(cells_of(loader._repr_html_()), "position") == "epoch 0, sample 50 of 100"
    assert after(cells_of(ws.Loader([], 5)._repr_html_()), "position") == "epoch 0, place 0"


def test_an_iterable_has_no_length() -> None:
    class Numbers:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with ws.Loader(Numbers(), 2, workers=0) as loader:
        cells = cells_of(loader._repr_html_())
    assert after(cells, "samples") == "an iterable"
    assert "batches in an epoch" not in cells


def test_batches_of_varying_size_and_ranks_are_named() -> None:
    rows = ws.TokenBudget(20, lengths=np.arange(1, 11))
    with ws.Loader(np.arange(10), rows, rank=1, world_size=2) as loader:
        cells = cells_of(loader._repr_html_())
    assert after(cells, "batch size").startswith("TokenBudget(")
    assert after(cells, "rank") == "1 of 2, uneven='pad'"
