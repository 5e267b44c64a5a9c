"""Programs that change their module in every epoch: versions that were opened before others rest."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.faults.seam import FullDisk
from torch import nn

import warmstore as ws

EPOCHS = 30
X = torch.arange(80.0).reshape(10, 8)


class Scaled(nn.Module):
    """Counts the samples that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.computed = list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.computed.append(len(x))
        return x * self.factor


def epoch(features: ws.CachedModule, number: int, count: int = 10) -> int:
    """Call a module of that epoch, and return how many samples it has computed."""
    module = features.module
    module.factor.fill_(number)
    del module.computed[:]
    assert torch.equal(features(X[:count], cache_ids=range(count)), X[:count] * number)
    return sum(module.computed)


@pytest.fixture(params=["folder", "URL"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str | Path, dict[str, Path]]]:
    """Where a cache is, and the options that it is opened with there."""
    if request.param == "folder":
        yield tmp_path, {}
    else:
        (tmp_path / "team").mkdir()
        yield (tmp_path / "team").as_uri(), {"cache_dir": tmp_path / "copy"}


def test_a_version_for_each_epoch(place: tuple[str | Path, dict[str, Path]], tmp_path: Path) -> None:
    folder, options = place

    def files() -> int:
        paths = map(os.path.realpath, Path("/proc/self/fd").iterdir())
        return sum(path.startswith(str(tmp_path)) for path in paths)

    with ws.FeatureCache(folder, "net", versions="new", flush_every=4, **options) as cache:
        features, opened = ws.CachedModule(Scaled(), cache), []
        for number in range(EPOCHS):
            assert epoch(features, number) == 10
            cache.flush()
            opened.append(files())
        assert opened[-1] <= opened[9]
        assert sum(thread.name == "warmstore-writer" for thread in threading.enumerate()) <= 9
        stats = cache.stats()
        assert (stats.entries, stats.misses, len(stats.versions)) == (10 * EPOCHS, 10 * EPOCHS, EPOCHS)
        assert stats.bytes == pytest.approx(sum(version.bytes for version in stats.versions), rel=0.02)  # but footers
        for number in range(0, EPOCHS, 2):  # they are opened again
            assert epoch(features, number) == 0
        assert cache.stats().hits == 5 * EPOCHS
    if options:
        options["cache_dir"] = tmp_path / "other copy"  # what rested was pushed, too
    with ws.FeatureCache(folder, "net", versions="new", **options) as cache:
        features = ws.CachedModule(Scaled(), cache)
        assert [epoch(features, number) for number in range(EPOCHS)] == [0] * EPOCHS


def test_what_is_pending_is_committed_first(tmp_path: Path) -> None:
    options = {"versions": "new", "flush_every": 7, "async_write": False}
    cache = ws.FeatureCache(tmp_path, "net", **options)
    features = ws.CachedModule(Scaled(), cache)
    for number in range(EPOCHS):
        assert epoch(features, number, 8) + epoch(features, number) == 10  # two stay pending
    assert cache.stats().pending == 2 * 9
    with ws.FeatureCache(tmp_path, "net", **{**options, "read_only": True}) as other:
        looking = ws.CachedModule(Scaled(), other)
        assert [epoch(looking, number) for number in range(1, EPOCHS - 8)] == [0] * (EPOCHS - 9)
        assert epoch(looking, EPOCHS - 1) == 2
    cache.close()


def test_a_disk_that_is_full_then(tmp_path: Path) -> None:
    files = FullDisk()
    with ws.FeatureCache(tmp_path, "net", versions="new", flush_every=7, async_write=False, files=files) as cache:
        features = ws.CachedModule(Scaled(), cache)
        for number in range(9):
            assert epoch(features, number, 8) + epoch(features, number) == 10
        files.room = 0
        with pytest.raises(ws.WriteFailed):
            epoch(features, 9)
        files.room = None
        assert [epoch(features, number) for number in range(10)] == [0] * 9 + [10]
    with ws.FeatureCache(tmp_path, "net", versions="new") as cache:
        features = ws.CachedModule(Scaled(), cache)
        assert [epoch(features, number) for number in range(10)] == [0] * 10


def test_threads_use_versions_that_rest(tmp_path: Path) -> None:
    """While others are opened: what they return is right, and everything is stored in the end."""
    with ws.FeatureCache(tmp_path, "net", versions="new", flush_every=4) as cache:
        old = [ws.CachedModule(Scaled(), cache) for _ in range(3)]
        for number, features in enumerate(old):
            epoch(features, 100 + number)
        cache.flush()
        done, errors = threading.Event(), list[BaseException]()

        def use(number: int) -> None:
            try:
                while not done.is_set():
                    epoch(old[number], 100 + number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        features = ws.CachedModule(Scaled(), cache)
        for number in range(EPOCHS):
            epoch(features, number)
        done.set()
        for thread in threads:
            thread.join()
        assert not errors
    with ws.FeatureCache(tmp_path, "net", versions="new") as cache:
        features = ws.CachedModule(Scaled(), cache)
        assert [epoch(features, number) for number in [*range(EPOCHS), 100, 101, 102]] == [0] * (EPOCHS + 3)
