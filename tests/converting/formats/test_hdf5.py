"""HDF5: data sets of one length, groups, strings, arrays of varying length, links and attributes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws

h5py: Any = pytest.importorskip("h5py")


def write(path: Path, first: int = 0, count: int = 20) -> Path:
    numbers = range(first, first + count)
    with h5py.File(path, "w") as file:
        group = file.create_group("group")
        grid = group.create_dataset(
            "grid", data=np.stack([np.full((2, 3), n, ">i2") for n in numbers]), chunks=(3, 2, 3)
        )
        file.create_dataset("text", data=[f"é{n}" for n in numbers])
        file.create_dataset("short", data=np.array([b"%d" % n for n in numbers]))
        ragged = file.create_dataset("ragged", (count,), h5py.vlen_dtype("f4"))
        for at, n in enumerate(numbers):
            ragged[at] = np.full(n % 4, n)
        file.create_dataset("flag", data=np.array([n % 2 == 0 for n in numbers]))
        file.attrs["version"] = 3
        file.attrs["limits"] = np.array([0.5, 1.5])
        file.attrs["nan"] = float("nan")
        group.attrs["names"] = ["a", "é"]
        grid.attrs["unit"] = "mm"
    return path


def expected(numbers: range) -> dict[str, Any]:
    return {
        "flag": np.array([n % 2 == 0 for n in numbers]),
        "group/grid": np.stack([np.full((2, 3), n, np.int16) for n in numbers]),
        "ragged": [np.full(n % 4, n, np.float32) for n in numbers],
        "short": [f"{n}" for n in numbers],
        "text": [f"é{n}" for n in numbers],
    }


def test_every_kind_of_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)
    monkeypatch.setattr("warmstore.converting.formats.hdf5.rows_at_once", lambda width: 7)
    write(tmp_path / "a.h5")
    write(tmp_path / "b.h5", 20, 5)
    with ws.convert(tmp_path / "{a,b}.h5", tmp_path / "store") as store:
        holds(store, expected(range(25)))
        assert store.metadata["attributes"] == {
            "/": {"version": 3, "limits": [0.5, 1.5]},
            "group": {"names": ["a", "é"]},
            "group/grid": {"unit": "mm"},
        }
        assert store.metadata["attributes_left_out"] == ["/@nan"]
    with ws.convert(tmp_path / "a.h5", tmp_path / "some", fields=["text"]) as store:
        holds(store, {"text": expected(range(20))["text"]})


def test_what_no_field_holds_is_named(tmp_path: Path) -> None:
    def refused(error: Any, match: str, **datasets: Any) -> None:
        path = tmp_path / "x.h5"
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(3)
            for name, data in datasets.items():
                file[name] = data
        with pytest.raises(error, match=match):
            ws.convert(path, tmp_path / "store")
        with ws.convert(path, tmp_path / f"{len(list(tmp_path.iterdir()))}", fields=["x"]) as store:
            holds(store, {"x": np.arange(3)})

    refused(ws.BadSource, "'y' is a single value", y=3)
    refused(ws.BadSource, "'y' is a single value", y=h5py.Empty("f4"))
    refused(ws.BadSource, "the same number of records; got .*'y': 4", y=np.arange(4))
    refused(ws.UnsupportedType, "field 'y' has the dtype", y=np.zeros(3, [("a", "i4")]))
    refused(ws.BadSource, "'y' is a link to '/gone'", y=h5py.SoftLink("/gone"))
    refused(ws.BadSource, r"y' is a link to other\.h5'/x'", y=h5py.ExternalLink("other.h5", "/x"))
    refused(ws.UnsupportedType, "strings", y=np.array([["a"]] * 3, object))


def test_a_link_that_is_chosen_is_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(3)
        file["y"] = h5py.SoftLink("/x")
        file["z"] = h5py.SoftLink("/gone")
    with ws.convert(tmp_path / "x.h5", tmp_path / "store", fields=["y"]) as store:
        holds(store, {"y": np.arange(3)})
    with pytest.raises(ws.BadSource, match="'z' is a link to '/gone', which is no data set"):
        ws.convert(tmp_path / "x.h5", tmp_path / "other", fields=["z"])


def test_broken_files_are_named(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.h5").write_bytes(b"no HDF5")
    for name in ("cut", "no"):
        with pytest.raises(ws.BadSource, match=rf"{name}\.h5"):
            ws.convert(tmp_path / f"{name}.h5", tmp_path / "store")
    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["t"] = np.array([b"fine", b"\xff"], "S4")
    with pytest.raises(ws.BadSource, match=r"text\.h5: 't' cannot be read in its rows 0 to 1.*utf-8"):
        ws.convert(tmp_path / "text.h5", tmp_path / "store")
