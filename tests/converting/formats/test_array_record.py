"""ArrayRecord files, as bytes and decoded."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws
from warmstore.converting.conversion_draft import draft_of
from warmstore.converting.formats import array_record
from warmstore.converting.record_columns import columns_of_records

module: Any = pytest.importorskip("array_record.python.array_record_module")


def write(path: Path, records: list[bytes]) -> None:
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def parsed(data: bytes) -> dict[str, Any]:
    return json.loads(data)  # type: ignore[no-any-return]


def test_records_are_bytes_in_the_order_of_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)
    records = [bytes([n % 256]) * (n % 7) for n in range(300)]
    (tmp_path / "in").mkdir()
    for shard in range(3):
        name = f"train.array_record-{shard:05d}-of-00003"
        write(tmp_path / "in" / name, records[100 * shard : 100 * shard + 100])
    with ws.convert(tmp_path / "in", tmp_path / "store") as store:
        holds(store, {"data": [memoryview(one) for one in records]})
    with ws.convert(tmp_path / "in", tmp_path / "named", fields=["record"]) as store:
        holds(store, {"record": [memoryview(one) for one in records]})


def test_decode_makes_fields(tmp_path: Path) -> None:
    write(tmp_path / "x.array_record", [json.dumps({"n": n, "t": f"{n}"}).encode() for n in range(50)])
    with ws.convert(tmp_path / "x.array_record", tmp_path / "store", decode=parsed) as store:
        assert store.fields == {"n": ws.Array("int64"), "t": ws.Text()}
        assert store[:]["n"].tolist() == list(range(50))
    with pytest.raises(ValueError, match="must be a function"):
        ws.convert(tmp_path / "x.array_record", tmp_path / "other", decode=True)


def numbered(offset: int) -> Callable[[bytes], dict[str, Any]]:
    return lambda data: {"n": data[0] + offset}


def test_another_function_is_another_conversion(tmp_path: Path) -> None:
    source, store = tmp_path / "x.array_record", tmp_path / "store"
    write(source, [bytes([n]) for n in range(50)])
    for _ in range(2):
        with ws.convert(source, store, decode=numbered(1)) as made:
            assert made[:]["n"].tolist() == list(range(1, 51))
    with pytest.raises(ws.StoreExists, match="its decode was"):
        ws.convert(source, store, decode=numbered(2))


def test_a_draft_of_another_function_is_not_resumed(tmp_path: Path) -> None:
    source, store = tmp_path / "x.array_record", tmp_path / "store"
    write(source, [bytes([n]) for n in range(200)])
    calls = []

    def batch(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return columns_of_records(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_record, "columns_of_records", batch)
        with pytest.raises(KeyboardInterrupt):
            ws.convert(source, store, decode=numbered(1))
    with closing(ws.RecordStore.open(draft_of(store))) as draft:
        assert 0 < len(draft) < 200
    with ws.convert(source, store, decode=numbered(2)) as made:
        assert made[:]["n"].tolist() == list(range(2, 202))


def test_a_function_without_an_identity(tmp_path: Path) -> None:
    """Nobody knows whether it is the one that made a store."""
    source, store = tmp_path / "x.array_record", tmp_path / "store"
    write(source, [bytes([n]) for n in range(50)])
    numbers = (number for number in range(50))

    def counted(data: bytes) -> dict[str, Any]:
        return {"n": data[0] + 0 * next(numbers, 0)}

    with ws.convert(source, store, decode=counted) as made:
        assert made[:]["n"].tolist() == list(range(50))
    with pytest.raises(ws.StoreExists, match=r"may hold what another decode= made.*numbers"):
        ws.convert(source, store, decode=counted)


def test_what_is_no_array_record_is_a_bad_source(tmp_path: Path) -> None:
    (tmp_path / "x.array_record").write_bytes(b"nothing of the kind")
    with pytest.raises(ws.BadSource, match=r"x\.array_record"):
        ws.convert(tmp_path / "x.array_record", tmp_path / "store")
    write(tmp_path / "empty.array_record", [])
    with pytest.raises(ws.BadSource, match="no records"):
        ws.convert(tmp_path / "empty.array_record", tmp_path / "store")
