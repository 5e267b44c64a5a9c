"""ArrayRecord files, as bytes and decoded."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws

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


def test_what_is_no_array_record_is_a_bad_source(tmp_path: Path) -> None:
    (tmp_path / "x.array_record").write_bytes(b"nothing of the kind")
    with pytest.raises(ws.BadSource, match=r"x\.array_record"):
        ws.convert(tmp_path / "x.array_record", tmp_path / "store")
    write(tmp_path / "empty.array_record", [])
    with pytest.raises(ws.BadSource, match="no records"):
        ws.convert(tmp_path / "empty.array_record", tmp_path / "store")
