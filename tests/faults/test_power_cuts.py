"""Power cuts in stories of stores and caches: some of the states that `make torture` judges, and what it has found."""

import random
from pathlib import Path

import numpy as np
import pytest
from tests.faults import cache_cuts, record_cuts, remote_cuts
from tests.faults.power import Disk, Tree, Write
from tests.faults.power_campaign import Story, campaign, make
from tests.faults.record_cuts import FIELDS, check_store, columns, value
from tests.faults.recording import Recorder, everywhere
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import Damaged, Diverged
from warmstore.pipeline.tiers.tier_folders import disk_folder, is_marked
from warmstore.records.format.generation_log import open_log
from warmstore.records.log.log_entries import ZEROS
from warmstore.storage.files import Files

SMALL = [*record_cuts.STORIES, *(record_cuts.RandomStory(seed) for seed in range(either(1, 40)))]
LARGE = [*cache_cuts.STORIES, *remote_cuts.STORIES]


@pytest.mark.forks
@pytest.mark.parametrize("story", [*SMALL, *thinned(6, LARGE)], ids=lambda story: story.name)
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
    manifest = store._manifest
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


def test_a_pull_that_ended_before_its_note_is_followed_by_the_next(tmp_path: Path) -> None:
    """The store has the rows of the remote, and the remote has gone on to another generation."""
    url = (tmp_path / "remote").as_uri()
    origin = ws.RecordStore.create(tmp_path / "origin", FIELDS)
    copy = tmp_path / "copy"
    for number in range(2):
        origin.append(value(number))
        origin.push(url, progress=False)
        note = (copy / "remote.json").read_bytes() if number else b""
        recorder = Recorder(tmp_path)
        with everywhere(recorder):
            ws.RecordStore.clone(url, copy, progress=False).close()
    # The pull wrote its first note, the log, and its last note; the last one was lost.
    pulls = [one for one in recorder.operations[recorder.start :] if isinstance(one, Write) and b"pulling" in one.data]
    assert len(pulls) == 1
    assert note
    (copy / "remote.json").write_bytes(pulls[0].data)
    origin.rebalance(progress=False)
    origin.append(value(2))
    origin.push(url, progress=False)
    origin.close()
    with ws.RecordStore.clone(url, copy, progress=False) as store:
        assert check_store(store) == [0, 1, 2]
    # Rows that the store has written itself meanwhile are still refused.
    with ws.RecordStore.open(copy, "a") as store:
        store.append(value(9))
    with ws.RecordStore.open(tmp_path / "origin", "a") as origin:
        origin.rebalance(progress=False)
        origin.push(url, progress=False)
    with pytest.raises(Diverged):
        ws.RecordStore.clone(url, copy, progress=False)


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


def test_the_marker_of_a_tier_is_there_before_anything_else(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with everywhere(recorder):
        disk_folder(tmp_path / "plan")
        recorder.promise(0, 0)
    for number, tree in enumerate(every(recorder)):
        make(tree, tmp_path / str(number))
        samples = tmp_path / str(number) / "plan" / "warmstore-samples"
        assert not samples.exists() or is_marked(samples)


@pytest.mark.parametrize("name", ["store.json", "g0001/log"])
def test_a_tier_that_a_power_cut_has_damaged_is_filled_again(tmp_path: Path, name: str) -> None:
    assert cache_cuts.epoch(tmp_path, 12, 0) == 12
    (store,) = tmp_path.glob("plan/warmstore-samples/*/others")
    for path in (store / name, store / "g0001" / (Path(name).name + ".copy")):
        path.write_bytes(bytes(path.stat().st_size) + bytes(640))
    assert cache_cuts.epoch(tmp_path, 12, 1) == 12
    assert cache_cuts.epoch(tmp_path, 12, 2) == 12
