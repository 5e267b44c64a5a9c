"""Reading packed and into the caller's memory: the same values as by an ordinary gather, wherever the rows are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import PositionError, SchemaMismatch
from warmstore.records.read.gather import Gatherer
from warmstore.storage.memory.buffer_pool import LARGE

CODECS = ["raw", "deflate", "zstd", "lz4"]
COUNT = 60


def columns(first: int, last: int) -> dict[str, Any]:
    numbers = range(first, last)
    return {
        "array": np.arange(4 * first, 4 * last, dtype=np.float32).reshape(-1, 4),
        "label": np.arange(first, last),
        "bytes": [bytes([number % 256]) * (37 * number % 101) for number in numbers],
        "large": [bytes([number % 256, 7]) * 3000 for number in numbers],
        "ragged": [np.arange(3 * (number % 5), dtype=np.int16).reshape(3, -1) for number in numbers],
        "text": ["é" * (number % 7) for number in numbers],
        "some": [None if number % 3 == 0 else b"x" * number for number in numbers],
    }


def fields(codec: str) -> dict[str, Any]:
    return {
        "array": ws.Array("float32", (4,), codec),
        "label": ws.Array("int64"),
        "bytes": ws.Bytes(codec),
        "large": ws.Bytes(codec),
        "ragged": ws.Ragged("int16", 2, codec),
        "text": ws.Text(codec),
        "some": ws.Bytes(codec),
    }


@pytest.fixture(params=CODECS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ws.RecordStore:
    """Some records flushed in two batches, some edited, the rest pending."""
    store = ws.RecordStore.create(tmp_path / "s", fields(request.param))
    store.extend(columns(0, 20))
    store.flush()
    store.extend(columns(20, 40))
    store.delete([3, 39])
    store.update([5, 6], columns(100, 102))
    store.extend(columns(40, COUNT))
    return store


INDEXES: list[Any] = [slice(None), [5, 50, 5, -1, 0, 30], [], [7], [55, 56], np.arange(58) % 2 == 0]
NAMES = ["all", "mixed", "none", "one", "last", "mask"]
VARYING = ["bytes", "large", "ragged", "text", "some"]


@pytest.mark.parametrize("index", INDEXES, ids=NAMES)
@pytest.mark.parametrize("pending", [True, False])
def test_packed_values_are_those_of_a_gather(store: ws.RecordStore, index: Any, pending: bool) -> None:
    if not pending:
        store.flush()
    plain, packed = store.gather(index), store.gather(index, packed=True)
    assert (packed["array"] == plain["array"]).all()
    for name in VARYING:
        values = packed[name]
        assert isinstance(values, ws.Packed)
        assert len(values) == len(plain[name])
        assert values.offsets.dtype == np.int64
        assert values.values.ndim == 1
        assert int(values.offsets[-1]) == len(values.values)
        for at, expected in enumerate(plain[name]):
            if expected is None:
                assert values.absent is not None
                assert values.absent[at]
                assert len(values[at]) == 0
            elif name == "ragged":
                assert values[at].dtype == expected.dtype
                assert values[at].shape == expected.shape
                assert (values[at] == expected).all()
            else:
                assert values[at].tobytes() == (expected.encode() if name == "text" else bytes(expected))
        assert (values.absent is None) == all(value is not None for value in plain[name])
    if len(packed["text"]):
        assert (packed["text"][-1] == packed["text"][len(packed["text"]) - 1]).all()
        with pytest.raises(IndexError):
            packed["text"][len(packed["text"])]
    some = store.gather(index, packed=["array", "text"])
    assert {name for name, values in some.items() if isinstance(values, ws.Packed)} == {"text"}
    assert (some["text"].values == packed["text"].values).all()
    with pytest.raises(KeyError, match="packed has 'text'"):
        store.gather(index, ["array"], packed=["text"])


@pytest.mark.parametrize("index", thinned(3, INDEXES), ids=NAMES)
@pytest.mark.parametrize("pending", [True, False])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_reading_into_memory_of_the_caller(store: ws.RecordStore, index: Any, pending: bool, kind: str) -> None:
    if not pending:
        store.flush()
    plain = store.gather(index)
    count = len(plain["label"])
    room = {
        "array": np.full((count, 4), 9, np.float32),
        "label": np.zeros(count, np.int64),
        "bytes": np.zeros(20_000, np.uint8),
        "ragged": np.zeros(5000, np.int16),
    }
    out = {name: torch.from_numpy(array) if kind == "torch" else array for name, array in room.items()}
    found = store.gather(index, packed=True, out=out)
    assert found["array"] is out["array"]
    assert found["label"] is out["label"]
    assert (room["array"] == plain["array"]).all()
    assert (room["label"] == plain["label"]).all()
    for name in ("bytes", "ragged"):
        assert np.shares_memory(found[name].values, room[name]) or not len(found[name].values)
        assert [value.tobytes() for value in found[name]] == [bytes(value) for value in plain[name]]


def test_absent_values_in_memory_of_the_caller(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int32", (2,))})
    store.extend({"x": [[1, 2], None, [3, 4]]})
    for _ in range(2):
        out = np.full((3, 2), 9, np.int32)
        found = store.gather([0, 1, 2], out={"x": out})["x"]
        assert isinstance(found, np.ma.MaskedArray)
        assert found.mask.tolist() == [[False] * 2, [True] * 2, [False] * 2]
        assert out.tolist() == [[1, 2], [0, 0], [3, 4]]
        store.flush()


def test_memory_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", fields("raw"))
    store.extend(columns(0, 4))
    store.flush()
    for name, out, says in [
        ("array", np.zeros((3, 4), np.float32), r"shape \(3, 4\).*shape \(4, 4\)"),
        ("array", np.zeros((4, 4)), "float64"),
        ("array", np.zeros((4, 8), np.float32)[:, ::2], "contiguous"),
        ("array", np.broadcast_to(np.float32(1), (4, 4)), "contiguous"),
        ("array", [[0.0] * 4] * 4, "NumPy array or a tensor"),
        ("array", torch.zeros(4, 4, device="meta"), "tensor on the CPU"),
        ("bytes", np.zeros(5, np.uint8), "room for 5 values; these are"),
        ("ragged", np.zeros(500, np.uint8), "int16"),
        ("bytes", np.zeros((500, 1), np.uint8), "one dimension"),
    ]:
        with pytest.raises(SchemaMismatch, match=says):
            store.gather(slice(None), packed=True, out={name: out})
    with pytest.raises(SchemaMismatch, match="packed=True"):
        store.gather(slice(None), out={"bytes": np.zeros(500, np.uint8)})
    with pytest.raises(KeyError, match="nothing"):
        store.gather(slice(None), out={"nothing": np.zeros(4)})
    with pytest.raises(KeyError, match="label"):
        store.gather(slice(None), ["array"], out={"label": np.zeros(4, np.int64)})
    with pytest.raises(PositionError):
        store.gather([4], packed=True)


def test_a_conjugated_tensor_is_refused(tmp_path: Path) -> None:
    """A copy of it was filled, and it stayed zeros."""
    with ws.RecordStore.create(tmp_path / "s", {"z": ws.Array("complex64"), "x": ws.Array("float32")}) as store:
        store.extend({"z": np.full(2, 1 + 2j, np.complex64), "x": np.ones(2, np.float32)})
        zeros = torch.zeros(2, dtype=torch.complex64)
        with pytest.raises(SchemaMismatch, match="conjugate"):
            store.gather([0, 1], ["z"], out={"z": zeros.conj()})
        negative = torch.imag(torch.zeros(1, dtype=torch.complex64).conj())
        assert negative.is_neg()
        with pytest.raises(SchemaMismatch, match="conjugate"):
            store.gather([0], ["x"], out={"x": negative})
        assert store.gather([0, 1], ["z"], out={"z": zeros})["z"].tolist() == zeros.tolist() == [1 + 2j] * 2


def test_a_batch_that_is_kept_is_never_written_again(tmp_path: Path) -> None:
    """Large results share recycled memory with none that the caller still has."""
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (1024,)), "y": ws.Bytes("zstd")})
    rows = np.arange(512 * 1024).reshape(512, 1024)
    store.extend({"x": rows, "y": [row.tobytes() for row in rows]})
    store.flush()
    order = np.random.default_rng(0).permutation(512)
    batches = [(part, store.gather(part), store.gather(part, packed=True)) for part in order.reshape(2, 256)]
    assert batches[0][1]["x"].nbytes >= LARGE
    for _ in range(3):
        store.gather(order[:256])
    for part, plain, packed in batches:
        assert (plain["x"] == rows[part]).all()
        assert (packed["x"] == rows[part]).all()
        assert [bytes(value) for value in plain["y"]] == [rows[at].tobytes() for at in part]
        assert packed["y"].values.tobytes() == rows[part].tobytes()


@pytest.mark.parametrize("threads", [1, 3, None])
def test_writer_threads_change_nothing_that_is_read(tmp_path: Path, threads: int | None) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Bytes("zstd")}, writer_threads=threads) as store:
        values = [np.random.default_rng(number).integers(0, 9, 5000, np.uint8).tobytes() for number in range(100)]
        store.extend({"x": values})
    with ws.RecordStore.open(tmp_path / "s", "a", writer_threads=threads) as store:
        store.extend({"x": values})
        assert [bytes(value) for value in store["x"][:]] == values * 2


@pytest.mark.parametrize("threads", [0, -1, True, 1.5])
def test_no_writer_threads_are_refused(tmp_path: Path, threads: Any) -> None:
    with pytest.raises(ValueError, match="writer_threads is"):
        ws.RecordStore.create(tmp_path / "s", {"x": ws.Bytes()}, writer_threads=threads)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("change", ["delete", "update", "rebalance"])
@pytest.mark.parametrize("options", [{}, {"packed": True}, {"out": True}])
def test_all_fields_are_those_of_one_moment(
    change: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread refreshes the store between two fields: position 0 is another record, the last one is gone."""
    fields = {"one": ws.Array("int64"), "text": ws.Text(), "two": ws.Array("int64")}
    with ws.RecordStore.create(tmp_path / "s", fields) as writer, ws.RecordStore.open(tmp_path / "s") as reader:
        writer.extend({"one": np.arange(5), "text": [*"01234"], "two": np.arange(5)})
        writer.flush()
        reader.refresh()
        real, fields_read = Gatherer.gather, []

        def gather(self: Gatherer, snapshot: Any, name: str, *rows: Any) -> Any:
            found = real(self, snapshot, name, *rows)
            fields_read.append(name)
            if len(fields_read) == 1:
                monkeypatch.undo()
                if change == "update":
                    writer.update([0, 4], {"one": [7, 8], "text": ["7", "8"], "two": [7, 8]})
                else:
                    writer.delete([0, 1])
                if change == "rebalance":
                    writer.rebalance(progress=False)
                reader.refresh()
            return found

        monkeypatch.setattr(Gatherer, "gather", gather)
        given = {"out": {"one": np.empty(5, np.int64)}} if "out" in options else options
        found = reader.gather(slice(None), **given)
        assert fields_read == ["one"]
        assert found["one"].tolist() == found["two"].tolist() == [0, 1, 2, 3, 4]
        if "packed" in options:
            assert bytes(found["text"].values) == b"01234"
        else:
            assert found["text"] == [*"01234"]
        assert reader["one"][:].tolist() == ([7, 1, 2, 3, 8] if change == "update" else [4, 3, 2])
