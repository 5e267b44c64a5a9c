"""`.npy` and `.npz`: every dtype bit for bit, any memory layout, and what cannot be kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import ALL_DTYPES, ML_DTYPES, holds, small_batches

import warmstore as ws
from warmstore.records.format.fields import numpy_dtype


def bits(dtype: str, *shape: int) -> Any:
    """Random bits as values of a dtype."""
    kind = numpy_dtype(dtype)
    size = int(np.prod(shape))
    if dtype == "bool":
        return np.random.default_rng(0).integers(0, 2, shape).astype(bool)
    return np.frombuffer(np.random.default_rng(0).bytes(size * kind.itemsize), kind).reshape(shape)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("shape", [(40,), (40, 3, 2)])
def test_npy_of_any_dtype(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = bits(dtype, *shape)
    np.save(tmp_path / "x.npy", array)
    with ws.convert(tmp_path / "x.npy", tmp_path / "store") as store:
        holds(store, {"data": array})
        assert store.fields["data"] == ws.Array(dtype, shape[1:])
        assert store._snapshot.batches > 1
    assert np.load(ws.export(tmp_path / "store", tmp_path / "back.npy")).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_what_numpy_calls_void_needs_its_name(tmp_path: Path, dtype: str) -> None:
    array = bits(dtype, 20, 3)
    np.save(tmp_path / "x.npy", array.view(f"V{array.dtype.itemsize}"))
    with pytest.raises(ws.UnsupportedType, match="Where it is bfloat16 or float8"):
        ws.convert(tmp_path / "x.npy", tmp_path / "store")
    assert not (tmp_path / "store").exists()
    with ws.convert(tmp_path / "x.npy", tmp_path / "store", fields={"half": ws.Array(dtype, 3)}) as store:
        holds(store, {"half": array})
    ws.export(tmp_path / "store", tmp_path / "back.npy")
    assert np.load(tmp_path / "back.npy").tobytes() == array.tobytes()


@pytest.mark.parametrize("order", ["big endian", "by column", "both"])
def test_foreign_layouts_keep_their_values(tmp_path: Path, order: str) -> None:
    array = bits("float32", 50, 4, 3)
    saved = array.astype(">f4") if order != "by column" else array
    if order != "big endian":
        saved = np.asfortranarray(saved)
    np.save(tmp_path / "x.npy", saved)
    np.savez_compressed(tmp_path / "x.npz", x=saved, y=np.arange(50))
    with ws.convert(tmp_path / "x.npy", tmp_path / "one") as store:
        holds(store, {"data": array})
    with ws.convert(tmp_path / "x.npz", tmp_path / "two") as store:
        holds(store, {"x": array, "y": np.arange(50)})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_a_field_per_array(tmp_path: Path, save: Any) -> None:
    columns = {"image": bits("uint8", 60, 5, 5), "label": np.arange(60), "name": [f"é{n}" for n in range(60)]}
    save(tmp_path / "x.npz", **{name: np.asarray(values) for name, values in columns.items()})
    with ws.convert(tmp_path / "x.npz", tmp_path / "store") as store:
        holds(store, columns)
        assert store.fields["name"] == ws.Text()
    with ws.convert(tmp_path / "x.npz", tmp_path / "some", fields=["label"]) as store:
        holds(store, {"label": np.arange(60)})


def test_a_folder_of_npy_is_a_field_per_file_and_export_makes_one(tmp_path: Path) -> None:
    columns = {"image": bits("uint8", 60, 5, 5), "label": np.arange(60), "none": np.zeros((60, 0))}
    ws.convert(columns, tmp_path / "store").close()
    ws.export(tmp_path / "store", tmp_path / "arrays")
    for name, values in columns.items():
        assert np.load(tmp_path / "arrays" / f"{name}.npy").tobytes() == values.tobytes()
    with ws.convert(tmp_path / "arrays", tmp_path / "again") as store:
        holds(store, columns)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "exploded"), "w")

    np.save(tmp_path / "x.npy", np.array([Bomb()], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([Bomb()], object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ws.UnsupportedType, match="nothing is ever unpickled"):
            ws.convert(tmp_path / name, tmp_path / "store")
        with pytest.raises(ws.WarmstoreError):
            ws.convert(tmp_path / name, tmp_path / "store", fields={"x": ws.Json()})
    assert not (tmp_path / "exploded").exists()


def test_lengths_must_be_equal(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(3), y=np.arange(4), z=np.float32(1))
    with pytest.raises(ws.BadSource, match=r"z is a single float32.*fields="):
        ws.convert(tmp_path / "x.npz", tmp_path / "store")
    with pytest.raises(ws.BadSource, match=r"same number of records; got \{'x': 3, 'y': 4\}"):
        ws.convert(tmp_path / "x.npz", tmp_path / "store", fields=["x", "y"])
    with pytest.raises(ws.BadSource, match=r"same number of records; got \{'x': 3, 'y': 4\}"):
        ws.convert({"x": np.arange(3), "y": [1, 2, 3, 4]}, tmp_path / "store")


def test_a_file_cut_short_is_bad_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(4000)
    with pytest.raises(ws.BadSource, match="cut short"):
        ws.convert(tmp_path / "x.npy", tmp_path / "store")
    (tmp_path / "y.npy").write_bytes(b"not an array")
    with pytest.raises(ws.BadSource, match="not an array in NumPy's format"):
        ws.convert(tmp_path / "y.npy", tmp_path / "store")


def test_arrays_in_memory(tmp_path: Path) -> None:
    import torch

    half = torch.randn(30, 3).to(torch.bfloat16)
    columns = {"half": half, "name": [f"{n}" for n in range(30)], "blob": [bytes(n) for n in range(30)]}
    with ws.convert(columns, tmp_path / "store") as store:
        assert store.fields == {"half": ws.Array("bfloat16", 3), "name": ws.Text(), "blob": ws.Bytes()}
        assert store[:]["half"].tobytes() == half.view(torch.int16).numpy().tobytes()
    with ws.convert(np.arange(5), tmp_path / "one") as store:
        holds(store, {"data": np.arange(5)})


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(1000))
    whole = (tmp_path / "x.npz").read_bytes()
    for broken in (whole[:-30], whole[:60] + bytes([whole[60] ^ 255]) + whole[61:], b"PK no archive"):
        (tmp_path / "x.npz").write_bytes(broken)
        with pytest.raises(ws.BadSource, match=r"x\.npz"):
            ws.convert(tmp_path / "x.npz", tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("names", [["_id", "x"], ["label"], ["_x"]], ids=str)
def test_all_files_of_an_exported_folder_are_fields(tmp_path: Path, names: list[str]) -> None:
    columns = {name: np.arange(5) for name in names}
    ws.convert(columns, tmp_path / "store").close()
    ws.export(tmp_path / "store", tmp_path / "arrays")
    (tmp_path / "arrays" / ".DS_Store.npy").touch()
    with ws.convert(tmp_path / "arrays", tmp_path / "again") as store:
        holds(store, columns)
