"""Whatever samples are handed in, batches hold the right ones, stacked."""

import pickle
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws

COUNT = 23
AT = np.array([5, 0, 22, 5])


def batch_of(source: Any, **options: Any) -> Any:
    """The samples at AT."""
    return ws.Dataset(source, **options).__getitems__(AT).batch


def test_a_store_is_a_dict_of_its_fields(store: ws.RecordStore) -> None:
    batch = batch_of(store)
    assert list(batch) == ["number", "image", "points", "jpeg", "title"]
    assert batch["number"].tolist() == AT.tolist()
    assert batch["title"] == [f"title {at}" for at in AT]
    assert list(batch_of(store, fields=["title", "number"])) == ["title", "number"]
    assert batch_of(store.path)["number"].tolist() == AT.tolist()
    with pytest.raises(KeyError, match="no field 'nmber'"):
        batch_of(store, fields=["nmber"])


def test_fields_arrays_and_tensors_are_the_batch_itself(store: ws.RecordStore) -> None:
    assert batch_of(store["number"]).tolist() == AT.tolist()
    assert [bytes(value) for value in batch_of(store["jpeg"])] == [bytes([at]) * at for at in AT]
    for source in (np.arange(COUNT), torch.arange(COUNT)):
        found = batch_of(source)
        assert isinstance(found, np.ndarray)
        assert found.tolist() == AT.tolist()
    halves = batch_of(torch.arange(COUNT, dtype=torch.bfloat16))
    assert (halves.dtype.name, halves.astype(int).tolist()) == ("bfloat16", AT.tolist())


def test_a_tensor_may_move_its_memory() -> None:
    tensor = torch.arange(COUNT)
    dataset = ws.Dataset(tensor)
    tensor.share_memory_()  # as sending it to another process does
    tensor[:] += 100
    assert dataset.__getitems__(AT).batch.tolist() == (AT + 100).tolist()
    with pytest.raises(ws.BadSource, match="without dimensions"):
        ws.Dataset(torch.tensor(3))


def test_a_dict_aligns_its_sources(store: ws.RecordStore) -> None:
    batch = batch_of({"x": store["image"], "y": np.arange(COUNT) * 2, "all": store}, fields=["number"])
    assert batch["x"][:, 0, 0].tolist() == AT.tolist()
    assert batch["y"].tolist() == (AT * 2).tolist()
    assert list(batch["all"]) == ["number"]


def test_sources_of_different_lengths_are_refused(store: ws.RecordStore) -> None:
    with pytest.raises(ws.BadSource, match="'x' has 23 samples, 'y' has 7"):
        ws.Loader({"x": store["image"], "y": np.arange(7)}, 4)
    with pytest.raises(ws.BadSource, match="empty dict"):
        ws.Loader({}, 4)


def test_a_npy_file_is_mapped_and_pickled_as_its_path(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(COUNT * 1000).reshape(COUNT, 1000))
    dataset = ws.Dataset(path)
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    assert pickle.loads(data).__getitems__(AT).batch[:, 0].tolist() == (AT * 1000).tolist()
    np.savez(tmp_path / "broken.npz", np.arange(3))
    (tmp_path / "broken.npz").rename(tmp_path / "broken.npy")
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(ws.BadSource, match=r"text\.npy cannot be read"):
        ws.Dataset(tmp_path / "text.npy")


def test_files_that_are_no_source(tmp_path: Path) -> None:
    with pytest.raises(ws.NoSource, match=r"gone\.npy is not there"):
        ws.Dataset(tmp_path / "gone.npy")
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(ws.UnknownFormat, match=r"ws\.convert makes a store"):
        ws.Dataset(tmp_path / "x.csv")
    with pytest.raises(ws.NoSource):
        ws.Dataset([tmp_path / "gone.array_record"])


Point = namedtuple("Point", "x y")


def test_sequences_of_samples_are_stacked() -> None:
    rows = [{"x": np.full(3, at), "y": at, "name": str(at), "odd": np.zeros(at % 3)} for at in range(COUNT)]
    batch = batch_of(rows)
    assert batch["x"].shape == (4, 3)
    assert batch["y"].tolist() == AT.tolist()
    assert batch["name"] == [str(at) for at in AT]
    assert [len(value) for value in batch["odd"]] == (AT % 3).tolist()
    pairs = batch_of([(at, torch.full((2,), at)) for at in range(COUNT)])
    assert isinstance(pairs, tuple)
    assert pairs[0].tolist() == AT.tolist()
    assert pairs[1].shape == (4, 2)
    assert batch_of([True] * COUNT).dtype == bool
    assert batch_of([[at, at] for at in range(COUNT)]).shape == (4, 2)
    assert batch_of(range(COUNT)).tolist() == AT.tolist()


def test_many_at_once_where_a_sequence_offers_it() -> None:
    class Many:
        def __len__(self) -> int:
            return COUNT

        def __getitems__(self, positions: list[int]) -> Any:
            assert positions == AT.tolist()
            return [{"x": at} for at in positions]

    assert batch_of(Many())["x"].tolist() == AT.tolist()


def test_what_is_no_source() -> None:
    for value in (3, object(), iter([1]), None):
        with pytest.raises(ws.BadSource, match="is no source of samples"):
            ws.Loader(value, 1)
    with pytest.raises(ws.BadSource, match="without dimensions"):
        ws.Loader(np.array(3), 1)
    with pytest.raises(ws.BadSource, match="a tensor on meta"):
        ws.Loader(torch.empty(3, device="meta"), 1)


def test_array_record_files(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    paths = [tmp_path / "a.array_record", tmp_path / "b.array_record"]
    for path, numbers in zip(paths, (range(9), range(9, COUNT)), strict=True):
        writer = module.ArrayRecordWriter(str(path), "group_size:1")
        for number in numbers:
            writer.write(str(number).encode())
        writer.close()
    dataset = ws.Dataset(paths)
    assert len(dataset) == COUNT
    assert dataset.__getitems__(AT).batch == [str(at).encode() for at in AT]
    assert pickle.loads(pickle.dumps(dataset))[-1] == b"22"
    assert len(ws.Dataset(paths[0])) == 9
    found = [record for batch in ws.Loader(paths, 4, ws.Shuffle(seed=0), workers=2) for record in batch]
    assert sorted(map(int, found)) == list(range(COUNT))
    paths[1].write_bytes(b"nonsense")
    with pytest.raises(ws.BadSource, match=r"b\.array_record cannot be read"):
        ws.Dataset(paths)


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"x": [[float(at)] * 3 for at in range(COUNT)], "name": [str(at) for at in range(COUNT)]}
    data = datasets.Dataset.from_dict(columns)
    for source in (data, data.with_format("torch")):
        batch = batch_of(source)
        assert batch["x"].shape == (4, 3)
        assert batch["x"][:, 0].tolist() == AT.tolist()
        assert batch["name"] == [str(at) for at in AT]
    assert len(ws.Loader(data, 5)) == 5


def test_a_feature_cache_is_read_through_its_store(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "cache") as cache:
        cache.put_batch([1, 2, 3], torch.arange(6.0).reshape(3, 2))
        cache.flush()
        with pytest.raises(ws.BadSource, match=r"RecordStore\.open\(cache\.path\)"):
            ws.Loader(cache, 2)
        batches = list(ws.Loader(cache.path, 2))
    assert [len(batch["key"]) for batch in batches] == [2, 1]


def test_a_data_set_gives_single_samples_and_survives_a_pickle(store: ws.RecordStore) -> None:
    dataset = pickle.loads(pickle.dumps(ws.Dataset({"x": store["image"], "y": np.arange(COUNT)})))
    assert len(dataset) == COUNT
    assert dataset[-1]["y"] == 22
    assert dataset[3]["x"].shape == (2, 3)
    with pytest.raises(IndexError):
        dataset[COUNT]
    assert "23 samples" in repr(dataset)


def test_samples_look_like_a_list(store: ws.RecordStore) -> None:
    found = store.__getitems__([3, 1])
    assert len(found) == 2
    assert [sample["number"] for sample in found] == [3, 1]
    assert found[-1]["title"] == "title 1"
    with pytest.raises(IndexError):
        found[2]
    assert store["number"].__getitems__([3, 1]) == [3, 1]


def test_absent_values_come_as_none_in_samples(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "gaps", {"x": ws.Array("int64"), "y": ws.Array("int64")}) as store:
        store.extend({"x": [1, None], "y": [3, 4]})
        assert [sample["x"] for sample in store.__getitems__([0, 1])] == [1, None]
