"""Stores read and written by Ray Data: values, types, order, projection, and tasks that fail or run again."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.remote.servers import BUCKET, S3

import warmstore as ws
import warmstore.ray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'warmstore[ray]'")
pytestmark = pytest.mark.usefixtures("cluster")

FIELDS: dict[str, Any] = {
    "n": ws.Array("int64"),
    "x": ws.Array("float32", (3, 4)),
    "half": ws.Array("bfloat16", (2,)),
    "tokens": ws.Ragged("int32"),
    "boxes": ws.Ragged("float32", 2),
    "blob": ws.Bytes("zstd"),
    "text": ws.Text(),
    "json": ws.Json(),
}
ROWS = 400


def columns(first: int, count: int) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "n": np.array(numbers),
        "x": np.arange(12 * first, 12 * (first + count), dtype=np.float32).reshape(count, 3, 4),
        "half": np.array([[at % 7, 1] for at in numbers], ml_dtypes.bfloat16),
        "tokens": [np.arange(at % 5, dtype=np.int32) for at in numbers],
        "boxes": [np.full((at % 3, 4), at, np.float32) for at in numbers],
        "blob": [b"%d" % at * (at % 4) for at in numbers],
        "text": [f"text {at}" for at in numbers],
        "json": [{"at": at} for at in numbers],
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "s"
    with ws.RecordStore.create(path, FIELDS) as store:
        for first in range(0, ROWS, 100):
            store.extend(columns(first, 100))
            store.seal()
    return path


def check(row: dict[str, Any], at: int) -> None:
    expected = {name: values[0] for name, values in columns(at, 1).items()}
    assert row["n"] == at
    assert (row["x"] == expected["x"]).all()
    assert row["half"].view(ml_dtypes.bfloat16).tolist() == expected["half"].tolist()
    assert list(row["tokens"]) == expected["tokens"].tolist()
    assert row["boxes"].shape == expected["boxes"].shape
    assert (row["boxes"] == expected["boxes"]).all()
    assert (row["blob"], row["text"]) == (expected["blob"], expected["text"])


def test_a_store_is_a_dataset(path: Path) -> None:
    dataset = ws.ray.read(path, tasks=4)
    assert dataset.count() == ROWS
    rows = sorted(dataset.take_all(), key=lambda row: row["n"])
    for at, row in enumerate(rows):
        check(row, at)
    blocks = [batch["n"] for batch in dataset.iter_batches(batch_size=None)]
    assert sorted(block.tolist() for block in blocks) == [list(range(at, at + 100)) for at in range(0, ROWS, 100)]


def test_selected_columns_are_the_only_ones_that_are_read(path: Path) -> None:
    source = ws.ray.StoreDatasource(path)
    some = source.apply_projection({"n": "n", "text": "text"})
    tables = [table for task in some.get_read_tasks(2) for table in task()]
    assert [table.column_names for table in tables] == [["n", "text"]] * len(tables)
    assert some.estimate_inmemory_data_size() < source.estimate_inmemory_data_size() / 4
    dataset = ws.ray.read(path).select_columns(["text"])
    assert dataset.sort("text").take(1) == [{"text": "text 0"}]
    assert "Project" not in dataset.stats()  # Ray pushed it down
    assert ws.ray.read(path, fields=["n"]).sum("n") == sum(range(ROWS))
    with pytest.raises(KeyError):
        ws.ray.read(path, fields=["x", "y"])
    with pytest.raises(TypeError, match="list of names"):
        ws.ray.read(path, fields="text")


def test_a_store_that_lost_records_after_the_plan_is_refused(path: Path, tmp_path: Path) -> None:
    copy = ws.RecordStore.open(path).filter(tmp_path / "copy", range(50), fields=["n"])
    tasks = ws.ray.StoreDatasource(tmp_path / "copy").get_read_tasks(2)
    planned = ws.ray.read(tmp_path / "copy")
    copy.append({"n": 50})
    copy.flush()
    assert planned.count() == len(planned.take_all()) == 50
    assert ws.ray.read(tmp_path / "copy").count() == 51
    assert [row for task in tasks for table in task() for row in table["n"].to_pylist()] == list(range(50))
    copy.delete(3)
    with pytest.raises(ws.PositionError, match="read it again"):
        list(tasks[0]())
    copy.close()


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_a_dataset_is_written_as_one_store_in_order(
    path: Path, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target, options = str(tmp_path / "out"), {}
    if place == "s3":
        server: S3 = request.getfixturevalue("s3_server")
        target = f"s3://{BUCKET}/{tmp_path.name}"
        names = {"AWS_ENDPOINT_URL": "endpoint", "AWS_REGION": "region", "AWS_ALLOW_HTTP": None}
        options = {names.get(name, name.lower()[4:]): value for name, value in server.variables.items()}
        options.pop(None)
    dataset = ws.ray.read(path, tasks=4)
    ws.ray.write(dataset, target, part_size="1KB", remote_options=options, metadata={"by": "ray"})
    with ws.RecordStore.open(target, remote_options=options, cache_dir=tmp_path / "cached") as store:
        assert store.fields == FIELDS
        assert store.metadata == {"by": "ray"}
        assert len(store.chunk_ranges()) > 1
        assert store["n"][:].tolist() == list(range(ROWS))
        for at in (0, 13, ROWS - 1):
            record = store[at]
            assert record["json"] == {"at": at}
            check({**record, "blob": bytes(record["blob"])}, at)
    with pytest.raises(ws.StoreExists):
        ws.ray.write(dataset, target, remote_options=options)
    ws.ray.write(dataset.filter(expr="n < 10"), target, append=True, fields=store.fields, remote_options=options)
    with ws.RecordStore.open(target, remote_options=options, cache_dir=tmp_path / "cached") as store:
        assert store["n"][ROWS:].tolist() == list(range(10))


def test_a_dataset_of_arrays_is_written(tmp_path: Path) -> None:
    dataset = ray.data.range(100).map_batches(
        lambda batch: {
            "x": np.tile(batch["id"][:, None], (1, 5)).astype(np.float32),
            "ragged": np.array([np.ones((at % 3 + 1, 2)) for at in batch["id"]] + [None], object)[:-1],
            "name": [f"{at}" for at in batch["id"]],
        }
    )
    ws.ray.write(dataset, tmp_path / "out")
    with ws.RecordStore.open(tmp_path / "out") as store:
        assert store.fields == {"x": ws.Array("float32", (5,)), "ragged": ws.Ragged("float64", 2), "name": ws.Text()}
        assert store["x"][:, 0].tolist() == list(range(100))
        assert store[4]["ragged"].shape == (2, 2)


def test_a_dataset_without_blocks_is_written(tmp_path: Path) -> None:
    empty, fields = ray.data.from_items([]), {"n": ws.Array("int64")}
    for append in (False, True):
        ws.ray.write(empty, tmp_path / "out", fields=fields, append=append)
        with ws.RecordStore.open(tmp_path / "out") as store:
            assert (store.fields, len(store)) == (fields, 0)
    with pytest.raises(ws.StoreExists):
        ws.ray.write(empty, tmp_path / "out", fields=fields)
    with pytest.raises(ws.SchemaMismatch, match="pass fields="):
        ws.ray.write(empty, tmp_path / "more")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_write_that_fails_leaves_nothing(path: Path, tmp_path: Path) -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["n"].max() >= 300:
            raise RuntimeError("no more")
        return batch

    dataset = ws.ray.read(path, tasks=4, fields=["n"]).map_batches(fail)
    with pytest.raises(Exception, match="no more"):
        ws.ray.write(dataset, tmp_path / "out", part_size=1)
    assert list(tmp_path.iterdir()) == []


def test_a_write_task_that_is_killed_runs_again_and_is_there_once(path: Path, tmp_path: Path) -> None:
    def kill_once(batch: dict[str, Any]) -> dict[str, Any]:
        import os

        try:
            (tmp_path / f"killed-{batch['n'][0]}").touch(exist_ok=False)
        except FileExistsError:
            return batch
        if batch["n"][0] == 100:
            os._exit(1)
        return batch

    (tmp_path / "out").mkdir()
    dataset = ws.ray.read(path, tasks=4, fields=["n"]).map_batches(kill_once)
    ws.ray.write(dataset, tmp_path / "out" / "s", part_size=1)
    with ws.RecordStore.open(tmp_path / "out" / "s") as store:
        assert store["n"][:].tolist() == list(range(ROWS))
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["s"]
