"""torchcachex caches as they lie on the disk: segments, late duplicates, pickles that stay closed."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws


class Bomb:
    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('unpickled')",)


def write(folder: Path, number: int, columns: dict[str, Any]) -> None:
    (folder / "segments").mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    with pa.ipc.new_file(folder / "segments" / f"segment_{number:06d}.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    (folder / "index.pkl").write_bytes(pickle.dumps(Bomb()))
    (folder / "schema.json").write_text(json.dumps({"output_structure": "tensor"}))


def segment(keys: list[int], version: int, dtype: Any = np.float32, shape: Any = (2, 3)) -> dict[str, Any]:
    arrays = [value(key, version, dtype, shape) for key in keys]
    return {
        "key": [f"net:{key}" for key in keys],
        "data": pa.array([array.reshape(-1) for array in arrays], pa.list_(pa.from_numpy_dtype(dtype))),
        "shape": pa.array([list(array.shape) for array in arrays], pa.list_(pa.int64())),
    }


def value(key: int, version: int, dtype: Any = np.float32, shape: Any = (2, 3)) -> Any:
    size = shape(key) if callable(shape) else shape
    return (np.random.default_rng([key, version]).random(size) * 100).astype(dtype)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, np.bool_])
def test_late_duplicates_win(tmp_path: Path, dtype: Any) -> None:
    write(tmp_path / "net", 0, segment([*range(20), 3], 0, dtype))
    write(tmp_path / "net", 1, segment([5, 30, 6, 31], 1, dtype))
    write(tmp_path / "net", 2, segment([31, 0], 2, dtype))
    (tmp_path / "net" / "segments" / "segment_000003.arrow.tmp").write_bytes(b"never finished")
    rows = [(key, 0) for key in range(20) if key not in (0, 3, 5, 6)] + [
        (3, 0),
        (5, 1),
        (30, 1),
        (6, 1),
        (31, 2),
        (0, 2),
    ]
    with ws.convert(tmp_path / "net", tmp_path / "store") as store:
        holds(
            store,
            {"key": [f"net:{key}" for key, _ in rows], "data": np.stack([value(*row, dtype) for row in rows])},
        )
        assert store.fields["data"] == ws.Array(np.dtype(dtype).name, (2, 3))


def test_shapes_that_vary_are_ragged_and_scalars_are_arrays(tmp_path: Path) -> None:
    def shape(key: int) -> tuple[int, ...]:
        return (key % 3, 2)

    write(tmp_path / "net", 0, segment(list(range(20)), 0, np.float32, shape))
    with ws.convert(tmp_path / "net", tmp_path / "store", fields=["data"]) as store:
        assert store.fields["data"] == ws.Ragged("float32", 2)
        holds(store, {"data": [value(key, 0, np.float32, shape) for key in range(20)]})
    write(tmp_path / "loss", 0, segment(list(range(20)), 0, np.float64, ()))
    with ws.convert(tmp_path / "loss", tmp_path / "scalars", fields=["data"]) as store:
        holds(store, {"data": np.array([value(key, 0, np.float64, ()) for key in range(20)])})


def test_every_tensor_is_a_field_and_pickles_stay_closed(tmp_path: Path) -> None:
    one, two = segment(list(range(9)), 0), segment(list(range(9)), 1, np.int64, (4,))
    columns = {"key": one["key"], "h_data": one["data"], "h_shape": one["shape"]}
    columns |= {"logit_s_data": two["data"], "logit_s_shape": two["shape"], "note_blob": [pickle.dumps(Bomb())] * 9}
    write(tmp_path / "net", 0, columns)
    with pytest.raises(ws.UnsupportedType, match=r"'note_blob' holds pickled.*\['key', 'h', 'logit_s'\]"):
        ws.convert(tmp_path / "net", tmp_path / "store")
    with ws.convert(tmp_path / "net", tmp_path / "store", fields=["key", "h", "logit_s"]) as store:
        holds(
            store,
            {
                "key": [f"net:{key}" for key in range(9)],
                "h": np.stack([value(key, 0) for key in range(9)]),
                "logit_s": np.stack([value(key, 1, np.int64, (4,)) for key in range(9)]),
            },
        )


def test_the_folder_of_several_caches_lists_them(tmp_path: Path) -> None:
    write(tmp_path / "root" / "resnet", 0, segment([1], 0))
    write(tmp_path / "root" / "vit", 0, segment([1], 0))
    with pytest.raises(ws.BadSource, match="it holds the caches resnet, vit"):
        ws.convert(tmp_path / "root", tmp_path / "store")
