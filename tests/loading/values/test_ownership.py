"""What a loader hands out is the caller's: a transform in place changes no source, and nothing is copied needlessly."""

import weakref
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.sources.store import split
from warmstore.loading.values.ownership import owned
from warmstore.records.format.value_encoding import Packed

AT = np.array([2, 0, 2])


class Box:
    """A mutable object of no known class."""

    def __init__(self) -> None:
        self.content = [1]


class Items:
    """A data set that keeps what it hands out."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return self.items[at]


class ManyItems(Items):
    """The same, many at once."""

    def __getitems__(self, positions: list[int]) -> Any:
        return [self.items[at] for at in positions]


def spoil(value: Any) -> None:
    """Change everything that can be changed in a value."""
    if isinstance(value, dict):
        for part in value.values():
            spoil(part)
        value.clear()
    elif isinstance(value, list | tuple):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.clear()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        assert value.flags.writeable
        value.view(np.uint8)[...] = 99
    elif isinstance(value, np.ndarray):
        spoil(value.tolist())
    elif isinstance(value, torch.Tensor):
        value.zero_()
    elif isinstance(value, bytearray):
        value.clear()
    elif isinstance(value, Box):
        spoil(value.content)
    elif hasattr(value, "putpixel"):
        value.putpixel((0, 0), 99)


def text_of(value: Any) -> str:
    """All that is in a value."""
    if isinstance(value, Box):
        return text_of(value.content)
    if isinstance(value, dict):
        return str({name: text_of(part) for name, part in value.items()})
    if isinstance(value, list | tuple):
        return str([text_of(part) for part in value])
    return str(value.tobytes()) if hasattr(value, "putpixel") else repr(value)


def ragged() -> list[Any]:
    return [np.full(at + 1, at, np.int64) for at in range(3)]


Pair = namedtuple("Pair", "x y")
MUTABLE = {
    "arrays": ragged,
    "tall arrays": lambda: [np.full((2, at + 1), at) for at in range(3)],
    "dtypes": lambda: [np.zeros(1, kind) for kind in ("i4", "f4", "f8")],
    "tensors": lambda: [torch.full((at + 1,), at) for at in range(3)],
    "gaps": lambda: [np.arange(2), None, np.arange(2)],
    "dicts": lambda: [{"x": array, "y": [1, {"z": array}]} for array in ragged()],
    "lists": lambda: [[array, {"x": array}] for array in ragged()],
    "tuples": lambda: [(array, "a", [array]) for array in ragged()],
    "pairs": lambda: [Pair(array, Box()) for array in ragged()],
    "boxes": lambda: [Box() for _ in range(3)],
    "bytearrays": lambda: [bytearray(b"abc") for _ in range(3)],
    "objects": lambda: [np.array([[1], {"x": 2}], object) for _ in range(3)],
    "records": lambda: [{"x": np.zeros(1, [("a", "i4")])[0]} for _ in range(3)],
}


@pytest.mark.parametrize("kind", MUTABLE)
@pytest.mark.parametrize("holder", [list, tuple, Items, ManyItems])
def test_nothing_handed_out_is_the_sources(kind: str, holder: Any) -> None:
    samples = MUTABLE[kind]()
    source = source_of(holder([*samples]) if holder is not tuple else [*samples])
    before = text_of(samples)
    first = text_of(source.read(AT))
    spoil(source.read(AT))
    assert text_of(samples) == before
    assert text_of(source.read(AT)) == first


def test_rows_of_one_batch_share_nothing() -> None:
    """A sample that is drawn twice is two samples, and so is one that fills up a batch."""
    for source in (ragged(), np.array(ragged(), object)):
        batch = source_of(source).read(AT)
        batch[0][:] = 7
        assert batch[2].tolist() == [2, 2, 2]
    boxes = np.array([[{"x": [at]}, Box()] for at in range(3)])
    batch = source_of(boxes).read(AT)
    spoil(batch[0].tolist())
    assert text_of(batch[2].tolist()) == text_of(boxes[2].tolist())


def test_copy_false_hands_out_the_very_objects() -> None:
    arrays, boxes = ragged(), [Box(), Box(), Box()]
    assert ws.Dataset(arrays, copy=False).__getitems__(AT).batch[0] is arrays[2]
    assert ws.Dataset({"x": boxes}, copy=False).__getitems__(AT).batch["x"][1] is boxes[0]
    objects = np.array([Box(), Box()], object)
    assert ws.Dataset(objects, copy=False)[1] is objects[1]
    assert ws.Dataset(objects)[1] is not objects[1]


def test_images_in_a_list_are_copied() -> None:
    images = pytest.importorskip("PIL.Image")
    pictures = [images.new("L", (2, 2), at) for at in range(3)]
    spoil(source_of(pictures).read(AT))
    assert [picture.getpixel((0, 0)) for picture in pictures] == [0, 1, 2]
    made: list[int] = []

    class Opened(Items):
        def __getitem__(self, at: int) -> Any:
            picture = images.new("L", (2, 2), at)
            made.append(id(picture.im))
            return picture, at

    found = source_of(Opened([0, 0, 0])).read(AT)
    assert [id(picture.im) for picture in found[0]] == made  # nobody else has them


def test_immutable_values_are_not_copied() -> None:
    values = ["a" * 50, b"b" * 50, Path("some/where"), (1, "x"), 2.5, None, np.float32(3)]
    found = source_of(values).read(np.arange(len(values)))
    assert all(one is value for one, value in zip(found, values, strict=True) if not isinstance(value, tuple))
    assert found[3] == (1, "x")


class Makes:
    """A data set that makes its samples anew."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.made: list[int] = []

    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> Any:
        sample = self.make(at)
        array = sample["x"] if isinstance(sample, dict) else sample[0] if isinstance(sample, tuple) else sample
        self.made.append(array.ctypes.data)
        return sample


@pytest.mark.parametrize(
    "make",
    [
        lambda at: np.full(at + 1, at),
        lambda at: {"x": np.full(at + 1, at), "y": at},
        lambda at: (np.full(at + 1, at), at),
    ],
)
def test_arrays_that_were_made_for_the_batch_are_not_copied(make: Any) -> None:
    made = Makes(make)
    batch = source_of(made).read(AT)
    arrays = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple) else batch
    assert [array.ctypes.data for array in arrays] == made.made


def test_an_array_that_others_see_is_copied() -> None:
    kept: list[Any] = []

    def viewed(at: int) -> Any:
        array = np.full(at + 1, at)
        kept.append(array[:1])
        return array

    def weakly(at: int) -> Any:
        array = np.full(at + 1, at)
        kept.append(weakref.ref(array))
        return array

    def lent(at: int) -> Any:
        array = np.full(at + 1, at)
        kept.append(memoryview(array))
        return array

    def read_only(at: int) -> Any:
        return np.frombuffer(bytes([at] * (at + 1)), np.uint8)

    for make in (viewed, weakly, lent, read_only):
        made = Makes(make)
        batch = source_of(made).read(AT)
        assert not {array.ctypes.data for array in batch} & set(made.made)
        assert all(array.flags.writeable for array in batch)


def test_without_counted_references_everything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmstore.loading.values.ownership._COUNTS_REFERENCES", False)
    made = Makes(lambda at: {"x": np.full(at + 1, at), "y": at})
    batch = source_of(made).read(AT)
    assert not {array.ctypes.data for array in batch["x"]} & set(made.made)


def test_a_batch_that_a_data_set_makes_whole_is_not_copied() -> None:
    class Whole(Items):
        def __getitems__(self, positions: list[int]) -> Any:
            self.batch = {"x": np.zeros(len(positions)), "y": [np.zeros(2)] * len(positions)}
            self.place = self.batch["x"].ctypes.data
            if not self.keep:
                return self.__dict__.pop("batch")
            return self.batch

    source = Whole([1, 2, 3])
    for keep in (False, True):
        source.keep = keep
        batch = source_of(source).read(AT)
        assert (batch["x"].ctypes.data == source.place) is not keep
        batch["x"] += 1
        if keep:
            assert source.batch["x"].tolist() == [0, 0, 0]


def test_an_object_that_cannot_be_copied() -> None:
    class Fixed(Box):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one only")

    kept = [Fixed(), Fixed()]
    with pytest.raises(ws.BadSource, match=r"a Fixed.*there is one only.*copy=False"):
        ws.Dataset(kept)[0]
    assert ws.Dataset(kept, copy=False)[0] is kept[0]

    class Fresh(Items):
        def __getitem__(self, at: int) -> Any:
            return Fixed()

    assert isinstance(ws.Dataset(Fresh([0]))[0], Fixed)  # nobody else has it


def test_a_batch_of_plain_values_is_itself() -> None:
    batch = ["a", "b"]
    assert owned(batch) is batch


def test_ragged_fields_of_stores_are_writable(store: ws.RecordStore, tmp_path: Path) -> None:
    for source in (store, store["points"], {"p": store["points"]}):
        batch = ws.Dataset(source).__getitems__([5, 0, 22, 5]).batch
        points = batch if isinstance(batch, list) else batch.get("points", batch.get("p"))
        assert [row.shape for row in points] == [(5, 2), (0, 2), (22, 2), (5, 2)]
        for row in points:
            row += 1
    assert [row.tolist() for row in ws.Dataset(store["points"]).__getitems__([1, 2]).batch] == [[[1, 1]], [[2, 2]] * 2]
    assert not ws.Dataset(store["points"], copy=False)[5].flags.writeable
    for codec in ("raw", "zstd"):
        with ws.RecordStore.create(tmp_path / codec, {"x": ws.Ragged("int16", codec=codec)}) as gaps:
            gaps.extend({"x": [np.arange(3, dtype=np.int16), None, np.arange(0, dtype=np.int16)]})
            for _ in ("pending", "committed"):
                found = ws.Dataset(gaps).__getitems__([0, 1, 2]).batch["x"]
                assert found[1] is None
                found[0][:] = 9
                assert ws.Dataset(gaps)[0]["x"].tolist() == [0, 1, 2]
                assert len(found[2]) == 0
                gaps.flush()


def test_packed_values_that_are_read_only_are_copied() -> None:
    data = np.arange(3)
    data.flags.writeable = False
    (first, second) = split(Packed(data, np.array([0, 1, 3])))
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([0], [1, 2])
    assert first.flags.writeable


def test_arrays_and_files_hand_out_their_own_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    array, tensor = np.arange(6).reshape(3, 2), torch.arange(6).reshape(3, 2)
    for source in (array, tensor, tmp_path / "x.npy", torch.utils.data.TensorDataset(tensor), (array, tensor)):
        batch = source_of(source).read(AT)
        for part in batch if isinstance(batch, tuple) else [batch]:
            part[...] = 7
        again = source_of(source).read(AT)
        assert (again[0] if isinstance(again, tuple) else again).tolist() == [[4, 5], [0, 1], [4, 5]]
