"""What is cached belongs to samples and not to lists: data sets grow, shrink, are split, shuffled and concatenated."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from tests.pipeline.functions import slow_image
from tests.pipeline.making import check, expected, numbered_files, plan_of
from tests.slow import thinned

import warmstore as ws
from warmstore.pipeline.tiers import sample_store
from warmstore.records.log.log_entries import ENTRY
from warmstore.records.write.chunk_eviction import evict
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.files import PLAIN

pytestmark = pytest.mark.forks

COUNT = 60
calls = [0]


def decoded(value: Any) -> Any:
    calls[0] += 1
    content = Path(value).read_bytes() if isinstance(value, str | Path) else bytes(np.asarray(value))
    return np.frombuffer(content, np.uint8).astype(np.float32)


def computed(source: Any, folder: Path, counts: Sequence[int] | None = None, **budget: Any) -> int:
    """How many samples one epoch computes; its batches are those of the uncached pipeline."""
    pipe = ws.Pipeline(source).step(decoded)
    plan = plan_of(pipe, [(1, "disk", "raw")], counts or [len(pipe)], folder=folder, **budget)
    with pipe.loader(plan, 8, workers=0) as loader:
        before = calls[0]
        got = list(loader)
        made = calls[0] - before
        for batch, wanted in zip(got, expected(pipe, 8, 0, 0), strict=True):
            assert batch.tobytes() == wanted.tobytes()
        calls[0] = before + made  # the counter is memory of the step, which the program must not change
    return made


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return numbered_files(tmp_path / "data", COUNT + 10, 40)


def test_a_list_that_grows_computes_what_is_new(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    assert computed(paths[:COUNT], cache) == COUNT
    assert computed(paths[: COUNT + 1], cache) == 1
    assert computed([paths[COUNT + 5], *paths[: COUNT + 3]], cache) == 3
    assert computed(paths[:COUNT], cache) == 0


@pytest.mark.parametrize("more", [1, -1])
def test_changes_in_a_list_that_another_loader_has_seen_grow_or_shrink(tmp_path: Path, more: int) -> None:
    """Nobody looks at the number of samples in an epoch, but whoever makes another loader of the pipeline does."""
    source = [np.full(4, number) for number in range(COUNT)]
    pipe = ws.Pipeline(source).step(np.negative)
    with pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)) as data:
        for epoch in range(4):
            data.set_epoch(epoch)
            assert [int(sample[0]) for sample in data] == [-int(sample[0]) for sample in source[:COUNT]]
            if epoch == 0:
                source[COUNT + min(more, 0) :] = [np.full(4, 1000)] * max(more, 0)
                pipe.dataset().close()
            elif epoch == 1:
                source[3] = np.full(4, 333)
                source[5][:] = 555
            elif more < 0:
                source.append(np.full(4, 1000))  # which nobody has identified
        assert (data._source.cached.open().rows[: COUNT - 1] >= 0).all()


def test_subsets_orders_and_folds_compute_nothing(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    assert computed(paths, cache) == len(paths)
    for fold in range(5):
        assert computed([path for at, path in enumerate(paths) if at % 5 != fold], cache) == 0
        assert computed(paths[fold::5], cache) == 0
    assert computed(paths[::-1], cache) == 0
    assert computed(paths + paths[:9], cache) == 0  # oversampled
    assert computed(list(map(str, paths)), cache) == len(paths)  # a step may tell a str from a path


def test_a_sample_has_one_key_whatever_is_beside_it(tmp_path: Path, paths: list[Path]) -> None:
    """A missing file, a file of another kind, a short list: none changes the keys of the other samples."""
    keys = ws.Pipeline(paths).identities.samples.each
    for others in ([tmp_path / "missing"], [tmp_path], [Path("relative")]):
        beside = ws.Pipeline([*paths[5:9], *others]).identities.samples.each
        assert beside[:4].tolist() == keys[5:9].tolist()


@pytest.mark.parametrize("kind", thinned(2, ["array", "arrays", "bytes", "records"]))
def test_values_in_memory(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).integers(0, 255, (COUNT, 12), np.uint8)
    made: dict[str, Any] = {
        "array": rows,
        "arrays": list(rows),
        "bytes": [row.tobytes() for row in rows],
        "records": [(row.tobytes(), number) for number, row in enumerate(rows)],
    }
    source, cache = made[kind], tmp_path / "cache"

    def run(some: Any) -> int:
        pipe = ws.Pipeline(some).step(decoded_record if kind == "records" else decoded)
        plan = plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=cache)
        with pipe.loader(plan, 8, workers=0) as loader:
            before = calls[0]
            list(loader)
            return calls[0] - before

    assert run(source[: COUNT - 6]) == COUNT - 6
    assert run(source) == 6
    assert run(source[::-1]) == 0
    assert run(source[3:9]) == 0


def decoded_record(value: Any) -> Any:
    return decoded(value[0])


def test_torch_subsets_and_concatenations(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    data: Any = Labelled(paths[:COUNT])
    assert computed(data, cache) == COUNT
    first, second = torch.utils.data.random_split(data, [COUNT - 20, 20])
    assert computed(first, cache) == computed(second, cache) == 0
    assert computed(torch.utils.data.Subset(first, [3, 4, 5]), cache) == 0
    more = Labelled(paths[COUNT:])
    assert computed(torch.utils.data.ConcatDataset([data, more]), cache) == 10
    assert computed(torch.utils.data.ConcatDataset([more, second]), cache) == 0


class Labelled(torch.utils.data.Dataset):
    """A data set of a program's own."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.paths[index]


def test_a_record_store_that_grows(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("uint8", (4,))})
    for more in (COUNT, 3):
        store.extend({"x": np.random.default_rng(more).integers(0, 255, (more, 4), np.uint8)})
        store.flush()
        assert computed(store["x"], tmp_path / "cache") == more
    store.close()


def test_a_folder_has_one_budget_that_growth_does_not_exceed(tmp_path: Path) -> None:
    """Lists that do not share samples take each other's bytes, and none exceeds the budget at any time."""
    budget = 600_000
    for first in (0, 40, 80, 0):
        pipe = ws.Pipeline(range(first, first + 40)).step(slow_image, side=60)  # 432 KB in all
        plan = plan_of(pipe, [(1, "disk", "raw")], [40], folder=tmp_path, disk=budget)
        with pipe.loader(plan, 4, workers=0) as loader:
            for _ in range(2):
                for _ in loader:
                    assert folder_bytes(loader._source.cached.layout.places[0].folder.parent) <= budget
            check(loader, lambda epoch, pipe=pipe: expected(pipe, 4, 0, epoch), range(2, 3))
            assert (loader._source.cached.open().rows >= 0).sum() >= 20


def test_a_budget_that_is_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The surplus is evicted as the plan is opened, though nothing is written; what is left is not computed again."""
    monkeypatch.setattr(sample_store, "FLUSH", 40_000)
    pipe, other = (ws.Pipeline(range(40 * at, 40 * at + 40)).step(slow_image, side=60) for at in range(2))
    for one in (pipe, other):  # one version has the samples of both
        with one.loader(
            plan_of(one, [(1, "disk", "raw")], [40], folder=tmp_path, disk=1_200_000), 4, workers=0
        ) as all_of:
            list(all_of)
            tier = all_of._source.cached.layout.places[0].folder.parent
    before = folder_bytes(tier)
    few = ws.Pipeline(range(4)).step(slow_image, side=60)
    with few.loader(plan_of(few, [(1, "disk", "raw")], [4], folder=tmp_path, disk=200_000), 4, workers=0) as loader:
        assert len(list(loader)) == 1
        assert folder_bytes(tier) >= before  # its own samples have room
    for _ in range(2):
        plan = plan_of(pipe, [(1, "disk", "raw")], [20], folder=tmp_path, disk=400_000)
        with pipe.loader(plan, 4, workers=0) as loader:
            assert folder_bytes(tier) <= 400_000
            check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(2))
            assert folder_bytes(tier) <= 400_000
            assert (loader._source.cached.open().rows >= 0).sum() >= 15


def test_what_a_present_plan_needs_is_not_evicted(tmp_path: Path) -> None:
    budget = 600_000
    first = ws.Pipeline(range(40)).step(slow_image, side=60)
    plan = plan_of(first, [(1, "disk", "raw")], [40], folder=tmp_path, disk=budget)
    with first.loader(plan, 4, workers=0) as loader:
        list(loader)
        other = ws.Pipeline(range(100, 140)).step(slow_image, side=60)
        few = plan_of(other, [(1, "disk", "raw")], [40], folder=tmp_path, disk=budget)
        with other.loader(few, 4, workers=0) as beside:
            check(beside, lambda epoch: expected(other, 4, 0, epoch), range(2))
            assert (beside._source.cached.open().rows >= 0).sum() < 20
        loader._source.cached.open().refresh()
        assert (loader._source.cached.open().rows >= 0).all()
        check(loader, lambda epoch: expected(first, 4, 0, epoch), range(1, 2))


def test_a_reader_computes_what_was_evicted_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.pipeline.tiers import chunk_leases

    pipe = ws.Pipeline(range(40)).step(slow_image, side=60)
    plan = plan_of(pipe, [(1, "disk", "raw")], [40], folder=tmp_path)
    pipe.fill(plan, 8, workers=0)
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(1))
        place = loader._source.cached.layout.places[0]
        monkeypatch.setattr(chunk_leases, "is_locked", lambda path: False)
        assert chunk_leases.evict_unneeded(iter([place.folder / "alike"]), 1) > 0
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(1, 4))
        assert (loader._source.cached.open().rows >= 0).all()


def rebalanced(store: Path) -> None:
    with ws.RecordStore.open(store, mode="a") as opened:
        opened.rebalance(progress=False)


def cut(store: Path) -> None:
    """As a disk that has not synced, under a machine that goes on."""
    for log in sorted(store.glob("g*/log*")):
        os.truncate(log, 2 * ENTRY.itemsize)


@pytest.mark.parametrize("change", [rebalanced, cut])
def test_a_reader_finds_the_rows_of_a_store_that_was_changed_under_it(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(slow_image, side=100)
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path, disk=8_000_000)
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(2))
        store = loader._source.cached.layout.places[0].folder / "alike"
        evict(store, "g0001", [0], PLAIN)
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(2, 4))
        change(store)
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(4, 6))


def of_two_kinds(index: int) -> Any:
    values = np.random.default_rng(index).integers(0, 256, 30_000, np.uint8)
    return values if index % 10 != 7 else 5 * values.tobytes().hex()


def test_what_is_read_beside_damaged_samples_of_another_kind_has_the_numbers_of_before(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(of_two_kinds)
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path, disk=16_000_000)
    pipe.fill(plan, 4, workers=0)
    with pipe.loader(plan, 4, workers=0) as loader:
        stores = loader._source.cached.opened()
        assert (stores.rows >= 0).all()
        folder = loader._source.cached.layout.places[0].folder
        evict(folder / "others", "g0001", [0], PLAIN)
        rebalanced(folder / "others")
        for chunk in (folder / "alike").glob("g*/*.arrow"):
            with chunk.open("r+b") as file:
                file.write(bytes(chunk.stat().st_size))
        found = stores.read(np.arange(COUNT), loader._source._meter)
        texts = {at: value for at, (_, value) in found.items() if isinstance(value, str)}
        assert texts
        assert texts == {at: of_two_kinds(at) for at in texts}


def test_files_that_are_not_ours_are_refused_and_left(tmp_path: Path) -> None:
    (tmp_path / "warmstore-samples").mkdir()
    (tmp_path / "warmstore-samples" / "holiday.jpg").write_bytes(b"mine")
    pipe = ws.Pipeline(range(8)).step(slow_image, side=6)
    with (
        pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [8], folder=tmp_path), 4, workers=0) as loader,
        pytest.warns(RuntimeWarning, match="has files that are not warmstore's"),
    ):
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(1))
    assert (tmp_path / "warmstore-samples" / "holiday.jpg").read_bytes() == b"mine"
