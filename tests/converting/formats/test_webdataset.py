"""WebDataset tars: samples by basename, decoded by extension, in order, over several tars."""

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, present, small_batches

import warmstore as ws


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def write(path: Path, files: list[tuple[str, bytes]], mode: Any = "w") -> None:
    with tarfile.open(path, mode) as tar:
        folder = tarfile.TarInfo("train")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def sample(number: int) -> list[tuple[str, bytes]]:
    name = f"train/{number:04d}"
    return [
        (f"{name}.jpg", b"\xff\xd8" * number),
        (f"{name}.txt", ("é" * number).encode()),
        (f"{name}.json", json.dumps({"n": number}).encode()),
        (f"{name}.CLS", f"{number}\n".encode()),
        (f"{name}.seg.npy", npy(np.full((2, 3), number, np.float32))),
        (f"{name}.pyd", pickle.dumps({"n": number})),
    ]


def expected(numbers: range) -> dict[str, Any]:
    return {
        "__key__": [f"train/{n:04d}" for n in numbers],
        "jpg": [memoryview(b"\xff\xd8" * n) for n in numbers],
        "txt": ["é" * n for n in numbers],
        "json": [{"n": n} for n in numbers],
        "cls": np.array(numbers),
        "seg.npy": np.stack([np.full((2, 3), n, np.float32) for n in numbers]),
        "pyd": [memoryview(pickle.dumps({"n": n})) for n in numbers],
    }


@pytest.mark.parametrize(("suffix", "mode"), [("tar", "w"), ("tar.gz", "w:gz")])
def test_records_come_in_the_order_of_the_tars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, mode: str
) -> None:
    small_batches(monkeypatch)
    for shard in range(3):
        files = [file for number in range(20 * shard, 20 * shard + 20) for file in sample(number)]
        write(tmp_path / f"train-{shard}.{suffix}", files, mode)
    with ws.convert(tmp_path / f"train-*.{suffix}", tmp_path / "store") as store:
        holds(store, expected(range(60)))
    paths = [tmp_path / f"train-{shard}.{suffix}" for shard in (1, 0)]
    with ws.convert(paths, tmp_path / "two", fields=["cls"]) as store:
        assert store[:]["cls"].tolist() == [*range(20, 40), *range(20)]


def test_a_sample_that_lacks_a_file_has_no_value(tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [*sample(0)[2:], *sample(1)[1:], *sample(2)])
    with ws.convert(tmp_path / "x.tar", tmp_path / "store") as store:
        columns = {name: list(values) for name, values in expected(range(3)).items()}
        columns["jpg"][:2], columns["txt"][0] = [None, None], None
        assert present(store)["jpg"] == [False, False, True]
        holds(store, {name: columns[name] for name in store.fields})
        assert set(store.fields) == set(columns)


def test_a_file_of_a_later_sample_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch, rows=2)
    files = [(f"{n}.cls", b"1") for n in range(5)]
    write(tmp_path / "x.tar", [*files, ("4.txt", b"late")])
    with pytest.raises(ws.SchemaMismatch, match=r"x\.tar: 4 has the field 'txt'.*first 2 records"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")
    with ws.convert(tmp_path / "x.tar", tmp_path / "a", fields={"cls": ws.Array("int64"), "txt": ws.Text()}) as store:
        holds(store, {"cls": np.ones(5, np.int64), "txt": [*[None] * 4, "late"]})
    with ws.convert(tmp_path / "x.tar", tmp_path / "b", fields=["cls"]) as store:
        holds(store, {"cls": np.ones(5, np.int64)})


def test_members_that_are_no_fields_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [("a.cls", b"1"), ("._a.cls", b"x"), ("__meta__", b"x"), ("README", b"x")])
    with pytest.raises(ws.BadSource, match="README has no extension"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")
    with ws.convert(tmp_path / "x.tar", tmp_path / "store", fields=["cls"]) as store:
        holds(store, {"cls": np.ones(1, np.int64)})


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [("a.cls", b"1"), ("b.cls", b"cat")])
    with pytest.raises(ws.BadSource, match=r"b\.cls cannot be decoded.*cat"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")
    with ws.convert(tmp_path / "x.tar", tmp_path / "store", fields={"cls": ws.Text()}) as store:
        holds(store, {"cls": ["1", "cat"]})
    (tmp_path / "bad.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(ws.BadSource, match=r"bad\.tar"):
        ws.convert(tmp_path / "bad.tar", tmp_path / "other")


def test_arrays_of_varying_shape_need_a_ragged_field(tmp_path: Path) -> None:
    arrays = [np.arange(n, dtype=">i4") for n in range(1, 9)]
    write(tmp_path / "x.tar", [(f"{n}.npy", npy(array)) for n, array in enumerate(arrays)])
    with pytest.raises(ws.SchemaMismatch, match=r"ws\.Ragged"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")
    with ws.convert(tmp_path / "x.tar", tmp_path / "b", fields={"npy": ws.Ragged("int32")}) as store:
        holds(store, {"npy": [array.astype(np.int32) for array in arrays]})


def test_pickled_arrays_are_never_unpickled(tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [("a.npy", npy(np.array([{}], object), allow_pickle=True))])
    with pytest.raises(ws.UnsupportedType, match="nothing is ever unpickled"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")


def test_a_tar_cut_short_is_a_bad_source(tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [(f"{n}.jpg", bytes(2000)) for n in range(20)])
    whole = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: 10 * 2560 + 1500])
    with pytest.raises(ws.BadSource, match=r"cut\.tar"):
        ws.convert(tmp_path / "cut.tar", tmp_path / "store")


@pytest.mark.parametrize(
    ("text", "message"), [('{"a": 1, "a": 2}', "'a' occurs twice"), ('{"x": 1e400}', "1e400 is beyond float64")]
)
def test_json_that_would_change_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "x.tar", [("0.json", b'\xef\xbb\xbf{"a": 1}'), ("1.json", text.encode())])
    with pytest.raises(ws.BadSource, match=rf"1\.json cannot be decoded: .*{message}"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")


@pytest.mark.parametrize("values", [["one", 'a "b"\n', None, {"n": 1}], [1, 2.5, None], [True, 1], [None, "x"]])
def test_json_files_are_json_values_whatever_the_first_one_holds(tmp_path: Path, values: list[Any]) -> None:
    write(tmp_path / "x.tar", [(f"{n}.meta.json", json.dumps(value).encode()) for n, value in enumerate(values)])
    with ws.convert(tmp_path / "x.tar", tmp_path / "store") as store:
        assert store.fields["meta.json"] == ws.Json()
        assert [(type(value), value) for value in store["meta.json"][:]] == [(type(value), value) for value in values]


@pytest.mark.parametrize("text", ["word", b"word", ["two", "words"]])
def test_arrays_of_strings_are_refused_by_name(tmp_path: Path, text: Any) -> None:
    write(tmp_path / "x.tar", [("a.npy", npy(np.array(text))), ("a.cls", b"1")])
    with pytest.raises(ws.UnsupportedType, match=r"x\.tar: a\.npy is an array of strings.*fields=\[\.\.\.\]"):
        ws.convert(tmp_path / "x.tar", tmp_path / "store")
    with ws.convert(tmp_path / "x.tar", tmp_path / "store", fields=["cls"]) as store:
        holds(store, {"cls": np.ones(1, np.int64)})
