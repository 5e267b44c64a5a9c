"""A store in a notebook: its fields and first records, however large, damaged or closed the store is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.display.reading import cells_of, read_html

import warmstore as ws
from warmstore.errors import RemoteUnavailable
from warmstore.records.read.gather import Gatherer

FIELDS = {
    "image": ws.Array("uint8", (8, 9, 3)), "label": ws.Array("int64"), "vector": ws.Array("float32", (100,)),
    "points": ws.Ragged("float32", 2), "jpeg": ws.Bytes(), "caption": ws.Text("zstd"), "meta": ws.Json(),
}  # fmt: skip


def record(at: int) -> dict[str, Any]:
    return {
        "image": np.full((8, 9, 3), at, np.uint8), "label": at, "vector": np.full(100, at / 4, np.float32),
        "points": np.ones((at, 3), np.float32), "jpeg": b"\x00\x01" * at, "caption": "<i>long</i> " * 30,
        "meta": {"<b>": at},
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> ws.RecordStore:
    store = ws.RecordStore.create(tmp_path / "photos", FIELDS)
    for at in range(7):
        store.append(record(at))
    store.flush()
    return store


def test_shows_the_fields_and_the_first_records(store: ws.RecordStore) -> None:
    html = store._repr_html_()
    cells = cells_of(html)
    for name, kind in (("image", "uint8 [8, 9, 3]"), ("points", "float32 [?, ?]"), ("jpeg", "Bytes"), ("meta", "Json")):
        assert cells[cells.index(name) + 1] == kind
    assert "zstd" in cells
    assert any("7 records" in cell for cell in cells)
    assert "The first 5 records" in cells
    assert read_html(html).tags.count("img") == 5  # thumbnails
    for shown in ("[2, 3] 1 1 1 1 1 1", "0.25 0.25 0.25 … 0.25 0.25 0.25", "4 B 00 01 00 01", '{"<b>": 3}'):
        assert shown in cells
    assert any(cell.startswith("<i>long</i> <i>long</i>") and cell.endswith("…") for cell in cells)
    assert len(html) < 60_000


def test_few_records_are_all_shown_and_none_is_no_error(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")})
    assert "0 records" in cells_of(store._repr_html_())[1]
    store.append({"x": 3})
    assert "All records" in cells_of(store._repr_html_())
    assert any("1 of these records are pending" in cell for cell in cells_of(store._repr_html_()))


def test_absent_values_are_told_from_empty_ones(store: ws.RecordStore, tmp_path: Path) -> None:
    other = ws.RecordStore.create(tmp_path / "s", {name: FIELDS[name] for name in ("label", "caption", "image")})
    other.append({"label": 0, "caption": ""})
    other.append({"caption": None})
    assert cells_of(other._repr_html_()).count("absent") == 4


def test_views_show_their_fields_alone(store: ws.RecordStore) -> None:
    assert "vector" not in cells_of(store[["label", "caption"]]._repr_html_())
    cells = cells_of(store["label"]._repr_html_())
    assert cells[:1] == ["FieldView"]
    assert cells[-10:] == ["0", "0", "1", "1", "2", "2", "3", "3", "4", "4"]  # positions and values


def test_a_closed_store_shows_its_fields(store: ws.RecordStore) -> None:
    store.close()
    cells = cells_of(store._repr_html_())
    assert "closed" in cells[1]
    assert "uint8 [8, 9, 3]" in cells


def test_damage_is_shown_where_it_is(store: ws.RecordStore, tmp_path: Path) -> None:
    store.close()
    (chunk,) = (tmp_path / "photos").glob("g*/*.arrow")
    data = bytearray(chunk.read_bytes())
    at = data.index(record(3)["vector"].tobytes())
    data[at] ^= 1
    chunk.write_bytes(data)
    with ws.RecordStore.open(tmp_path / "photos") as opened:
        cells = cells_of(opened._repr_html_())
    assert cells.count("damaged") == 1
    assert "0.25 0.25 0.25 … 0.25 0.25 0.25" in cells


def test_many_fields_and_long_names_are_cut(tmp_path: Path) -> None:
    names = [f"{at}-" + "n" * 300 for at in range(120)]
    store = ws.RecordStore.create(tmp_path / "s", {name: ws.Text() for name in names})
    for _ in range(6):
        store.append(dict.fromkeys(names, "x" * 100000))
    html = store._repr_html_()
    assert "and 70 more fields" in cells_of(html)
    assert len(html) < 150_000


def test_large_values_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmstore.records.store_html._LARGEST", 4000)
    store = ws.RecordStore.create(tmp_path / "s", {"data": ws.Bytes(), "wide": ws.Array("uint8", (50, 100))})
    for _ in range(2):
        store.append({"data": bytes(4001), "wide": np.zeros((50, 100), np.uint8)})
    store.flush()
    read: list[Any] = []
    monkeypatch.setattr(Gatherer, "gather", lambda *args: read.append(args))
    cells = cells_of(store._repr_html_())
    assert not read
    assert cells.count("Bytes, 4.0 kB") == 2
    assert cells.count("uint8 [50, 100], 5.0 kB") == 2


def test_thumbnails_have_a_bound_together(tmp_path: Path) -> None:
    names = [f"image{at}" for at in range(12)]
    store = ws.RecordStore.create(tmp_path / "s", {name: ws.Array("uint8", (96, 96, 3)) for name in names})
    rng = np.random.default_rng(0)
    store.extend({name: rng.integers(0, 256, (5, 96, 96, 3), np.uint8) for name in names})
    html = store._repr_html_()
    assert 400_000 < len(html) < 700_000
    assert any(cell.startswith("[96, 96, 3] ") for cell in cells_of(html))


def test_a_remote_that_is_away_is_asked_once(store: ws.RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def away(*args: Any, **options: Any) -> Any:
        asked.append(args)
        raise RemoteUnavailable("it does not answer")

    monkeypatch.setattr(type(store), "gather", away)
    cells = cells_of(store._repr_html_())
    assert len(asked) == 1
    assert cells.count("not available") == 1
    assert cells.count("not read") == 34


def test_whatever_fails_is_no_error(store: ws.RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store), "nbytes", property(lambda self: 1 / 0))
    assert store._repr_html_() is None
