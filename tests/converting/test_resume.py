"""Killed conversions go on where they stopped: exactly once, in order, and with nothing else."""

import json
import os
import re
import signal
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import warm
from tests.converting.common import holds, small_batches
from tests.slow import thinned

import warmstore as ws
from warmstore.converting import conversion
from warmstore.converting.conversion_draft import draft_of
from warmstore.records.format.manifest import read_manifest, write_manifest
from warmstore.storage.files import Files

ROWS = 200

KILLED = """
import os, signal, sys
import pytest
import warmstore as ws
from tests.converting.common import small_batches
from tests.converting.test_resume import SOURCES
from warmstore.replicate.record_store import RecordStore

name, folder, number, when = sys.argv[1:]
small_batches(pytest.MonkeyPatch())
plain, flushes = RecordStore.flush, 0

def flush(self):
    global flushes
    flushes += 1
    if flushes == int(number) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    plain(self)
    if flushes == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

RecordStore.flush = flush
ws.convert(SOURCES[name](folder), folder + "/store", progress=False)
"""


def records() -> Any:
    return ({"x": n, "t": f"é{n}"} for n in range(ROWS))


def tar(folder: str) -> str:
    path = Path(folder, "x.tar")
    if not path.exists():
        with tarfile.open(path, "w") as made:
            for n in range(ROWS):
                for name, data in ((f"{n:04d}.x.cls", f"{n}".encode()), (f"{n:04d}.t.txt", f"é{n}".encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    made.addfile(member, BytesIO(data))
    return str(path)


def table(folder: str, suffix: str) -> str:
    path = Path(folder, f"x.{suffix}")
    if not path.exists():
        values = pa.table({"x": np.arange(ROWS), "t": [f"é{n}" for n in range(ROWS)]})
        if suffix == "parquet":
            pq.write_table(values, path, row_group_size=30)
        else:
            with pa.ipc.new_stream(path, values.schema) as writer:
                writer.write_table(values, 17)
    return str(path)


def npz(folder: str) -> str:
    path = Path(folder, "x.npz")
    if not path.exists():
        np.savez_compressed(path, x=np.arange(ROWS), t=np.array([f"é{n}" for n in range(ROWS)]))
    return str(path)


def text(folder: str, suffix: str) -> str:
    path = Path(folder, f"x.{suffix}")
    if not path.exists():
        rows = [f'{{"x": {n}, "t": "é{n}"}}' if suffix == "jsonl" else f"{n},é{n}" for n in range(ROWS)]
        path.write_text("\n".join(rows if suffix == "jsonl" else ["x,t", *rows]))
    return str(path)


SOURCES: dict[str, Any] = {
    "csv": lambda folder: text(folder, "csv"),
    "jsonl": lambda folder: text(folder, "jsonl"),
    "iterable": lambda folder: records(),
    "npz": npz,
    "parquet": lambda folder: table(folder, "parquet"),
    "arrow": lambda folder: table(folder, "arrow"),
    "webdataset": tar,
}


@pytest.mark.parametrize("when", thinned(3, ["before", "after"]))
@pytest.mark.parametrize("name", thinned(3, SOURCES))
def test_a_killed_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, when: str) -> None:
    SOURCES[name](str(tmp_path))
    command = [sys.executable, "-c", KILLED, name, str(tmp_path), "4", when]
    done = warm.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "store").exists()
    with ws.RecordStore.open(draft_of(tmp_path / "store")) as store:
        begun, batches, identity = len(store), store._snapshot.batches, store._manifest.id
        assert 0 < begun < ROWS
        assert batches == (3 if when == "before" else 4)
        assert not store.metadata["converted"]["complete"]
    small_batches(monkeypatch)
    names = ("x.cls", "t.txt") if name == "webdataset" else ("x", "t")
    with ws.convert(SOURCES[name](str(tmp_path)), tmp_path / "store") as store:
        assert store._manifest.id == identity
        edges = store._snapshot.first_row.tolist()
        assert begun in edges  # the rows that were there are still the batches they were
        values = store[:]
        assert values[names[0]].tolist() == list(range(ROWS))
        assert values[names[1]] == [f"é{n}" for n in range(ROWS)]
        assert store.metadata["converted"]["complete"]


def test_a_finished_conversion_does_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(50))
    ws.convert(tmp_path / "x.npy", tmp_path / "store").close()
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    monkeypatch.setattr(conversion, "_fill", None)
    with ws.convert(tmp_path / "x.npy", tmp_path / "store") as store:
        holds(store, {"data": np.arange(50)})
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(50))
    np.save(tmp_path / "y.npy", np.arange(50))
    ws.convert(tmp_path / "x.npy", tmp_path / "store").close()
    with pytest.raises(ws.StoreExists, match=r"its source was .*x\.npy.*now it is .*y\.npy"):
        ws.convert(tmp_path / "y.npy", tmp_path / "store")
    with pytest.raises(ws.StoreExists, match="its fields was None, now it is"):
        ws.convert(tmp_path / "x.npy", tmp_path / "store", fields=["z"])
    np.save(tmp_path / "x.npy", np.arange(51))
    with pytest.raises(ws.StoreExists, match="the files of the source changed"):
        ws.convert(tmp_path / "x.npy", tmp_path / "store")
    ws.RecordStore.create(tmp_path / "mine", {"x": ws.Text()}).close()
    with pytest.raises(ws.StoreExists, match="was not converted from anything"):
        ws.convert(tmp_path / "x.npy", tmp_path / "mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ws.StoreExists, match="not empty"):
        ws.convert(tmp_path / "x.npy", tmp_path / "full")


class _Numbers:
    """Records that have an attribute as a `datasets.Dataset` has."""

    _fingerprint = "abc"

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __iter__(self) -> Any:
        return ({"x": n * self.factor} for n in range(3))


OTHERS: dict[str, Any] = {
    "a further key": ([{"a": 1}], [{"a": 1, "b": 2}], "has the fields ['a'], the source ['a', 'b']"),
    "a key less": ([{"a": 1, "b": 2}], [{"a": 1}], "has the fields ['a', 'b'], the source ['a']"),
    "a further array": ({"a": np.arange(3)}, {"a": np.arange(3), "b": np.arange(3)}, "the source ['a', 'b']"),
    "a further column": (pa.table({"a": [1]}), pa.table({"a": [1], "b": [2]}), "the source ['a', 'b']"),
    "other records": (_Numbers(1), _Numbers(2), "field 'x' of its records 0 to 2 differs"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_complete_store_of_other_records_is_refused(tmp_path: Path, case: str) -> None:
    first, other, message = OTHERS[case]
    ws.convert(first, tmp_path / "store").close()
    with pytest.raises(ws.StoreExists, match=re.escape(message)):
        ws.convert(other, tmp_path / "store")
    ws.convert(first, tmp_path / "store").close()


def test_other_metadata_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(50))
    for number, source in enumerate((tmp_path / "x.npy", {"x": np.arange(50)})):
        ws.convert(source, tmp_path / f"{number}", metadata={"v": [1, 2]}).close()
        for same in ({"v": [1, 2]}, {}, None):
            ws.convert(source, tmp_path / f"{number}", metadata=same).close()
        with pytest.raises(ws.StoreExists, match=r"other metadata: 'v' is \[1, 2\], and metadata= has 3"):
            ws.convert(source, tmp_path / f"{number}", metadata={"v": 3})
    with pytest.raises(ws.UnsupportedType):
        ws.convert(tmp_path / "x.npy", tmp_path / "0", metadata={"v": object()})


def test_the_same_files_with_other_partitions_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "year=2024" / "x.parquet"
    source.parent.mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), source)
    ws.convert(f"{tmp_path}/*/x.parquet", tmp_path / "store").close()
    ws.convert(f"{tmp_path}/*/x.parquet", tmp_path / "store").close()
    with pytest.raises(ws.StoreExists, match=r"its partitions was \['year'\], now it is \[\]"):
        ws.convert([source], tmp_path / "store")
    described = tmp_path / "store" / "store.json"
    manifest = read_manifest(tmp_path / "store", Files())
    del manifest.metadata["converted"]["partitions"]  # as earlier releases made them
    write_manifest(tmp_path / "store", manifest, Files())
    assert "partitions" not in described.read_text()
    ws.convert([source], tmp_path / "store").close()


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_files_with_names_that_are_no_text_are_converted(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xff.npy")
    np.save(source, np.arange(5))
    for _ in range(2):
        with ws.convert(source, tmp_path / "store") as store:
            holds(store, {"data": np.arange(5)})


def test_two_conversions_into_one_store_at_a_time_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)

    def records() -> Any:
        for n in range(60):
            if n == 40:
                with pytest.raises(ws.StoreExists, match="another process is converting into"):
                    ws.convert(iter(()), tmp_path / "store", format="iterable")
                said.append(n)
            yield {"x": n}

    said: list[int] = []
    with ws.convert(records(), tmp_path / "store") as store:
        assert len(store) == 60
    assert said == [40]


@pytest.mark.parametrize("number", [100, 199])
def test_rows_of_somebody_else_stop_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    small_batches(monkeypatch)

    def records() -> Any:
        for n in range(200):
            if n == number:
                with ws.RecordStore.open(draft_of(tmp_path / "store"), "a") as other:
                    other.append({"x": -1})
            yield {"x": n}

    with pytest.raises(ws.StoreExists, match="another process appended"):
        ws.convert(records(), tmp_path / "store")


def test_what_was_converted_stands_in_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    with ws.convert(tmp_path / "x.npy", tmp_path / "store", metadata={"mine": 1}) as store:
        assert store.metadata["mine"] == 1
        assert store.metadata["converted"]["source"] == [str(tmp_path / "x.npy")]
        json.dumps(store.metadata)
    with pytest.raises(ValueError, match="'converted'"):
        ws.convert(tmp_path / "x.npy", tmp_path / "other", metadata={"converted": 1})
    monkeypatch.chdir(tmp_path)  # another way to name the same source is the same source
    ws.convert("x.npy", "store").close()
