"""Samples of images, text, objects, Arrow data and types of the program equal uncached ones in every epoch."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline import encoded
from tests.pipeline.encoded import KINDS, Track, make, same, seen, written
from tests.pipeline.making import expected, plan_of

import warmstore as ws
from warmstore.pipeline.encoders.registry import REGISTRY

pytestmark = pytest.mark.forks


@pytest.fixture(autouse=True)
def track() -> Iterator[None]:
    """The encoder of a program, registered for one test."""
    ws.register_encoder(Track, encoded.encode, encoded.decode)
    yield
    REGISTRY.remove(Track)


def kept(loader: ws.Loader) -> int:
    return int((loader._source.open_stores().rows >= 0).sum())


def check(loader: ws.Loader, batches: Callable[[int], Iterable[Any]], epochs: range) -> None:
    """Assert that a loader gives these batches, epoch by epoch."""
    for epoch in epochs:
        got, wanted = list(loader), list(batches(epoch))
        assert len(got) == len(wanted)
        for at, pair in enumerate(zip(got, wanted, strict=True)):
            assert same(*pair), (epoch, at, [seen(batch) for batch in pair])


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("kind", KINDS)
def test_kept_samples_equal_uncached_ones(kind: str, codec: str, tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(12)).step(make, kind=kind)
    plan = plan_of(pipe, [(1, "memory", codec), (1, "disk", codec)], [6, 6], folder=tmp_path / "cache")
    with pipe.loader(None, 4, workers=0) as loader:
        uncached = [list(loader) for _ in range(3)]
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, uncached.__getitem__, range(3))
        assert kept(loader) == 12
        assert loader._source.notes() == []
    with pipe.loader(plan, 4, workers=0) as loader:  # the next run
        assert kept(loader) == 6
        check(loader, uncached.__getitem__, range(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_step_sees_what_it_sees_uncached(kind: str, tmp_path: Path) -> None:
    """It writes to every part, so that parts that are one, or share memory, show it."""
    pipe = ws.Pipeline(range(8)).step(make, kind=kind).step(written)
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [4, 4], folder=tmp_path / "cache")
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(3))
        assert kept(loader) == 8
        assert loader._source.notes() == []
