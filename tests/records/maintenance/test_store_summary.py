"""The summary of a store says the same as the opened store, whatever was done to it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warmstore as ws
from warmstore.errors import Damaged, NotAStore
from warmstore.records.log.entry_kinds import COUNTS
from warmstore.records.log.log_entries import ENTRY
from warmstore.records.maintenance.store_summary import summarize

FROZEN = Path(__file__).parents[2] / "frozen"


def test_the_short_entry_is_where_the_log_has_it() -> None:
    assert COUNTS.size == ENTRY.itemsize
    entry = np.zeros(1, ENTRY)
    entry["chunk"], entry["rows"], entry["kind"] = 7, 8, 9
    assert COUNTS.unpack(entry.tobytes()) == (7, 8, 9)


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["append", "update", "delete", "flush", "seal", "rebalance"]), max_size=12))
def test_records_are_counted_after_any_edits(tmp_path_factory: pytest.TempPathFactory, edits: list[str]) -> None:
    path = tmp_path_factory.mktemp("s") / "store"
    with ws.RecordStore.create(path, {"x": ws.Array("int64")}) as store:
        for edit in edits:
            if edit == "append":
                store.extend({"x": np.arange(5)})
            elif edit == "update" and len(store):
                store.update([0, len(store) - 1, 0], {"x": [1, 2, 3]})
            elif edit == "delete" and len(store):
                store.delete([0, len(store) // 2, 0])
            elif edit in ("flush", "seal", "rebalance"):
                getattr(store, edit)(**({"progress": False} if edit == "rebalance" else {}))
        store.flush()
        assert summarize(path).records == len(store)


def test_small_chunks_that_were_merged(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}):
        pass
    for number in range(40):
        with ws.RecordStore.open(tmp_path / "s", "a") as store:
            store.append({"x": number})
    assert summarize(tmp_path / "s").records == 40


def test_evicted_samples_do_not_count(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "c", max_size="4MB") as cache:
        for first in range(0, 3000, 100):
            cache.put_batch(range(first, first + 100), np.zeros((100, 512), np.float32))
            cache.flush()
        assert cache.stats().evicted > 0
        assert summarize(cache.path).records == len(cache)


def test_evicted_chunks_of_merged_rows_do_not_count(tmp_path: Path) -> None:
    for number in range(20):
        with ws.FeatureCache(tmp_path, "c") as cache:
            cache.put_batch([number], np.zeros((1, 4), np.float32))
    with ws.FeatureCache(tmp_path, "c", max_size="4MB") as cache:
        for first in range(100, 3000, 100):
            cache.put_batch(range(first, first + 100), np.zeros((100, 512 // 128), np.float32))
            cache.flush()
        for first in range(3000, 200_000, 10_000):
            cache.put_batch(range(first, first + 10_000), np.zeros((10_000, 4), np.float32))
            cache.flush()
        assert cache.stats().evicted > 0
        assert summarize(cache.path).records == len(cache)


@pytest.mark.parametrize("folder", sorted(FROZEN.glob("format-*")), ids=lambda folder: folder.name)
def test_stores_of_every_format(folder: Path) -> None:
    stores = [description.parent for description in folder.rglob("store.json")]
    assert stores
    for path in stores:
        try:
            with ws.RecordStore.open(path) as store:
                expected = len(store)
        except Damaged:
            continue
        assert summarize(path).records == expected, path


def test_a_live_writer_is_seen(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}) as store:
        assert not summarize(tmp_path / "s").writing
        store.append({"x": 1})
        store.flush()
        assert summarize(tmp_path / "s").writing
    assert not summarize(tmp_path / "s").writing


def test_what_is_no_store_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        summarize(tmp_path)
    ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}).close()
    description = (tmp_path / "s" / "store.json").read_bytes()
    for content in (b"", b"{}", b"[1]", b"\xff", description[:-20]):
        (tmp_path / "s" / "store.json").write_bytes(content)
        with pytest.raises(Damaged, match=r"store\.json is not readable"):
            summarize(tmp_path / "s")
    (tmp_path / "s" / "store.json").write_bytes(description)
    (tmp_path / "s" / "g0001" / "log").unlink()
    with pytest.raises(Damaged, match="log cannot be read"):
        summarize(tmp_path / "s")


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'numpy', 'pyarrow', 'torch'} & set(sys.modules)"
    code = f"import sys, warmstore.inventory.folder_states; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
