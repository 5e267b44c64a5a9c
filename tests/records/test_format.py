"""A reader of stores written from docs/format.md alone, compared with warmstore's own reading.

It knows pyarrow, xxhash and NumPy, and nothing of warmstore: what it must know is what the format promises.
"""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pyarrow as pa
import pytest
import xxhash
import zstandard
from tests.faults.stories import STORIES, Story
from tests.faults.test_corruption import files_of

import warmstore as ws
from warmstore.records import store_session
from warmstore.records.format.fields import Field

BATCH, SEALED, UPDATE, DELETE, CLOSED, EVICTED, ADOPTED, STAGED, UPDATED, DELETED, COPIED, MERGED = range(1, 13)
ENTRY = "<IIQIIQQQQQ"  # chunk, rows, offset, header, kind, body, header hash, body hash, sequence, hash
ABSENT = 0x746E657362410A00


def xxh3(data: Any, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(bytes(data), seed)


def read_store(path: Path) -> list[dict[str, Any]]:
    """The records of a store in their order, as plain values."""
    described = json.loads((path / "store.json").read_bytes())
    checksum = described.pop("checksum")
    compact = json.dumps(described, sort_keys=True, separators=(",", ":")).encode()
    assert checksum == xxhash.xxh3_128_hexdigest(compact)
    folder = path / f"g{described['generation']:04d}"
    seed = xxh3(f"{described['id']}/{described['generation']}".encode())
    rows, order = read_rows(read_log(folder, seed), folder, seed)
    records = {}
    for row in set(order):
        chunk, offset, at = rows[row]
        records[row] = read_record(described["fields"], *read_batch(folder, chunk, offset, seed), at)
    return [records[row] for row in order]


def read_log(folder: Path, seed: int) -> list[tuple[int, ...]]:
    """The entries of the log."""
    data, entries = (folder / "log").read_bytes(), []
    assert (folder / "log.copy").read_bytes()[: len(data)] == data
    for number in range(len(data) // 64):
        part = data[64 * number :][:64]
        entry = struct.unpack(ENTRY, part)
        assert entry[8] == number
        assert entry[9] == xxh3(part[:56], seed)
        if entry[4] == MERGED:
            assert entry[6] == xxh3(data[: 64 * number], seed)
        entries.append(entry)
    return entries


def read_rows(entries: list[tuple[int, ...]], folder: Path, seed: int) -> tuple[list[tuple[int, int, int]], list[int]]:
    """By row number the chunk, the offset of the batch, and the row there; and the row number at each position."""
    rows: list[tuple[int, int, int]] = []
    order: list[int] = []
    copied: list[tuple[int, int, int]] = []
    staged: list[range] = []
    numbers = (folder / "numbers").read_bytes() if (folder / "numbers").exists() else b""
    assert not numbers or (folder / "numbers.copy").read_bytes() == numbers
    for chunk, count, offset, header, kind, body, _, body_hash, _, _ in entries:
        if kind in (BATCH, STAGED):
            new = range(len(rows), len(rows) + count)
            rows += [(chunk, offset, at) for at in range(count)]
            if kind == STAGED:  # at no position before an update
                staged.append(new)
            else:
                order += new
        elif kind == COPIED:
            copied.append((chunk, offset, count))
        elif kind in (UPDATED, DELETED, MERGED):
            data = numbers[offset : offset + body]
            assert body_hash == xxh3(data, seed)
            given = np.frombuffer(data, "<i8").tolist()
            if kind == UPDATED:
                last = [row for some in staged[len(staged) - header :] for row in some]
                assert len(last) == len(given) == count
                for position, row in zip(given, last, strict=True):
                    order[position] = row
            elif kind == DELETED:
                assert len(given) == count
                gone = set(given)
                length = len(order) - len(gone)
                left = [order[at] for at in range(length, len(order)) if at not in gone]
                for hole in sorted(at for at in gone if at < length):
                    order[hole] = left.pop()
                del order[length:]
            else:  # of the last copied batches: how often merged, and the first row of each
                for first, (into, where, length) in zip(given[1:], copied[len(copied) - header :], strict=True):
                    rows[first : first + length] = [(into, where, at) for at in range(length)]
    return rows, order


def read_batch(folder: Path, chunk: int, offset: int, seed: int) -> tuple[pa.RecordBatch, int]:
    """A batch, and the seed of its checksums."""
    data = (folder / f"{chunk:06d}.arrow").read_bytes()
    schema = pa.ipc.read_schema(pa.py_buffer(data[8:]))
    batch = pa.ipc.read_record_batch(pa.py_buffer(data[offset:]), schema)
    return batch, xxh3(struct.pack("<QQ", chunk, offset), seed)


def read_record(fields: list[dict[str, Any]], batch: pa.RecordBatch, seed: int, at: int) -> dict[str, Any]:
    record = {}
    for field in fields:
        name = field["name"]
        checksum = batch.column(f"{name}::xxh3")[at].as_py()
        if checksum == xxh3(struct.pack("<Q", at), seed ^ ABSENT):
            record[name] = None
            continue
        shape = field.get("shape")
        stored = stored_bytes(batch.column(name), at) if name in batch.schema.names else b""
        row_seed = seed
        if field["kind"] == "ragged":
            shape = batch.column(f"{name}::shape")[at].as_py()
            row_seed = xxh3(np.array(shape, "<i8").tobytes(), seed)
        assert checksum == xxh3(stored, row_seed)
        record[name] = value_of(field, decompressed(field, stored), shape)
    return record


def stored_bytes(column: pa.Array, at: int) -> bytes:
    """What stands in a column for a row, whatever its type."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        first, last = np.frombuffer(column.buffers()[1], "<i8")[at : at + 2].tolist()
        return column.buffers()[2].to_pybytes()[first:last] if last > first else b""
    values = column.values if pa.types.is_fixed_size_list(column.type) else column
    width = (column.type.list_size if values is not column else 1) * values.type.bit_width // 8
    return bytes(values.buffers()[1].to_pybytes()[width * at : width * (at + 1)])


def decompressed(field: dict[str, Any], data: bytes) -> bytes:
    codec = field.get("codec", "raw").partition(":")[0]
    if codec == "deflate":
        return zlib.decompress(data)
    if codec == "zstd":
        trained = zstandard.ZstdCompressionDict(base64.b64decode(field.get("dictionary", "")))
        return zstandard.ZstdDecompressor(dict_data=trained).decompress(data)
    return lz4.block.decompress(data) if codec == "lz4" else data


def value_of(field: dict[str, Any], data: bytes, shape: Any) -> Any:
    """A plain value; of numbers their bytes, dtype and shape."""
    if field["kind"] in ("array", "ragged"):
        return field["dtype"], tuple(shape), data
    if field["kind"] == "text":
        return data.decode()
    return json.loads(data) if field["kind"] == "json" else data


# The comparison


def plain(field: Field, value: Any) -> Any:
    """A value that warmstore gave back, as the reader has it."""
    if isinstance(field, ws.Array | ws.Ragged):
        array = np.asarray(value)
        return field.dtype, array.shape, array.tobytes()
    return bytes(value) if isinstance(field, ws.Bytes) else value


def check(path: Path) -> None:
    with ws.RecordStore.open(path) as store:
        columns = store.gather(slice(None))
        present = {name: store.present(name) for name in store.fields}
        own = [
            {
                name: plain(field, columns[name][at]) if present[name][at] else None
                for name, field in store.fields.items()
            }
            for at in range(len(store))
        ]
    assert read_store(path) == own


@pytest.mark.parametrize("name", STORIES)
def test_a_reader_of_the_format_reads_what_warmstore_reads(tmp_path: Path, name: str) -> None:
    story = STORIES[name](tmp_path / "s")
    check(story.path)


def test_updates_of_several_batches_and_of_nothing_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_session, "BATCH_BYTES", 1)
    fields = {"number": ws.Array("int64"), "blob": ws.Bytes("zstd")}
    story = Story.create(tmp_path / "s", fields, lambda number: {"number": number, "blob": b"%d" % number * 3})
    story.extend(range(9))
    story.update([8, 1, 8, 0], [11, 12, 13, 14], "blob")
    story.delete([2, 8, 3])
    story.update([0, 5], [21, 22], "number", "blob")
    story.close()
    check(story.path)


@pytest.mark.parametrize("file", ["store.json", "log", "numbers"])
def test_the_copies_say_the_same(tmp_path: Path, file: str) -> None:
    files = files_of(STORIES["merged"](tmp_path / "s"))
    assert files[file].read_bytes() == files[f"{file}.copy"].read_bytes()


def test_the_reader_would_see_a_difference(tmp_path: Path) -> None:
    story = STORIES["plain"](tmp_path / "s")
    chunk = files_of(story)["0"]
    data = bytearray(chunk.read_bytes())
    data[data.index("é".encode())] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(AssertionError):
        read_store(story.path)
