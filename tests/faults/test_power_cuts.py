"""Power cuts in stories of stores and caches: some of the states that `make torture` judges, and what it has found."""

import random
from pathlib import Path

import numpy as np
import pytest
from tests.faults import cache_cuts, record_cuts, remote_cuts
from tests.faults.power import Disk, Tree
from tests.faults.power_campaign import Story, campaign, make
from tests.faults.record_cuts import FIELDS, check_store, columns, value
from tests.faults.recording import Recorder, everywhere
from tests.slow import either

import warmstore as ws
from warmstore.errors import Damaged
from warmstore.records.format.generation_log import open_log
from warmstore.records.log.log_entries import ZEROS
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

SMALL = [*record_cuts.STORIES, *(record_cuts.RandomStory(seed) for seed in range(either(1, 40)))]
LARGE = [*cache_cuts.STORIES, *remote_cuts.STORIES]


@pytest.mark.parametrize("story", [*SMALL, *LARGE], ids=lambda story: story.name)
def test_some_states(story: Story) -> None:
    found = campaign(story, either(5 if story in SMALL else 2, 200), seed=1)
    assert not found.failures, found.failures[0]
    assert found.states
    assert found.operations > 10


def every(recorder: Recorder, count: int = 60) -> list[Tree]:
    """States that a power cut after all operations may leave."""
    disk = Disk()
    for operation in recorder.operations:
        disk.apply(operation)
    return disk.every(1000) or [disk.any(random.Random(seed)) for seed in range(count)]


def test_new_folders_above_a_new_store_are_there(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with everywhere(recorder):
        ws.RecordStore.create(tmp_path / "a" / "b" / "s", FIELDS).close()
        with ws.FeatureCache(tmp_path / "c" / "d", "id", async_write=False) as cache:
            cache.put_batch([1], np.zeros((1, 2), np.float32))
    for tree in every(recorder):
        assert "a/b/s/store.json" in tree
        assert "c/d/id/store.json" in tree


def test_several_entries_of_which_only_the_size_arrived(tmp_path: Path) -> None:
    """An update appends its batches and itself at once. All of one sector may be zeros then, as one alone may be."""
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as store:
        for number in range(5):
            store.append(value(number))
            store.flush()
    log = tmp_path / "s" / "g0001" / "log"
    whole = log.read_bytes()
    assert len(whole) == 6 * 64
    copy = log.with_name("log.copy")
    for zeros in (1, 2):  # the rest of the sector
        log.write_bytes(whole + zeros * ZEROS)
        with ws.RecordStore.open(tmp_path / "s") as reader:
            assert check_store(reader) == list(range(5))
    with ws.RecordStore.open(tmp_path / "s", "a") as store:
        store.append(value(5))
    assert log.read_bytes() == copy.read_bytes()
    assert len(log.read_bytes()) == 8 * 64
    with ws.RecordStore.open(tmp_path / "s") as reader:
        assert check_store(reader) == list(range(6))
    # Zeros that reach into the sector before are no unfinished write.
    whole = log.read_bytes()
    for path in (log, copy):
        path.write_bytes(whole[:-64] + 3 * ZEROS)
    with pytest.raises(Damaged, match="entry 7 of"):
        ws.RecordStore.open(tmp_path / "s")


def test_a_longer_log_is_taken_over_whole_or_not_at_all(tmp_path: Path) -> None:
    """The log of a pull: the entries of several sectors, of which any may have arrived."""
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as store:
        for number in range(20):
            store.append(value(number))
            store.flush()
    log = tmp_path / "s" / "g0001" / "log"
    whole = log.read_bytes()
    for path in (log, log.with_name("log.copy")):
        path.write_bytes(whole[: 3 * 64])
    manifest = store.manifest
    recorder = Recorder(tmp_path)
    with everywhere(recorder), open_log(tmp_path / "s", manifest, Files(), write=True) as opened, opened.locked():
        assert opened.extend_locked(whole)
    disk = Disk()
    rng = random.Random(0)
    for cut, operation in enumerate(recorder.operations):
        disk.apply(operation)
        if cut + 1 < recorder.start:
            continue
        for turn in range(12):
            root = tmp_path / "states" / f"{cut}-{turn}"
            make(disk.any(rng), root)
            with ws.RecordStore.open(root / "s") as reader:
                assert check_store(reader) in (list(range(3)), list(range(20)))


def test_a_log_that_was_restored_is_whole(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend(columns(range(3)))
        store.flush()
        store.extend(columns(range(3, 6)))
    log = tmp_path / "s" / "g0001" / "log"
    log.write_bytes(log.read_bytes()[:64])
    with ws.RecordStore.open(tmp_path / "s", "a") as store:
        assert store.verify().files == ("g0001/log",)
        assert store.verify(repair=True).repaired
        assert store.verify().ok
        assert check_store(store) == list(range(6))
