"""Writes small stores of the present format into `format-N` beside this file, to be committed and never written again.

Run once per format version, by `python -m tests.frozen.make`; it leaves folders alone that are there already. Whatever
a later version does, test_frozen.py reads these files and expects the values that come from here. So nothing here
changes for a format that is out: a new one adds stores, or a new source of values beside this one.

The same goes for `identity-N`, once per generation of identities: specimens.py makes what test_specimens.py reads.
Compiled code names the folders of its sources, of torch and of Python: make those where their names say nothing.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.stories import Hasty, Record, Story
from tests.frozen import specimens

import warmstore as ws
from warmstore.records import store_session
from warmstore.records.format.fields import numpy_dtype
from warmstore.records.format.manifest import FORMAT
from warmstore.records.write import chunk_merging
from warmstore.records.write.chunk_eviction import evict
from warmstore.records.write.generation import Generation
from warmstore.replicate.attach import attach
from warmstore.replicate.parts import PartLog
from warmstore.replicate.push_part import push_part
from warmstore.replicate.remote_copy import Remote

HERE = Path(__file__).parent

# fmt: off
DTYPES = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool",
    "complex64", "complex128", "M8[ns]", "M8[D]", "m8[ms]", "bfloat16", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]
# fmt: on

KINDS: dict[str, Any] = {
    "scalar": ws.Array("int64"),
    "image": ws.Array("uint8", (3, 2)),
    "nothing": ws.Array("float64", (0, 2)),
    "points": ws.Ragged("float32", ndim=2),
    "words": ws.Ragged("bfloat16"),
    "blob": ws.Bytes(),
    "text": ws.Text(),
    "json": ws.Json(),
}


def noise(name: str, number: int, length: int) -> bytes:
    """Bytes that follow from a name and a number, today and for ever; NumPy's generators promise no such thing."""
    return hashlib.shake_128(f"{name} {number}".encode()).digest(length)


def array(name: str, number: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """Any bits at all, NaNs and NaTs among them."""
    kind = numpy_dtype(dtype)
    data = np.frombuffer(noise(name, number, kind.itemsize * int(np.prod(shape))), np.uint8)
    return (data & 1 if dtype == "bool" else data).view(kind).reshape(shape)


def value(name: str, field: Any, number: int) -> Any:
    size = noise(name + " size", number, 1)[0]
    if isinstance(field, ws.Array):
        return array(name, number, field.dtype, field.shape)
    if isinstance(field, ws.Ragged):
        return array(name, number, field.dtype, tuple(size % 4 + axis for axis in range(field.ndim)))
    if isinstance(field, ws.Bytes):
        return noise(name, number, size % 20)
    if isinstance(field, ws.Text):
        return "é☃😀" + noise(name, number, size % 10).hex()
    return {"number": number, "list": [None, True, -1.5, "é"], "size": size} if size % 4 else None


def records_of(fields: dict[str, Any]) -> Callable[[int], Record]:
    return lambda number: {name: value(name, field, number) for name, field in fields.items()}


def start(path: Path, fields: dict[str, Any], source: Callable[[int], Record] | None = None, **options: Any) -> Story:
    return Story.create(path, fields, source or records_of(fields), **options)


def dtypes(path: Path) -> Story:
    """Every dtype, half of them with a shape."""
    fields = {dtype: ws.Array(dtype, (2, 3) if at % 2 else ()) for at, dtype in enumerate(DTYPES)}
    story = start(path, fields)
    story.extend(range(3))
    return story.close()


def ragged(path: Path) -> Story:
    """Every dtype, ragged."""
    story = start(path, {dtype: ws.Ragged(dtype, ndim=at % 3 + 1) for at, dtype in enumerate(DTYPES)})
    story.extend(range(3))
    return story.close()


def kinds(path: Path) -> Story:
    story = start(path, KINDS)
    story.extend(range(3))
    story.extend(range(3, 4))
    return story.close()


def absent(path: Path) -> Story:
    """Values that are absent in one batch, not in another, and in all of a third."""
    fields = {name: field for name, field in KINDS.items() if name != "json"}
    whole = records_of(fields)

    def holey(number: int) -> Record:
        gone = {name for place, name in enumerate(fields) if number >= 8 or (number < 4 and (number + place) % 3 == 0)}
        return {name: None if name in gone else one for name, one in whole(number).items()}

    story = start(path, fields, holey)
    for first in (0, 4, 8):
        story.extend(range(first, first + 4))
    return story.close()


def codecs(path: Path) -> Story:
    """Every codec on every kind that it changes, with absent values, and a trained dictionary."""
    samples = [b"a record of a few that resemble each other " + noise("sample", at, 4) * 4 for at in range(300)]
    dictionary = ws.train_dictionary(samples, 256)
    fields: dict[str, Any] = {
        "trained": ws.Bytes("zstd", dictionary=dictionary),
        "trained text": ws.Text("zstd:5", dictionary=dictionary),
    }
    for codec in ("deflate", "zstd:1", "lz4"):
        fields |= {
            f"{codec} array": ws.Array("int16", (8,), codec),
            f"{codec} ragged": ws.Ragged("float32", 2, codec),
            f"{codec} bytes": ws.Bytes(codec),
            f"{codec} text": ws.Text(codec),
            f"{codec} json": ws.Json(codec),
        }
    whole = records_of(fields)

    def some(number: int) -> Record:
        one = whole(number)
        return {**one, "trained": samples[number], "zstd:1 bytes": None if number == 1 else one["zstd:1 bytes"]}

    story = start(path, fields, some)
    story.extend(range(3))
    return story.close()


def edited(path: Path) -> Story:
    """Updates and deletes by two writers, whose chunks take turns; one chunk is full and sealed before the other."""
    names = ("scalar", "image", "points", "text")
    story = start(path, {name: KINDS[name] for name in names}, chunk_size=10_000)
    first, second = story.store, ws.RecordStore.open(path, "a", chunk_size=10_000, files=Hasty())
    for turn in range(6):
        story.store = (first, second)[turn % 2]
        story.store.refresh()
        story.extend(range(4 * turn, 4 * turn + 4))
        story.update([1, 3], [100 + turn, 200 + turn], *(names if turn % 2 else names[1:3]))
        story.delete([0, 2])
    first.close()
    story.store = second
    return story.close()


def killed(path: Path) -> Story:
    """A writer that was killed between its batch and the batch's log entry, of which half was written."""
    story = start(path.with_name("going on"), KINDS)
    story.extend(range(2))
    story.update([0], [7], "points", "text")
    committed = list(story.records)
    shutil.copytree(story.path, path)
    story.extend(range(2, 4))
    more = (story.path / "g0001/log").read_bytes()[-64:]
    shutil.copy(story.path / "g0001/000000.arrow", path / "g0001/000000.arrow")
    with open(path / "g0001/log", "ab") as log:
        log.write(more[:40])
    story.close()
    story.records = committed
    return story


def rebalanced(path: Path) -> Story:
    """The second generation, of other fields, edited once more."""
    story = start(path, KINDS)
    story.extend(range(6))
    story.delete([0, 3])
    story.update([1], [11], "points", "blob")
    story.rebalance()
    story.extend(range(6, 8))
    story.update([0], [10], "text")
    story.delete([2])
    return story.close()


def empty(path: Path) -> Story:
    return start(path, KINDS).close()


def evicted(path: Path) -> Story:
    """Chunks of three writers, of which two are evicted; the log goes on behind it."""
    story = start(path, KINDS)
    for first in (0, 4, 8):
        story.extend(range(first, first + 4))
        story.another_writer()
    evict(path, "g0001", [0, 2], Hasty())
    story.extend(range(12, 14))
    story.close()
    story.records = story.records[4:8] + story.records[12:]
    return story


def adopted(path: Path) -> Story:
    """Chunks of another store between those of two writers of its own."""
    other = start(path.with_name("other"), KINDS)
    other.extend(range(4, 7))
    other.close()
    story = start(path, KINDS)
    story.extend(range(4))
    story.another_writer()
    with Remote(str(path.with_name("remote"))).open() as objects:
        log = PartLog(None)
        push_part(other.path, objects, Hasty(), log, log.read(objects))
        (part,) = log.read(objects).parts
        attach(path, part, objects, Hasty())
    shutil.rmtree(path.with_name("remote"))
    shutil.rmtree(other.path)
    for lock in (path / ".pull.lock", path / "edit.lock"):
        lock.unlink(missing_ok=True)
    story.records += other.records
    story.extend(range(7, 9))
    return story.close()


def merged(path: Path) -> Story:
    """Chunks of many writers merged, and merged again; edits before, between and after, one of several batches."""
    names = ("scalar", "image", "points", "text", "blob")
    fields = {**{name: KINDS[name] for name in names}, "squeezed": ws.Bytes("zstd")}
    whole = records_of(fields)

    def some(number: int) -> Record:
        return {**whole(number), "blob": None if number % 3 == 1 else whole(number)["blob"]}

    story = start(path, fields, some)
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(chunk_merging, "FAN_IN", 3)
        for turn in range(10):
            story.extend(range(4 * turn, 4 * turn + 4))
            if turn % 3 == 1:
                story.update([2, 5], [100 + turn, 200 + turn], *fields)
                story.delete([1, 3])
            story.another_writer()
        limits.setattr(store_session, "BATCH_BYTES", 1)
        story.update([6, 0, 3], [300, 301, 302], "points", "blob")
    (path / "edit.lock").unlink()
    return story.close(seal=False)


def staged(path: Path) -> Story:
    """An update of several batches whose writer was killed before the entry that applies them; others went on."""
    story = start(path, KINDS)
    story.extend(range(6))
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(store_session, "BATCH_BYTES", 1)
        limits.setattr(Generation, "_commit_edit", lambda *arguments: None)
        story.store.update([0, 1, 2], story.columns(range(50, 53)))
    story.another_writer()
    story.extend(range(6, 8))
    story.update([5, 6], [15, 16], "text", "json")
    story.delete([0])
    (path / "edit.lock").unlink()
    return story.close()


STORES_OF = {
    1: {
        function.__name__: function
        for function in (absent, codecs, dtypes, edited, empty, killed, kinds, ragged, rebalanced)
    },
    2: {"evicted": evicted},
    3: {"adopted": adopted},
    4: {"merged": merged, "staged": staged},
}
"""The stores that came with each format."""

CACHE = "cache"
IDS: list[Any] = [0, 7, -1, 5_000_000, 2**63, 2**70, "a", "é", ""]
FINGERPRINT = {"weights": "1234", "code": "abcd"}


def outputs(numbers: list[int]) -> Any:
    """Outputs of the samples at these places of `IDS`: one of each kind of leaf, and of containers."""
    return {
        "features": np.stack([array("features", number, "float32", (4,)) for number in numbers]),
        "half": (torch.tensor([[number, -1.5] for number in numbers], dtype=torch.bfloat16),),
        "boxes": ([array("boxes", number, "int16", (number % 3, 4)) for number in numbers], {}),
        "labels": [{"name": f"é {number}", "known": number % 2 == 0} for number in numbers],
    }


def opened_cache(folder: Path, **options: Any) -> ws.FeatureCache:
    return ws.FeatureCache(folder, CACHE, lists="per_sample", **options)


def put(cache: ws.FeatureCache, places: list[int]) -> None:
    cache.put_batch([IDS[at] for at in places], outputs(places))


def cache(folder: Path) -> None:
    with_ids = opened_cache(folder)
    with_ids._bind(FINGERPRINT)
    if FORMAT > 1:  # a chunk of other rows, which goes
        put(with_ids, [3, 2, 1])
        with_ids.close()
        evict(folder / CACHE, "g0001", [0], Hasty())
        (folder / CACHE / "edit.lock").unlink(missing_ok=True)
        with_ids = opened_cache(folder)
    if FORMAT > 2:  # what another host computed, some of which is computed here too
        with opened_cache(folder / "other") as other, tempfile.TemporaryDirectory() as remote:
            other._bind(FINGERPRINT)
            put(other, [0, 1, 2, 3])
            other.push(remote)
            with_ids.pull(remote)
        shutil.rmtree(folder / "other")
        (folder / CACHE / ".pull.lock").unlink()
        (folder / CACHE / "edit.lock").unlink(missing_ok=True)
        put(with_ids, [0, 1])
    else:
        put(with_ids, [0, 1, 2, 3])
    with_ids.flush()
    put(with_ids, [4, 5, 6, 7, 8])
    with_ids.close()
    for path in [*(folder / CACHE).glob("keys-*"), folder / CACHE / "cost.json"]:
        path.unlink(missing_ok=True)  # derived, and named by the host


def write_stores(target: Path) -> None:
    for name, make in STORES_OF[FORMAT].items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / name)
            shutil.copytree(Path(folder) / name, target / name)
    cache(target)


def main() -> None:
    """Write what is not there yet: what was frozen stays as it is."""
    folders = {f"format-{FORMAT}": write_stores, f"identity-{specimens.IDENTITY}": specimens.write}
    for name, write in folders.items():
        target = HERE / name
        if not target.exists():
            target.mkdir()
            write(target)
            size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
            print(f"{target}: {size:,} bytes")


if __name__ == "__main__":
    main()
