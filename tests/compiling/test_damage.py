"""Stores whose files were cut, emptied, flipped or swapped: a miss or the right bytes, never others, and no error."""

import logging
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.compiling.children import content
from tests.compiling.environments import HERE
from tests.compiling.store.test_artifact_store import taken
from tests.slow import either

from warmstore.compiling.store.artifact_index import Index
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import Damaged, NewerFormat, NoArtifact, TooLarge
from warmstore.storage.files import PLAIN

COUNT = 12


def fill(folder: Path) -> None:
    with ArtifactStore(folder, "32MB") as store:
        for number in range(COUNT):
            one = store.put(f"k{number}", "cpp.source", content(number, 3000), environment=HERE, job="job")
            store.used([one])


def right(store: ArtifactStore) -> set[str]:
    """The keys that are found; their bytes must be right."""
    found = set()
    for number in range(COUNT):
        one = store.find(f"k{number}", "cpp.source", HERE)
        if one is not None:
            try:
                assert store.read(one) == content(number, 3000)
            except (Damaged, NoArtifact):
                assert store.find(f"k{number}", "cpp.source", HERE) is None  # it was dropped
            else:
                found.add(one.key)
    return found


def emptied(data: bytes) -> bytes:
    return b""


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def noise(data: bytes) -> bytes:
    return random.Random(-99).randbytes(len(data))


def longer(data: bytes) -> bytes:
    return data + b"\0"


@pytest.mark.parametrize("damage", [emptied, cut, flipped, noise, longer])
def test_a_damaged_blob_is_a_miss_and_is_made_again(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    fill(tmp_path / "c")
    with ArtifactStore(tmp_path / "c") as store:
        for path in sorted((tmp_path / "c" / "blobs").glob("*/*")):
            before = path.read_bytes()
            path.write_bytes(damage(before))
            number = next(number for number in range(COUNT) if content(number, 3000) == before)
            one = store.find(f"k{number}", "cpp.source", HERE)
            assert one is not None
            with pytest.raises(Damaged, match=f"the artifact 'k{number}' .cpp.source. was damaged and is dropped"):
                store.read(one)
            assert store.find(f"k{number}", "cpp.source", HERE) is None
            assert not path.exists()
            store.put(f"k{number}", "cpp.source", before, environment=HERE)
        assert len(right(store)) == COUNT
        assert store.stats().counters["damaged"] == COUNT
        assert store.verify() == []


@pytest.mark.parametrize("damage", [emptied, flipped])
def test_what_is_stored_over_a_damaged_blob_is_there(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Another program has made the same bytes, and nobody has read those that are damaged."""
    fill(tmp_path / "c")
    with ArtifactStore(tmp_path / "c") as store:
        for path in sorted((tmp_path / "c" / "blobs").glob("*/*")):
            before = path.read_bytes()
            path.write_bytes(damage(before))
            assert store.read(store.put("other", "cpp.source", before, environment=HERE)) == before
        assert len(right(store)) == COUNT
        assert store.verify() == []


def test_verify_finds_what_is_damaged_missing_or_strange(tmp_path: Path) -> None:
    fill(tmp_path / "c")
    first, second, *_ = sorted((tmp_path / "c" / "blobs").glob("*/*"))
    first.write_bytes(b"")
    second.unlink()
    (first.parent / ("0" * 62)).write_bytes(b"x")
    (first.parent / "notes.txt").write_bytes(b"not ours")
    with ArtifactStore(tmp_path / "c") as store:
        said = sorted(store.verify())
        assert len(said) == 3
        assert "1 files that belonged to no artifact were removed" in said[0]
        assert sorted(("damaged" in one, "evicted" in one) for one in said[1:]) == [(False, True), (True, False)]
        assert len(right(store)) == COUNT - 2
        assert store.verify() == []
    assert (first.parent / "notes.txt").exists()


def test_a_connection_to_a_replaced_index_stays_open(tmp_path: Path) -> None:
    """As it closes, SQLite may remove the files of the WAL by their names, with what the new index has in them."""
    fill(tmp_path / "c")
    index = Index(tmp_path / "c", PLAIN)
    before = index.connection()
    index.move_aside()
    index.create()
    assert index.connection() is not before
    assert before.execute("SELECT count(*) FROM artifacts").fetchone() == (COUNT,)
    index.close()


def test_an_index_that_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path / "c")
    (tmp_path / "c" / "index.sqlite").unlink()
    with ArtifactStore(tmp_path / "c", "32MB") as store:
        assert store.all() == []
    assert [record.message for record in caplog.records] == [
        f"the index of the compile cache {tmp_path / 'c'} is missing and was made anew: all is compiled again"
    ]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("damage", [emptied, cut, noise])
def test_a_damaged_index_is_made_anew(
    damage: Callable[[bytes], bytes], live: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`live`: it is damaged under a process that has it open. What the WAL has is not lost with it."""
    fill(tmp_path / "c")
    index = tmp_path / "c" / "index.sqlite"
    open_before = ArtifactStore(tmp_path / "c") if live else None
    index.write_bytes(damage(index.read_bytes()))
    with open_before or ArtifactStore(tmp_path / "c", "32MB") as store:
        right(store)
        store.put("new", "cpp.source", b"x", environment=HERE)
        store.used(store.all())
        assert store.find("new", "cpp.source", HERE) is not None
        assert {path.parent.name + path.name for path in (tmp_path / "c" / "blobs").glob("*/*")} == {
            one.digest for one in store.all()
        }  # what nobody knows of any longer takes no room
    assert caplog.records[0].levelno == logging.WARNING
    assert f"the index of the compile cache {tmp_path / 'c'} is damaged" in caplog.text
    assert (tmp_path / "c" / "index.damaged").exists()
    with ArtifactStore(tmp_path / "c") as again:
        assert again.find("new", "cpp.source", HERE) is not None


def test_most_is_saved_from_an_index_with_one_bad_page(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with ArtifactStore(folder, "32MB") as store:
        for number in range(200):
            store.put(f"k{number}", "cpp.source", content(number, 300), environment=HERE)
    with sqlite3.connect(folder / "index.sqlite") as db:
        page = db.execute(
            "SELECT pageno FROM dbstat WHERE name = 'artifacts' AND pagetype = 'leaf' LIMIT 1 OFFSET 3"
        ).fetchone()[0] if _has_dbstat(db) else 20  # fmt: skip
    data = bytearray((folder / "index.sqlite").read_bytes())
    data[(page - 1) * 4096 : page * 4096] = noise(bytes(4096))
    (folder / "index.sqlite").write_bytes(data)
    with ArtifactStore(folder, "32MB") as store:
        with pytest.MonkeyPatch.context():
            for number in range(200):
                found = store.find(f"k{number}", "cpp.source", HERE)
                assert found is None or store.read(found) == content(number, 300)
        store.put("new", "cpp.source", b"x", environment=HERE)
        assert len(store.all()) > 100
        assert store.stats().counted >= taken(folder)


def _has_dbstat(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT 1 FROM dbstat LIMIT 1")
    except sqlite3.OperationalError:
        return False
    return True


def damaged(folder: Path, index: Callable[[bytes, int], bytes], positions: range) -> None:
    """Damage the index at each position in turn: whatever is found is right, and the store works."""
    fill(folder / "sound")
    sound = (folder / "sound" / "index.sqlite").read_bytes()
    for position in positions:
        if position >= len(sound):
            break
        path = folder / "c"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder / "sound", path)
        (path / "index.sqlite").write_bytes(index(sound, position))
        try:
            with ArtifactStore(path, "32MB") as store:
                right(store)
                store.used(store.all())
                store.put("new", "cpp.source", b"x", environment=HERE)
                assert store.find("new", "cpp.source", HERE) is not None, position
                store.stats()
        except NewerFormat:
            raise
        except TooLarge:  # a claim that was changed may leave no room
            assert b"claims" in sound


def flipped_at(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]


def cut_at(data: bytes, position: int) -> bytes:
    return data[:position]


def test_a_flipped_bit_of_the_index_never_makes_a_wrong_hit(tmp_path: Path) -> None:
    damaged(tmp_path, flipped_at, range(0, 112, either(17, 3)))  # the header
    damaged(tmp_path, flipped_at, range(113, 1 << 20, either(9973, 1999)))


def test_a_cut_index_never_makes_a_wrong_hit(tmp_path: Path) -> None:
    damaged(tmp_path, cut_at, range(0, 128, either(31, 9)))
    damaged(tmp_path, cut_at, range(129, 1 << 20, either(20_011, 4001)))


@pytest.mark.slow
def test_any_flipped_byte_of_the_index(tmp_path: Path) -> None:
    damaged(tmp_path, flipped_at, range(0, 1 << 20, 17))


@pytest.mark.slow
def test_an_index_of_many_lengths(tmp_path: Path) -> None:
    damaged(tmp_path, cut_at, range(0, 1 << 20, 41))


@pytest.mark.slow
def test_a_blob_of_any_length(tmp_path: Path) -> None:
    fill(tmp_path / "c")
    with ArtifactStore(tmp_path / "c") as store:
        first = next(one for one in store.all() if one.key == "k0")
        path = next((tmp_path / "c" / "blobs").glob(f"*/{first.digest[2:]}"))
        whole = path.read_bytes()
        assert whole == content(0, 3000)
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            one = store.find("k0", "cpp.source", HERE)
            assert one is not None
            with pytest.raises(Damaged):
                store.read(one)
            store.put("k0", "cpp.source", whole, environment=HERE)


def test_verify_rebuilds_an_index_whose_parts_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A key that differs between the table and its SQL index: no statement fails, and some rows are not found."""
    fill(tmp_path / "c")
    index = tmp_path / "c" / "index.sqlite"
    data = index.read_bytes()
    assert data.count(b"k2cpp.source") == 2
    index.write_bytes(data.replace(b"k2cpp.source", b"K2cpp.source", 1))
    with ArtifactStore(tmp_path / "c") as store:
        store.verify()
        assert len(right(store)) >= COUNT - 1
    with closing(sqlite3.connect(index)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert f"the index of the compile cache {tmp_path / 'c'} is damaged" in caplog.text


def test_a_key_that_was_changed_finds_nothing(tmp_path: Path) -> None:
    """SQLite sees nothing wrong with it, and leads from it to whole rows of other keys."""
    fill(tmp_path / "c")
    index = tmp_path / "c" / "index.sqlite"
    data = index.read_bytes()
    assert data.count(b"k3cpp.source") >= 2
    index.write_bytes(data.replace(b"k3cpp.source", b"x3cpp.source"))
    with ArtifactStore(tmp_path / "c") as store:
        assert store.find("x3", None, HERE) is None
        assert [one for one, _ in store.below("x3", HERE)] == []
        assert "k3" not in right(store)
        assert len(store.all()) == COUNT - 1


def test_a_swapped_index_of_another_store_finds_nothing_wrong(tmp_path: Path) -> None:
    fill(tmp_path / "c")
    with ArtifactStore(tmp_path / "other") as other:
        other.put("k0", "cpp.source", b"other", environment=HERE)
    (tmp_path / "other" / "index.sqlite").replace(tmp_path / "c" / "index.sqlite")
    with ArtifactStore(tmp_path / "c") as store:
        assert right(store) == set()


def test_a_read_only_store_that_is_damaged_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "c")
    index = tmp_path / "c" / "index.sqlite"
    index.write_bytes(noise(index.read_bytes()))
    monkeypatch.setattr("warmstore.compiling.store.artifact_store._writable", lambda folder: False)
    with ArtifactStore(tmp_path / "c") as store:
        assert store.all() == []
        assert store.find("k0", None, HERE) is None
        assert store.stats().artifacts == 0
    assert index.read_bytes() == noise(index.read_bytes())
