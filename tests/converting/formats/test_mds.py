"""MosaicML's MDS, written here as its format is described."""

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard
from tests.converting.common import holds, small_batches

import warmstore as ws

DTYPES = {"uint8": 8, "int16": 17, "float32": 34, "int64": 65, "float64": 66}


def ndarray(array: np.ndarray[Any, Any], encoding: str) -> bytes:
    parts = encoding.split(":")[1:]
    head = b"" if parts else bytes([DTYPES[array.dtype.name]])
    if len(parts) < 2:
        width = 0 if max(array.shape) < 256 else 1
        head += bytes([array.ndim << 2 | width]) + np.array(array.shape, ("u1", "<u2")[width]).tobytes()
    return head + array.tobytes()


def encoded(encoding: str, value: Any) -> bytes:
    if encoding.startswith("ndarray"):
        return ndarray(value, encoding)
    if encoding == "json":
        return json.dumps(value).encode()
    if encoding.startswith("str"):
        return str(value).encode()
    if encoding == "int":
        return np.int64(value).tobytes()
    return value if isinstance(value, bytes) else np.dtype(encoding).type(value).tobytes()


def fixed_size(encoding: str) -> int | None:
    parts = encoding.split(":")
    if len(parts) == 3:
        return int(np.prod([int(size) for size in parts[2].split(",")])) * np.dtype(parts[1]).itemsize
    variable = encoding.startswith(("ndarray", "str")) or encoding in ("json", "bytes", "jpeg", "png", "pkl")
    return None if variable else 8 if encoding == "int" else np.dtype(encoding).itemsize


def write(
    folder: Path,
    columns: dict[str, str],
    shards: list[list[dict[str, Any]]],
    compression: str | None = None,
    **more: Any,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    entries = []
    for number, samples in enumerate(shards):
        bodies = []
        for sample in samples:
            parts = [encoded(columns[name], sample[name]) for name in names]
            sizes = [len(part) for part, name in zip(parts, names, strict=True) if fixed_size(columns[name]) is None]
            bodies.append(np.array(sizes, "<u4").tobytes() + b"".join(parts))
        config = b'{"what": "streaming keeps its settings here"}'
        start = 4 + 4 * (len(bodies) + 1) + len(config)
        edges = start + np.cumsum([0, *map(len, bodies)])
        raw = np.array([len(bodies), *edges], "<u4").tobytes() + config + b"".join(bodies)
        name = f"shard.{number:05d}.mds"
        packed = {"zstd:7": zstandard.compress, "gz": gzip.compress}.get(compression or "", lambda data: data)(raw)
        stored = name + (f".{(compression or '').partition(':')[0]}" if compression else "")
        (folder / stored).write_bytes(packed)
        hashes = {"sha1": hashlib.sha1(raw).hexdigest(), "xxh64": xxhash.xxh64(raw).hexdigest()}
        zipped = {"basename": stored, "bytes": len(packed), "hashes": {"md5": hashlib.md5(packed).hexdigest()}}
        entries.append(
            {
                "format": "mds",
                "version": 2,
                "compression": compression,
                "hashes": [],
                "size_limit": 1 << 26,
                "column_names": names,
                "column_encodings": [columns[name] for name in names],
                "column_sizes": [fixed_size(columns[name]) for name in names],
                "raw_data": {"basename": name, "bytes": len(raw), "hashes": hashes},
                "zip_data": zipped if compression else None,
                "samples": len(samples),
                **more,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return folder


COLUMNS = {
    "any": "ndarray",
    "blob": "bytes",
    "class": "int",
    "fixed": "ndarray:int16:2,3",
    "half": "float32",
    "json": "json",
    "text": "str",
    "tokens": "ndarray:int64",
    "wide": "ndarray:uint8",
}


def sample(n: int) -> dict[str, Any]:
    return {
        "any": np.full((2, 2), n, np.float64),
        "blob": bytes(n),
        "class": -n,
        "fixed": np.full((2, 3), n, np.int16),
        "half": n + 0.5,
        "json": {"n": [n, None]},
        "text": f"é{n}",
        "tokens": np.arange(n + 1),
        "wide": np.full(300, n, np.uint8),
    }


@pytest.mark.parametrize("compression", [None, "zstd:7", "gz"])
def test_every_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None) -> None:
    small_batches(monkeypatch)
    shards = [[sample(n) for n in range(12)], [sample(n) for n in range(12, 20)]]
    with ws.convert(write(tmp_path / "in", COLUMNS, shards, compression), tmp_path / "store") as store:
        assert store.fields["tokens"] == ws.Ragged("int64")
        assert store.fields["any"] == ws.Array("float64", (2, 2))
        holds(
            store,
            {
                "any": np.stack([np.full((2, 2), n, np.float64) for n in range(20)]),
                "blob": [bytes(n) for n in range(20)],
                "class": -np.arange(20),
                "fixed": np.stack([np.full((2, 3), n, np.int16) for n in range(20)]),
                "half": np.arange(20, dtype=np.float32) + np.float32(0.5),
                "json": [{"n": [n, None]} for n in range(20)],
                "text": [f"é{n}" for n in range(20)],
                "tokens": [np.arange(n + 1) for n in range(20)],
                "wide": np.stack([np.full(300, n, np.uint8) for n in range(20)]),
            },
        )


def test_images_are_files_or_pixels(tmp_path: Path) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    files = []
    for n in range(3):
        file = io.BytesIO()
        image.fromarray(np.full((4, 5 + n % 2, 3), n, np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    folder = write(tmp_path / "in", {"image": "png"}, [[{"image": data} for data in files]])
    with ws.convert(folder, tmp_path / "files") as store:
        holds(store, {"image": files})
    with ws.convert(folder, tmp_path / "pixels", decode=True) as store:
        assert store.fields["image"] == ws.Ragged("uint8", 3)
        holds(store, {"image": [np.full((4, 5 + n % 2, 3), n, np.uint8) for n in range(3)]})
    broken = write(tmp_path / "broken", {"image": "png"}, [[{"image": files[0]}, {"image": files[1][:40]}]])
    with pytest.raises(ws.BadSource, match=r"shard\.00000\.mds: sample 1, 'image'"):
        ws.convert(broken, tmp_path / "store", decode=True)


def test_pickles_and_unknown_encodings_are_refused(tmp_path: Path) -> None:
    for encoding, match in (("pkl", "nothing is ever unpickled"), ("pil", "which is not known")):
        folder = tmp_path / encoding
        write(folder, {"x": "bytes", "y": "int"}, [[{"x": b"any", "y": 1}]])
        index = (folder / "index.json").read_text().replace('"bytes", "int"', f'"{encoding}", "int"')
        (folder / "index.json").write_text(index)
        with pytest.raises(ws.UnsupportedType, match=f"column 'x' has the encoding '{encoding}', .*{match}"):
            ws.convert(folder, tmp_path / "store")
        with ws.convert(folder, tmp_path / f"{encoding}.store", fields=["y"]) as store:
            holds(store, {"y": np.array([1])})


@pytest.mark.parametrize("compression", [None, "zstd:7"])
def test_no_flipped_byte_becomes_a_value(tmp_path: Path, compression: str | None) -> None:
    folder = write(tmp_path / "in", COLUMNS, [[sample(n) for n in range(3)]], compression)
    shard = next(folder.glob("shard*"))
    whole = shard.read_bytes()
    for at in range(0, len(whole), 37):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ws.BadSource, match=r"shard\.00000\.mds"):
            ws.convert(folder, tmp_path / "store")
    shard.write_bytes(whole[:-1])
    with pytest.raises(ws.BadSource, match="bytes where the index says"):
        ws.convert(folder, tmp_path / "store")
    shard.unlink()
    with pytest.raises(ws.NoSource, match="names it as a shard"):
        ws.convert(folder, tmp_path / "store")


def test_shards_without_hashes_are_read_within_their_bounds(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"x": "str", "y": "int"}, [[{"x": "a", "y": 1}, {"x": "b", "y": 2}]])
    index = json.loads((folder / "index.json").read_text())
    for entry in index["shards"]:
        entry["raw_data"] = {"basename": entry["raw_data"]["basename"]}
    (folder / "index.json").write_text(json.dumps(index))
    shard = next(folder.glob("shard*"))
    whole = shard.read_bytes()
    for broken in (b"", whole[:10], whole[:-1], b"\x03" + whole[1:], whole[:8] + b"\xff" + whole[9:]):
        shard.write_bytes(broken)
        with pytest.raises(ws.BadSource, match=r"shard\.00000\.mds"):
            ws.convert(folder, tmp_path / "store")


def test_json_that_would_change_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "encoded", lambda encoding, value: value)
    folder = write(tmp_path / "in", {"j": "json"}, [[{"j": b'{"a": 1, "a": 2}'}]])
    with pytest.raises(ws.BadSource, match="'a' occurs twice"):
        ws.convert(folder, tmp_path / "store")
