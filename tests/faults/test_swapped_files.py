"""Whole files that are in order but in another's place: of another store, another generation, another chunk.

They are laid out alike to the byte, so that nothing but the checksums can tell. None may give a value.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import FIELDS, record
from tests.faults.damage import DEEP, files_of, look_at, wrong
from tests.faults.stories import Story

import warmstore as ws
from warmstore.errors import WarmstoreError
from warmstore.records.log.log_entries import ENTRY

TURN = 60
"""Records this far apart have values of the same length, where their numbers have three digits."""
WHOLE_RECORD = {(name, at) for name in FIELDS for at in range(6)}


def story_of(path: Path, first: int = 120) -> Story:
    """Two chunks of three records each; equally laid out whatever `first`."""
    story = Story.create(path, FIELDS, lambda number: record(first + number))
    story.extend(range(3))
    story.another_writer()
    story.extend(range(TURN, TURN + 3))
    return story.close()


def rewritten(story: Story, times: int) -> Story:
    """The store in a later generation, every value replaced by another one of the same length."""
    for turn in range(2, 2 + times):
        story.store = ws.RecordStore.open(story.path, "a")
        story.update(list(range(6)), [turn * TURN + number for number in (*range(3), *range(3))], *FIELDS)
        story.rebalance()
        story.close()
    return story


def put(story: Story, file: str, other: bytes) -> set[tuple[str, int]] | None:
    """Put another file in a file's place and look; return what is lost then, None where the store does not open."""
    path = files_of(story)[file]
    mine = path.read_bytes()
    assert len(mine) == len(other)
    assert mine != other
    scratch = story.path.with_name("scratch")
    look_at(
        path, [("swapped", other)], lambda: wrong(story, [story.entries], depth=DEEP, scratch=scratch), scratch=scratch
    )
    path.write_bytes(other)
    try:
        with ws.RecordStore.open(story.path) as store:
            assert not store._snapshot.unreadable  # its layout is accepted: what is lost, the rows' checksums found
            return {(one.field, at) for one in store.verify().problems for at in one.positions}
    except WarmstoreError:
        return None


# What has a copy is read there; a store.json that is in order is believed, and then nothing else matches.
@pytest.mark.parametrize(
    ("file", "lost"), [("0", range(3)), ("1", range(3, 6)), ("log", ()), ("log.copy", ()), ("store.json", None)]
)
def test_a_file_of_another_store(tmp_path: Path, file: str, lost: Iterable[int] | None) -> None:
    mine, other = story_of(tmp_path / "s"), story_of(tmp_path / "other", 600)
    found = put(mine, file, files_of(other)[file].read_bytes())
    assert found == (None if lost is None else {(name, at) for name in FIELDS for at in lost})


def test_the_chunk_of_a_store_of_the_same_records(tmp_path: Path) -> None:
    """Not even that: nothing says that they are the same."""
    mine, other = story_of(tmp_path / "s"), story_of(tmp_path / "other")
    assert put(mine, "0", files_of(other)["0"].read_bytes()) == {(name, at) for name in FIELDS for at in range(3)}


def test_all_files_of_another_generation_folder(tmp_path: Path) -> None:
    mine, other = story_of(tmp_path / "s"), story_of(tmp_path / "other", 600)
    shutil.rmtree(mine.path / "g0001")
    shutil.copytree(other.path / "g0001", mine.path / "g0001")
    with pytest.raises(ws.Damaged, match="entry 0"):
        ws.RecordStore.open(mine.path)


@pytest.mark.parametrize(("file", "other", "lost"), [("0", "1", range(3)), ("1", "0", range(3, 6))])
def test_another_chunk_of_the_same_store(tmp_path: Path, file: str, other: str, lost: range) -> None:
    story = story_of(tmp_path / "s")
    assert put(story, file, files_of(story)[other].read_bytes()) == {(name, at) for name in FIELDS for at in lost}


def test_two_chunks_of_one_store_exchanged(tmp_path: Path) -> None:
    story = story_of(tmp_path / "s")
    first, second = files_of(story)["0"], files_of(story)["1"]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    assert put(story, "1", data) == WHOLE_RECORD


@pytest.mark.parametrize("file", ["0", "log"])
def test_a_file_of_an_earlier_generation(tmp_path: Path, file: str) -> None:
    story = rewritten(story_of(tmp_path / "s"), 1)
    earlier = files_of(story)[file].read_bytes()
    rewritten(story, 1)
    assert story.generation == "g0003"
    assert put(story, file, earlier) == (WHOLE_RECORD if file == "0" else set())


def test_the_description_of_an_earlier_generation(tmp_path: Path) -> None:
    """It names a folder that is gone; with that one back too, it is the store as it was."""
    story = rewritten(story_of(tmp_path / "s"), 1)
    backup = tmp_path / "backup"
    shutil.copytree(story.path, backup)
    before = list(story.records)
    rewritten(story, 1)
    assert put(story, "store.json", (backup / "store.json").read_bytes()) is None
    shutil.copytree(backup / "g0002", story.path / "g0002")
    assert [one["number"] for one in before] == ws.RecordStore.open(story.path)["number"][:].tolist()


@pytest.mark.parametrize("field", ["number", "text"])
def test_the_checksum_of_an_absent_value_exchanged_for_another(tmp_path: Path, field: str) -> None:
    fields = {"number": ws.Array("int64"), "text": ws.Text()}
    with ws.RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({"number": [7, None], "text": ["one", None]})
    store = ws.RecordStore.open(tmp_path / "s")
    one, absent = store.to_arrow(checksums=True)[f"{field}::xxh3"].combine_chunks().to_numpy()
    (path,) = (tmp_path / "s").rglob("*.arrow")
    data = path.read_bytes()
    sums = one.tobytes() + absent.tobytes()
    assert data.count(sums) == 1
    path.write_bytes(data.replace(sums, absent.tobytes() + one.tobytes()))
    with pytest.raises(ws.Damaged):
        ws.RecordStore.open(tmp_path / "s").gather([0], [field])


def test_two_batches_of_one_chunk_exchanged(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"number": ws.Array("int64")}) as store:
        for number in (1, 2):
            store.extend({"number": [number] * 4})
            store.flush()
    entries = np.fromfile(tmp_path / "s/g0001/log", ENTRY)[:2]
    first, second = (slice(start, start + body) for start, body in zip(*_bodies(entries), strict=True))
    (path,) = (tmp_path / "s").rglob("*.arrow")
    data = bytearray(path.read_bytes())
    data[first], data[second] = data[second], data[first]
    path.write_bytes(data)
    with pytest.raises(ws.Damaged):
        ws.RecordStore.open(tmp_path / "s").gather(slice(None))


def _bodies(entries: Any) -> tuple[list[int], list[int]]:
    """Where the bodies of batches start, and their bytes."""
    return (entries["offset"] + entries["header"]).tolist(), entries["body"].tolist()
