"""Hugging Face data sets, in memory and saved, with classes, images, fixed shapes, shuffles and selections."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, present, small_batches

import warmstore as ws


@pytest.fixture
def datasets() -> Any:
    """Imported only now: other tests fork processes, which are better small."""
    return pytest.importorskip("datasets")


@pytest.fixture
def dataset(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets.disable_progress_bars()
    small_batches(monkeypatch)
    features = datasets.Features(
        {
            "x": datasets.List(datasets.Value("float32"), length=2),
            "grid": datasets.Array2D((2, 3), "int16"),
            "label": datasets.ClassLabel(names=["ant", "bee"]),
            "text": datasets.Value("string"),
            "tokens": datasets.List(datasets.Value("int32")),
            "image": datasets.Image(decode=False),
        }
    )
    numbers = range(40)
    return datasets.Dataset.from_dict(
        {
            "x": [[n, n + 0.5] for n in numbers],
            "grid": [np.full((2, 3), n) for n in numbers],
            "label": [n % 2 for n in numbers],
            "text": [f"é{n}" for n in numbers],
            "tokens": [list(range(n % 5)) for n in numbers],
            "image": [{"bytes": b"\xff\xd8" * n, "path": None} for n in numbers],
        },
        features=features,
    )


def expected(numbers: Any) -> dict[str, Any]:
    return {
        "x": np.array([[n, n + 0.5] for n in numbers], np.float32),
        "grid": np.stack([np.full((2, 3), n, np.int16) for n in numbers]),
        "label": np.array([n % 2 for n in numbers]),
        "text": [f"é{n}" for n in numbers],
        "tokens": [np.arange(n % 5, dtype=np.int32) for n in numbers],
        "image": [memoryview(b"\xff\xd8" * n) for n in numbers],
    }


def test_a_dataset_keeps_its_types_and_classes(dataset: Any, tmp_path: Path) -> None:
    with ws.convert(dataset, tmp_path / "store") as store:
        holds(store, expected(range(40)))
        assert store.metadata["classes"] == {"label": ["ant", "bee"]}


def test_a_saved_dataset_is_a_folder(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    with ws.convert(tmp_path / "saved", tmp_path / "store") as store:
        holds(store, expected(range(40)))


def test_shuffles_and_selections_are_followed(dataset: Any, tmp_path: Path) -> None:
    order = [7, 3, 3, 39, 0, *range(10, 30)]
    with ws.convert(dataset.select(order), tmp_path / "store") as store:
        holds(store, expected(order))
    with pytest.raises(ws.StoreExists, match="made from something else"):
        ws.convert(dataset.select(order[1:]), tmp_path / "store")


def test_an_image_without_bytes_is_read_from_its_path(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8 a file")
    features = datasets.Features({"image": datasets.Image(decode=False)})
    dataset = datasets.Dataset.from_dict({"image": [{"bytes": None, "path": str(tmp_path / "a.jpg")}]}, features)
    with ws.convert(dataset, tmp_path / "store") as store:
        holds(store, {"image": [memoryview(b"\xff\xd8 a file")]})


def test_several_splits_are_not_one_source(datasets: Any, dataset: Any, tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": dataset, "test": dataset})
    with pytest.raises(ws.UnknownFormat, match=r"source\['train'\]"):
        ws.convert(splits, tmp_path / "store")
    splits.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ws.UnknownFormat, match="holds several data sets: test, train"):
        ws.convert(tmp_path / "saved", tmp_path / "store")


def test_what_a_format_shows_is_converted(dataset: Any, tmp_path: Path) -> None:
    wanted = expected(range(40))
    with ws.convert(dataset.with_format("numpy", columns=["text", "x"]), tmp_path / "columns") as store:
        holds(store, {name: wanted[name] for name in ("x", "text")})
    with ws.convert(dataset.with_format("torch", columns=["x"], output_all_columns=True), tmp_path / "all") as store:
        holds(store, wanted)
    dataset.with_format(None, columns=["text"]).save_to_disk(str(tmp_path / "saved"))
    with ws.convert(tmp_path / "saved", tmp_path / "store") as store:
        holds(store, {"text": wanted["text"]})


def test_what_is_computed_on_access_is_refused(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(ws.BadSource, match=r"has a transform .*source\.map"):
        ws.convert(dataset.with_transform(lambda batch: {"x": [0] * len(batch["x"])}), tmp_path / "store")
    with pytest.raises(ws.BadSource, match=r"has the options \{'dtype': .*source\.cast"):
        ws.convert(dataset.with_format("numpy", dtype=np.float16), tmp_path / "store")


def test_nulls_are_absent(datasets: Any, tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "x": datasets.Value("int32"),
            "grid": datasets.Array2D((1, 2), "int16"),
            "image": datasets.Image(decode=False),
            "tokens": datasets.List(datasets.Value("int32")),
        }
    )
    rows = {
        "x": [1, None],
        "grid": [[[1, 2]], None],
        "image": [{"bytes": b"a", "path": None}, None],
        "tokens": [None, [3]],
    }
    with ws.convert(datasets.Dataset.from_dict(rows, features=features), tmp_path / "store") as store:
        assert present(store) == {name: [values[0] is not None, values[1] is not None] for name, values in rows.items()}
        assert store[1]["tokens"].tolist() == [3]
        assert store[0]["grid"].tolist() == [[1, 2]]
