"""torch's map-style data sets."""

import weakref
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws

torch: Any = pytest.importorskip("torch")
Pair = namedtuple("Pair", ["image", "label"])


class Items(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    def __init__(self, item: Any, count: int = 20) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.item(number)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


@pytest.mark.parametrize(
    ("item", "names"),
    [
        (lambda n: {"image": torch.full((2,), n), "label": n}, ["image", "label"]),
        (lambda n: (torch.full((2,), n), n), ["0", "1"]),
        (lambda n: Pair(torch.full((2,), n), n), ["image", "label"]),
    ],
)
def test_items_of_several_parts(tmp_path: Path, item: Any, names: list[str]) -> None:
    with ws.convert(Items(item), tmp_path / "store") as store:
        images = np.stack([np.full(2, n) for n in range(20)])
        holds(store, dict(zip(names, (images, np.arange(20)), strict=True)))


def test_an_item_of_one_part(tmp_path: Path) -> None:
    with ws.convert(Items(lambda n: torch.tensor(n)), tmp_path / "store", fields=["x"]) as store:
        holds(store, {"x": np.arange(20)})
    tensors = torch.utils.data.TensorDataset(torch.arange(9), torch.zeros(9, 2))
    with ws.convert(torch.utils.data.Subset(tensors, [3, 1]), tmp_path / "subset") as store:
        holds(store, {"0": np.array([3, 1]), "1": np.zeros((2, 2), np.float32)})


def test_images_of_pil_are_converted_few_at_a_time(tmp_path: Path) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    alive: list[int] = []
    made: list[weakref.ref[Any]] = []

    def item(number: int) -> Any:
        new = image.new("RGB", (20, 20), (number, 0, 0))  # larger than a batch
        made.append(weakref.ref(new))
        alive.append(sum(each() is not None for each in made))
        return new, number

    with ws.convert(Items(item), tmp_path / "store") as store:
        pixels = np.zeros((20, 20, 20, 3), np.uint8)
        pixels[..., 0] = np.arange(20)[:, None, None]
        holds(store, {"0": pixels, "1": np.arange(20)})
    assert max(alive) <= 3


def test_what_cannot_be_converted_is_named(tmp_path: Path) -> None:
    with pytest.raises(ws.SchemaMismatch, match="item 9 of the data set is a dict, the first one a tuple"):
        ws.convert(Items(lambda n: (n,) if n < 9 else {"0": n}), tmp_path / "store")
    with pytest.raises(ws.BadSource, match="no records"):
        ws.convert(Items(int, 0), tmp_path / "store")
    with pytest.raises(ws.SchemaMismatch, match="record 9 has the field 'y'"):
        ws.convert(Items(lambda n: {"x": n} if n < 9 else {"x": n, "y": n}), tmp_path / "store")

    class Unsized(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __getitem__(self, number: int) -> int:
            return number

    with pytest.raises(ws.BadSource, match="has no length"):
        ws.convert(Unsized(), tmp_path / "store")
