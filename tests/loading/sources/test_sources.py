"""Whatever samples are handed in, batches hold the right ones, stacked."""

import pickle
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.slow import unforked

import warmstore as ws
from warmstore.records.read.gather import Gatherer

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


def test_all_fields_of_a_batch_are_those_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread updates the store between two fields: some are read packed, and others are not."""
    fields = {"before": ws.Array("int64"), "some": ws.Ragged("int64"), "text": ws.Text(), "after": ws.Array("int64")}

    def values(number: int) -> dict[str, Any]:
        numbers = [number] * COUNT
        return {"before": numbers, "some": [[number]] * COUNT, "text": [str(number)] * COUNT, "after": numbers}

    with ws.RecordStore.create(tmp_path / "s", fields) as store:
        store.extend(values(0))
        store.flush()
        real = Gatherer.gather

        def gather(self: Gatherer, snapshot: Any, name: str, *rows: Any) -> Any:
            found = real(self, snapshot, name, *rows)
            monkeypatch.undo()
            store.update(slice(COUNT), values(1))
            return found

        monkeypatch.setattr(Gatherer, "gather", gather)
        batch = batch_of(store)
        assert store["after"][:].tolist() == [1] * COUNT
    assert list(batch) == list(fields)
    assert batch["before"].tolist() == [number for (number,) in batch["some"]] == batch["after"].tolist() == [0] * 4
    assert batch["text"] == ["0"] * 4


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
    with pytest.raises(ws.BadSource, match="0 has 23 samples, 1 has 7 samples"):
        ws.Loader((store["image"], np.arange(7)), 4)
    with pytest.raises(ws.BadSource, match="'a' has 3 samples, 'b' has 2 samples"):
        ws.Loader({"a": [1, 2, 3], "b": [1, 2]}, 4)
    with pytest.raises(ws.BadSource, match="empty dict"):
        ws.Loader({}, 4)


Pair = namedtuple("Pair", "x y")


def test_a_tuple_of_arrays_aligns_its_sources(store: ws.RecordStore) -> None:
    x, y = np.arange(COUNT * 2).reshape(COUNT, 2), torch.arange(COUNT)
    names = [f"name {at}" for at in range(COUNT)]
    for found in (batch_of((x, y, store["number"], store, names)), next(iter(ws.Loader((x, y, names, x, x), 4)))):
        assert isinstance(found, tuple)
        assert len(found) == 5
        assert found[0].shape == (4, 2)
    found = batch_of((x, y, store["number"], store, names))
    assert found[1].tolist() == found[2].tolist() == found[3]["number"].tolist() == AT.tolist()
    assert found[4] == [names[at] for at in AT]
    pair = batch_of(Pair(x, y))
    assert type(pair) is Pair
    assert pair.y.tolist() == AT.tolist()
    assert ws.Dataset((x, y))[3][0].tolist() == [6, 7]
    assert len(ws.Dataset((x,))) == COUNT


def test_other_tuples_are_sequences_of_samples() -> None:
    assert len(ws.Dataset((1, 2, 3))) == 3
    assert len(ws.Dataset(("a", "b"))) == 2
    assert len(ws.Dataset(({"x": np.arange(3)}, {"x": np.arange(3)}))) == 2
    assert len(ws.Dataset(([1, 2, 3], [4, 5, 6]))) == 2
    assert len(ws.Dataset([np.arange(5), np.arange(5)])) == 2
    assert len(ws.Dataset((np.array(1), np.array(2)))) == 2


def test_values_of_a_tuple_are_collated_by_number(store: ws.RecordStore) -> None:
    loader = ws.Loader((store["points"], store["number"]), 4, collate={"0": "pad"})
    assert next(iter(loader))[0]["values"].shape == (4, 3, 2)


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
    (tmp_path / "empty.npy").touch()
    with pytest.raises(ws.BadSource, match=r"empty\.npy cannot be read"):
        ws.Dataset(tmp_path / "empty.npy")


def test_files_that_are_no_source(tmp_path: Path) -> None:
    with pytest.raises(ws.NoSource, match=r"gone\.npy does not exist"):
        ws.Dataset(tmp_path / "gone.npy")
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(ws.UnknownFormat, match=r"ws\.convert makes a store .* pandas\.read_csv"):
        ws.Dataset(tmp_path / "x.csv")
    (tmp_path / "x.bin").write_text("1,2")
    for path in (tmp_path / "x.bin", tmp_path):
        with pytest.raises(ws.UnknownFormat, match=r"ws\.convert makes a store"):
            ws.Dataset(path)
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


@pytest.mark.parametrize("kind", [list, tuple])
def test_many_at_once_are_as_many_as_asked_for(kind: Any) -> None:
    class Filtered:
        def __len__(self) -> int:
            return 6

        def __getitems__(self, positions: list[int]) -> Any:
            return kind({"x": at} for at in positions if at != 3)

    loader = ws.Loader(Filtered(), 2)
    batches = iter(loader)
    assert next(batches)["x"].tolist() == [0, 1]
    with pytest.raises(ws.BadSource, match=f"Filtered gave a {kind.__name__} of 1 for 2 positions"):
        next(batches)
    assert loader.state_dict()["place"] == 2
    loader = ws.Loader(Filtered(), 2, uneven="full", on_error="skip")
    with pytest.warns(RuntimeWarning, match="left out the bad sample 3"):
        found = [(batch["x"].tolist(), batch["valid"].tolist()) for batch in loader]
    assert found == [([0, 1], [True, True]), ([2, 2], [True, False]), ([4, 5], [True, True])]


def test_what_is_no_source() -> None:
    for value in (3, object(), None):
        with pytest.raises(ws.BadSource, match="is no source of samples"):
            ws.Loader(value, 1)
    for value, advice in (
        (iter([1]), "read (only )?once"),
        ((at for at in range(3)), "read (only )?once"),
        ({1, 2}, "no order"),
        (torch.utils.data.DataLoader([1, 2]), r"loader\.dataset"),
        (ws.Loader([1, 2], 1), r"loader\.dataset"),
        (np.float32(3), "one number"),
        (3, "one number"),
        (pl.DataFrame({"x": [1]}).lazy(), r"collect\(\)"),
    ):
        with pytest.raises(ws.BadSource, match=advice):
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
    with pytest.raises(ws.BadSource, match="forkserver"):
        next(iter(ws.Loader({"x": paths}, 4, processes=1, start_method="fork")))
    with ws.Loader(paths, 4, processes=1, start_method=unforked()) as loader:
        assert [int(record) for batch in loader for record in batch] == list(range(COUNT))
    identity = ws.Dataset(paths).source.identity
    assert identity["kind"] == "array_record"
    assert [(name, count) for name, _, count in identity["files"]] == [(paths[0].name, 9), (paths[1].name, 14)]
    paths[1].write_bytes(b"nonsense")
    with pytest.raises(ws.BadSource, match=r"b\.array_record cannot be read"):
        ws.Dataset(paths)


def test_array_record_files_as_data_sets_name_them(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    paths = [tmp_path / f"mnist-train.array_record-{shard:05d}-of-00002" for shard in range(2)]
    for path in paths:
        writer = module.ArrayRecordWriter(str(path), "group_size:1")
        writer.write(path.name.encode())
        writer.close()
    assert ws.Dataset(paths[1])[0] == paths[1].name.encode()
    found = ws.Dataset([str(paths[1]), str(paths[0])])
    assert [found[at] for at in range(2)] == [paths[1].name.encode(), paths[0].name.encode()]
    with pytest.raises(ws.UnknownFormat, match=r"is a folder.*00000-of-00002.*pass the files.*glob"):
        ws.Dataset(tmp_path)
    missing = tmp_path / "mnist-train.array_record-00002-of-00003"
    for value in (missing, [paths[0], missing], tmp_path / "mnist-train.array_record"):
        with pytest.raises(ws.NoSource, match=r"does not exist.*holds mnist-train.*pass the files"):
            ws.Dataset(value)


def test_text_of_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    columns = {
        "name": [f"n{at}" for at in range(COUNT)],
        "gap": [None if at % 2 else "a" for at in range(COUNT)],
        "raw": [b"x\0\0"] * COUNT,
        "words": [["u", "v"]] * COUNT,
        "deep": [{"text": str(at), "number": at} for at in range(COUNT)],
        "x": [float(at) for at in range(COUNT)],
        "ragged": [[1] * at for at in range(COUNT)],
    }
    data = datasets.Dataset.from_dict(columns)
    loaded = [
        next(iter(ws.Loader(data, 4, to="torch"))),
        next(iter(ws.Loader(data.remove_columns(["deep", "ragged"]), 4, to="jax"))),
        next(iter(torch.utils.data.DataLoader(ws.Dataset(data), 4, collate_fn=ws.collate))),
        next(iter(ws.Loader(data.with_format("torch"), 4, to="torch"))),
    ]
    for batch in loaded:
        assert batch["name"] == ["n0", "n1", "n2", "n3"]
        assert {type(name) for name in batch["name"]} == {str}
        assert batch["gap"] == ["a", None, "a", None]
        assert batch["raw"] == [b"x\0\0"] * 4
        assert batch["words"] == [["u", "v"]] * 4
        assert batch["x"].tolist() == [0, 1, 2, 3]
        assert "float32" in str(batch["x"].dtype)
    assert loaded[0]["deep"]["text"] == ["0", "1", "2", "3"]
    assert isinstance(loaded[0]["deep"]["number"], torch.Tensor)
    assert [len(row) for row in loaded[0]["ragged"]] == [0, 1, 2, 3]


def test_empty_lists_of_hugging_face_data_sets() -> None:
    """Lists of text, of dicts and of lists, as the tags of a sample that has none."""
    datasets = pytest.importorskip("datasets")
    columns = {
        "tags": [["a", "b"], [], ["c"]],
        "boxes": [[], [{"x": 1}], []],
        "deep": [[[1, 2], [3]], [], [[]]],
        "gap": [None, [], ["a"]],
    }
    data = datasets.Dataset.from_dict(columns)
    (batch,) = ws.Loader(data, 3)
    assert {name: batch[name] for name in ("tags", "boxes", "gap")} == {
        name: columns[name] for name in ("tags", "boxes", "gap")
    }
    assert [[list(part) for part in row] for row in batch["deep"]] == columns["deep"]
    assert [one["tags"] for one in ws.Loader(data, 1)] == [[row] for row in columns["tags"]]


def test_arrays_of_hugging_face_data_sets_are_writable() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(
        {"x": list(range(COUNT)), "rows": [[1.0, 2.0]] * COUNT, "r": [[1] * (at + 1) for at in range(COUNT)]}
    )
    for source in (data, data.with_format("numpy"), data.with_format("torch")):
        batch = batch_of(source)
        batch["x"] += 1
        batch["rows"] *= 0
        batch["r"][0][:] = 7
        again = batch_of(source)
        assert again["x"].tolist() == AT.tolist()
        assert again["rows"].tolist() == [[1, 2]] * 4
        assert again["r"][0].tolist() == [1] * 6


def test_several_hugging_face_data_sets_are_refused() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [1, 2]})
    with pytest.raises(ws.BadSource, match=r"holds several\. Pass one of them: 'train', 'test'"):
        ws.Dataset(datasets.DatasetDict({"train": data, "test": data}))


def test_sources_of_no_samples() -> None:
    for source in (
        np.zeros((0, 3)),
        torch.zeros(0),
        [],
        {"x": np.zeros(0)},
        (np.zeros(0), np.zeros(0)),
        pl.DataFrame({"x": []}),
    ):
        assert len(ws.Dataset(source)) == 0
        assert ws.Dataset(source).source.identity is not None


def test_images_of_hugging_face_data_sets_are_decoded() -> None:
    datasets = pytest.importorskip("datasets")
    images = pytest.importorskip("PIL.Image")
    features = datasets.Features({"name": datasets.Value("string"), "image": datasets.Image()})
    pictures = [images.new("RGB", (4, 3), (at, 0, 0)) for at in range(COUNT)]
    data = datasets.Dataset.from_dict({"name": ["a"] * COUNT, "image": pictures}, features=features)
    batch = batch_of(data)
    assert list(batch) == ["name", "image"]
    assert batch["image"].shape == (4, 3, 4, 3)
    assert batch["image"][:, 0, 0, 0].tolist() == AT.tolist()


def test_a_hugging_face_data_set_with_a_transform() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": list(range(COUNT))})
    data.set_transform(lambda rows: {"y": [torch.full((2,), x) for x in rows["x"]], "t": [str(x) for x in rows["x"]]})
    batch = batch_of(data)
    assert batch["y"].tolist() == [[at, at] for at in AT.tolist()]
    assert batch["t"] == [str(at) for at in AT]


def test_a_package_called_datasets_is_not_hugging_faces() -> None:
    parts = {"__module__": "datasets", "__len__": lambda self: COUNT, "__getitem__": lambda self, at: at}
    assert batch_of(type("Dataset", (), parts)()).tolist() == AT.tolist()


def test_data_sets_of_torch() -> None:
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    rows = TensorDataset(torch.arange(COUNT * 2).reshape(COUNT, 2), torch.arange(COUNT))
    found = batch_of(rows)
    assert isinstance(found, tuple)
    assert found[0].shape == (4, 2)
    assert found[1].tolist() == AT.tolist()
    assert ws.Dataset(rows).source.sample_bytes == 24  # one gather a tensor
    assert batch_of(Subset(rows, range(COUNT - 1, -1, -1)))[1].tolist() == (COUNT - 1 - AT).tolist()
    both = ConcatDataset([Subset(rows, [0, 1, 2]), rows])
    assert len(ws.Dataset(both)) == COUNT + 3
    assert batch_of(both)[1].tolist() == [2, 0, 19, 2]
    mixed = ConcatDataset([[np.zeros(2)] * 3, [np.zeros(3)] * COUNT])
    assert [len(row) for row in batch_of(mixed)] == [3, 2, 3, 3]
    absent = ConcatDataset([np.ma.MaskedArray(np.zeros(3), [True, False, False]), np.zeros(COUNT)])
    assert np.ma.getmaskarray(batch_of(absent)).tolist() == [False, True, False, False]


def test_a_data_set_that_derives_from_torchs_is_asked_itself() -> None:
    class Doubled(torch.utils.data.TensorDataset):
        def __getitem__(self, at: int) -> Any:
            return super().__getitem__(at)[0] * 2

    assert batch_of(Doubled(torch.arange(COUNT))).tolist() == (AT * 2).tolist()

    class Both(torch.utils.data.TensorDataset):
        def __getitems__(self, positions: list[int]) -> Any:
            return [self.tensors[0][at] for at in positions]

    class Augmented(Both):  # it inherits `__getitems__`, as a subclass of torch's Subset does
        def __getitem__(self, at: int) -> Any:
            return self.tensors[0][at] * 2

    assert batch_of(Both(torch.arange(COUNT))).tolist() == AT.tolist()
    assert batch_of(Augmented(torch.arange(COUNT))).tolist() == (AT * 2).tolist()


class Wrapped:
    """A data set with other samples than the one whose other attributes it has."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, at: int) -> Any:
        return -self.inner[at]


class Streamed:
    """A stream with the other attributes of a data set."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __iter__(self) -> Any:
        return (-at for at in range(COUNT))


def test_a_data_set_that_wraps_another_is_asked_itself(store: ws.RecordStore) -> None:
    numbers = list(range(COUNT))
    inners = (ws.Subset(numbers, numbers), ws.Dataset(numbers), ws.Pipeline(numbers), store["number"])
    for inner in inners:
        assert batch_of(Wrapped(inner)).tolist() == (-AT).tolist()
        assert ws.Subset(Wrapped(inner), [3])[0] == -3
        pipe = ws.Pipeline(Wrapped(inner))
        with pipe.loader(batch_size=COUNT, workers=0, sampler=ws.Sequential()) as loader:
            assert next(iter(loader)).tolist() == [-at for at in numbers]
        assert next(iter(ws.Loader(Streamed(inner), 3))).tolist() == [0, -1, -2]
    assert ws.Loader(Wrapped(store["number"]), 4).state_dict()["identity"] is None


def test_arrays_of_jax() -> None:
    numbers = pytest.importorskip("jax").numpy.arange(COUNT)
    found = batch_of(numbers)
    assert found.tolist() == AT.tolist()
    found += 1
    assert batch_of({"x": numbers})["x"].tolist() == AT.tolist()
    assert batch_of([numbers[at : at + 1] for at in range(COUNT)]).tolist() == AT[:, None].tolist()


def test_a_closed_store_is_refused(store: ws.RecordStore) -> None:
    store.close()
    for source in (store, store["number"]):
        with pytest.raises(ws.Closed, match="open it again"):
            ws.Dataset(source)


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


def test_negative_positions_count_from_the_end() -> None:
    """As for torch's data sets. Concatenated parts counted from the end of the first part."""
    parts = torch.utils.data.ConcatDataset([list(range(3)), list(range(10, 14))])  # type: ignore[list-item]
    sources = [parts, pa.chunked_array([[0, 1, 2], [10, 11, 12, 13]]), pa.array([0, 1, 2, 10, 11, 12, 13])]
    for source in sources:
        for data in (ws.Dataset(source), ws.Subset(source, np.arange(7)), ws.Loader(source, 2).dataset):
            assert data.__getitems__([-1, -7, 3]).batch.tolist() == [13, 0, 10]
            for outside in (7, -8):
                with pytest.raises(ws.PositionError, match=rf"position {outside} is outside the 7 records"):
                    data.__getitems__([0, outside])
    loader = torch.utils.data.DataLoader(ws.Dataset(parts), 2, sampler=range(-2, 0))  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[12, 13]]
