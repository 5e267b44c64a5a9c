"""Stores that were written once and are committed as they are: every later version reads them and goes on with them.

When a test here fails, what reads the stores people have is broken. It is never the files that are to be changed.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.children import in_child, well
from tests.faults.damage import different
from tests.faults.stories import Hasty, Story
from tests.frozen.make import CACHE, FINGERPRINT, HERE, IDS, STORES_OF, opened_cache, outputs, put
from tests.slow import thinned

import warmstore as ws
from warmstore.records.format.manifest import FORMAT, read_manifest
from warmstore.records.log.log_entries import BATCH, COPIED, DELETED, ENTRY, MERGED, SEALED, STAGED, UPDATE, UPDATED
from warmstore.replicate.remote_diff import Local
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

FORMATS = [1, 2, 3, 4]
REMOTES = ["adopted"]
"""Stores that have chunks which came from a remote."""


def _cases(*cases: tuple[int, str]) -> list[Any]:
    """Cases of a store written now too."""
    return [pytest.param(*case, marks=[pytest.mark.remotes] if case[1] in REMOTES else []) for case in cases]


FROZEN = _cases(*((version, name) for version in FORMATS for name in STORES_OF[version]))


def folder_of(version: int) -> Path:
    return HERE / f"format-{version}"


def expected(tmp_path: Path, name: str) -> Story:
    """The same store written now: its records come from the script alone, and are not read from it."""
    (make,) = (stores[name] for stores in STORES_OF.values() if name in stores)
    return make(tmp_path / "now" / name)


@pytest.fixture(autouse=True)
def _now(tmp_path: Path) -> None:
    (tmp_path / "now").mkdir()


def test_every_format_has_frozen_stores() -> None:
    """A new format brings its own, and keeps all of the ones before."""
    assert list(range(1, FORMAT + 1)) == FORMATS, "run `python -m tests.frozen.make` and commit what it writes"
    assert sorted(path.name for path in HERE.glob("format-*")) == sorted(f"format-{version}" for version in FORMATS)
    for version in FORMATS:
        present = {path.name for path in folder_of(version).iterdir()}
        assert present == {*STORES_OF[version], CACHE}


def test_nothing_frozen_names_the_machine() -> None:
    assert not list(HERE.rglob("keys-*"))


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("version", "name"), FROZEN)
def test_read_where_it_lies(tmp_path: Path, version: int, name: str) -> None:
    story = expected(tmp_path, name)
    with closing(ws.RecordStore.open(folder_of(version) / name)) as store:
        assert len(store) == len(story.records)
        assert different(store, story.records) == ("", set())
        assert store.verify(progress=False).ok
        # Their random days and hours are out of range for Arrow.
        fine = [
            name for name, field in store.fields.items() if not getattr(field, "dtype", "").endswith(("[D]", "[h]"))
        ]
        assert store.to_arrow(fields=fine).num_rows == len(story.records)
        assert store.metadata == {"note": "é"}
        assert list(store.fields) == list(story.fields)
        for field in story.fields:
            # Another zstd may train another dictionary.
            mine, now = store.fields[field], story.fields[field]
            assert (mine.dictionary is None) == (now.dictionary is None)
            assert replace(mine, dictionary=None) == replace(now, dictionary=None)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("version", "name"), thinned(4, FROZEN))
def test_gone_on_with(tmp_path: Path, version: int, name: str) -> None:
    """Appended to, edited, closed, opened, rebalanced and appended to again."""
    now = expected(tmp_path, name)
    path = tmp_path / name
    shutil.copytree(folder_of(version) / name, path)
    story = Story(ws.RecordStore.open(path, "a", files=Hasty()), now.value, now.records)
    if name == "evicted":  # no edits before
        story.rebalance()
    story.extend(range(100, 104))
    story.update([0, len(story.records) - 1], [110, 111], *story.fields)
    story.delete([1, 2])
    check(story)
    story.another_writer()
    story.rebalance()
    story.extend(range(120, 121))
    check(story)
    story.close()
    story.store = ws.RecordStore.open(path)
    check(story)
    story.store.close()


def check(story: Story) -> None:
    assert len(story.store) == len(story.records)
    assert different(story.store, story.records) == ("", set())
    assert story.store.verify(progress=False).ok


def test_they_hold_what_they_are_to_show() -> None:
    folder = folder_of(1)
    log = (folder / "killed/g0001/log").read_bytes()
    assert len(log) % 64 == 40
    chunk = (folder / "killed/g0001/000000.arrow").read_bytes()
    assert not chunk.endswith(b"ARROW1")
    assert len(list((folder / "edited/g0001").glob("*.arrow"))) > 2
    assert (folder / "rebalanced/g0002").is_dir()
    assert not (folder / "empty/g0001/log").read_bytes()
    with closing(ws.RecordStore.open(folder / "codecs")) as store:
        assert store.fields["trained"].dictionary
        assert {field.codec for field in store.fields.values()} == {"zstd", "zstd:5", "deflate", "zstd:1", "lz4"}


def test_chunks_are_gone_from_the_second_format() -> None:
    for name, gone in (("evicted", 2), (CACHE, 1)):
        folder = folder_of(2) / name
        assert read_manifest(folder, Files()).format == 2
        with closing(ws.RecordStore.open(folder)) as store:
            chunks = set(store._snapshot.chunk.tolist())
            assert len(chunks) - len(list((folder / "g0001").glob("*.arrow"))) == gone


def test_the_third_format_has_chunks_of_others() -> None:
    for name in ("adopted", CACHE):
        folder = folder_of(3) / name
        assert read_manifest(folder, Files()).format == 3
        assert Local.read(folder, Files()).adopted


def test_the_fourth_format_has_lists_copies_and_merges() -> None:
    for name, kinds in (
        ("merged", {BATCH, SEALED, STAGED, UPDATED, DELETED, COPIED, MERGED}),
        ("staged", {BATCH, SEALED, STAGED, UPDATED, DELETED}),
    ):
        folder = folder_of(4) / name
        assert read_manifest(folder, Files()).format == 4
        present = np.frombuffer((folder / "g0001/log").read_bytes(), ENTRY)["kind"]
        assert set(present.tolist()) == kinds
        for file in ("log", "numbers", "../store.json"):
            path = folder / "g0001" / file
            assert (folder / "g0001" / f"{path.name}.copy").read_bytes() == path.read_bytes()
    with closing(ws.RecordStore.open(folder_of(4) / "merged")) as store:
        assert set(store._session.generation.batches.levels.values()) == {1, 2}


@pytest.mark.parametrize(("version", "name"), FROZEN)
def test_upgraded_by_the_first_writer(tmp_path: Path, version: int, name: str) -> None:
    """It has every copy then, and nothing that was there is written anew but store.json."""
    path = tmp_path / name
    shutil.copytree(folder_of(version) / name, path)
    kept = [*path.rglob("*.arrow"), *path.rglob("log")]
    before = {file: file.read_bytes() for file in kept}
    ws.RecordStore.open(path).close()
    assert read_manifest(path, Files()).format == version, "a reader changes nothing"
    ws.RecordStore.open(path, "a").close()
    assert read_manifest(path, Files()).format == version, "nor does a writer that writes nothing"
    with closing(ws.RecordStore.open(path, "a")) as store, store._editing():
        pass
    assert read_manifest(path, Files()).format == FORMAT
    whole = {file: data[: len(data) // 64 * 64] if file.name == "log" else data for file, data in before.items()}
    assert {file: file.read_bytes()[: len(data)] for file, data in whole.items()} == whole
    (log,) = path.rglob("log")
    assert log.with_name("log.copy").read_bytes() == log.read_bytes()[: len(log.read_bytes()) // 64 * 64]
    assert log.with_name("store.json.copy").read_bytes() == (path / "store.json").read_bytes()
    records = expected(tmp_path, name).records
    for file in (path / "store.json", log):  # and each file may go
        file.unlink()
        with closing(ws.RecordStore.open(path)) as store:
            assert different(store, records) == ("", set())
        with closing(ws.RecordStore.open(path, "a")) as store, store._editing():
            pass
    with closing(ws.RecordStore.open(path)) as store:
        assert store.verify(progress=False).ok


@pytest.mark.parametrize(("version", "name"), _cases((1, "edited"), (2, "evicted"), (3, "adopted"), (4, "merged")))
def test_read_where_nobody_may_write(seen_by_all: Path, tmp_path: Path, version: int, name: str) -> None:
    path = seen_by_all / name
    shutil.copytree(folder_of(version) / name, path)
    for each in (path, *path.rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)
    records = expected(tmp_path, name).records

    def work(say: Callable[[Any], None]) -> None:
        with closing(ws.RecordStore.open(path)) as store:
            say(different(store, records) == ("", set()))
            say(store.verify(progress=False).ok)
        with pytest.raises(ws.ReadOnly):
            ws.RecordStore.open(path, "a")

    assert well(in_child(work, user=65534)) == [True, True]


@pytest.mark.parametrize(("version", "name"), [(1, "edited"), (1, "kinds"), (3, "adopted"), (4, "merged")])
def test_body_hashes_of_every_format_are_compared(tmp_path: Path, version: int, name: str) -> None:
    """One flipped bit in every chunk, where a value lies or not, is noticed."""
    path = tmp_path / name
    shutil.copytree(folder_of(version) / name, path)
    entries = np.frombuffer(next(path.rglob("log")).read_bytes(), ENTRY)
    live = {int(name.stem) for name in path.rglob("*.arrow")}
    batches = [one for one in entries[entries["header_hash"] != 0] if int(one["chunk"]) in live and one["rows"]]
    batches = [one for one in batches if one["kind"] in (BATCH, UPDATE, STAGED, COPIED)]
    assert batches
    for entry in batches:
        file = next(path.rglob(f"{int(entry['chunk']):06d}.arrow"))
        data = bytearray(file.read_bytes())
        at = int(entry["offset"] + entry["header"]) + int(entry["rows"]) % int(entry["body"])
        data[at] ^= 4
        file.write_bytes(data)
        with closing(ws.RecordStore.open(path)) as store:
            assert not store.verify(progress=False).ok
        data[at] ^= 4
        file.write_bytes(data)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)


def equal(one: Any, other: Any) -> bool:
    if isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))
    if isinstance(other, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(other, dict):
        return type(one) is dict and one.keys() == other.keys() and all(equal(one[key], other[key]) for key in other)
    if isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other and type(one) is type(other))


def check_cache(cache: ws.FeatureCache, places: list[int]) -> None:
    values, missing = cache.get_batch([IDS[at] for at in places])
    assert not len(missing)
    assert equal(values, outputs(places))
    assert cache.stats().damaged == 0


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("version", FORMATS)
def test_a_feature_cache(tmp_path: Path, version: int) -> None:
    everything = list(range(len(IDS)))
    with closing(opened_cache(folder_of(version), read_only=True)) as cache:
        check_cache(cache, everything)
        assert cache.get_batch([1, "b"])[1].tolist() == [0, 1]
        cache._bind(FINGERPRINT)
        with pytest.raises(ws.StaleCache, match="weights"):
            cache._bind({**FINGERPRINT, "weights": "other"})
    shutil.copytree(folder_of(version) / CACHE, tmp_path / CACHE)
    with closing(opened_cache(tmp_path)) as cache:
        put(cache, [0])
        cache.put_batch(["new"], outputs([3]))
        check_cache(cache, everything)
    with closing(opened_cache(tmp_path)) as cache:
        check_cache(cache, everything[::-1])
        values, missing = cache.get_batch(["new"])
        assert not len(missing)
        assert equal(values, outputs([3]))
