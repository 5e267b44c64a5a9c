"""Folders of images: the order and the labels of torchvision, files as they are or decoded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws

Image: Any = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """12 images of two sizes in two classes, one of them nested, and things that are no images."""
    root = tmp_path / "in"
    for number in range(12):
        place = root / ("zebra" if number % 2 else "ant") / ("deep" if number % 3 == 0 else "")
        place.mkdir(parents=True, exist_ok=True)
        image(number).save(place / f"{number:02d}.png")
    (root / "ant" / "notes.txt").write_text("no image")
    (root / "readme.md").write_text("no class")
    return root


def image(number: int, size: tuple[int, int] | None = None) -> Any:
    height, width = size or (8 + number % 2, 6)
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8))


def test_files_stay_as_they_are(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)
    # What torchvision.datasets.ImageFolder makes of it: sorted by class, then folder, then name.
    files = [*sorted((folder / "ant").glob("*.png")), *sorted((folder / "ant" / "deep").glob("*.png"))]
    files += [*sorted((folder / "zebra").glob("*.png")), *sorted((folder / "zebra" / "deep").glob("*.png"))]
    with ws.convert(folder, tmp_path / "store") as store:
        holds(
            store,
            {
                "image": [memoryview(file.read_bytes()) for file in files],
                "label": np.array([int("zebra" in file.parts) for file in files]),
                "path": [file.relative_to(folder).as_posix() for file in files],
            },
        )
        assert store.metadata["classes"] == ["ant", "zebra"]


def test_decoded_images_of_many_sizes_are_ragged(folder: Path, tmp_path: Path) -> None:
    with ws.convert(folder, tmp_path / "store", decode=True) as store:
        assert store.fields["image"] == ws.Ragged("uint8", 3)
        values = store[:]
        for pixels, path in zip(values["image"], values["path"], strict=True):
            assert np.array_equal(pixels, np.asarray(image(int(Path(path).stem))))


def test_decoded_images_of_one_size_are_an_array(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number in range(3):
        image(number, (5, 7)).save(tmp_path / "in" / "a" / f"{number}.png")
    image(9, (5, 7)).convert("L").save(tmp_path / "in" / "a" / "grey.png")
    with ws.convert(tmp_path / "in", tmp_path / "store", decode=True, fields=["image"]) as store:
        assert store.fields["image"] == ws.Array("uint8", (5, 7, 3))
        assert np.array_equal(store[1]["image"], np.asarray(image(1, (5, 7))))
        assert np.array_equal(store[3]["image"], np.asarray(image(9, (5, 7)).convert("L").convert("RGB")))


def test_images_are_resized_to_height_and_width(folder: Path, tmp_path: Path) -> None:
    with ws.convert(folder, tmp_path / "store", decode=True, size=(4, 5)) as store:
        assert store.fields["image"] == ws.Array("uint8", (4, 5, 3))
        row = store[0]
        expected = image(int(Path(row["path"]).stem)).resize((5, 4), Image.Resampling.BILINEAR)
        assert np.array_equal(row["image"], np.asarray(expected))
    with pytest.raises(ValueError, match="pass decode=True"):
        ws.convert(folder, tmp_path / "other", size=4)


def test_what_cannot_be_converted_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "ant" / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    with pytest.raises(ws.BadSource, match=r"broken\.jpg"):
        ws.convert(folder, tmp_path / "store", decode=True)
    with pytest.raises(ws.BadSource, match="subfolder with images for each class"):
        ws.convert(folder / "zebra" / "deep", tmp_path / "store", format="images")
    assert not (tmp_path / "store").exists()


def test_an_image_without_a_class_is_named(folder: Path, tmp_path: Path) -> None:
    image(1).save(folder / "loose.png")
    with pytest.raises(ws.BadSource, match=r"loose\.png lies in no subfolder"):
        ws.convert(folder, tmp_path / "store")


def test_deep_pixels_are_not_cut(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    Image.fromarray(np.full((3, 4), 40_000, np.uint16)).save(tmp_path / "in" / "a" / "deep.png")
    with pytest.raises(ws.UnsupportedType, match=r"deep\.png has pixels of more than 8 bits"):
        ws.convert(tmp_path / "in", tmp_path / "store", decode=True)


def test_an_image_that_breaks_off_is_named(folder: Path, tmp_path: Path) -> None:
    path = next((folder / "ant").glob("*.png"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ws.BadSource, match=path.name):
        ws.convert(folder, tmp_path / "store", decode=True)


def test_links_are_followed_once_and_hidden_files_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "more").mkdir()
    for name in ("in/cat/_DSC1.png", "more/2.png"):
        image(0).save(tmp_path / name)
    (tmp_path / "in" / "cat" / "all").symlink_to("../cat")
    (tmp_path / "in" / "cat" / "more").symlink_to("../../more")
    (tmp_path / "in" / "cat" / ".ipynb_checkpoints").mkdir()
    for name in ("._1.png", ".ipynb_checkpoints/1-checkpoint.png"):
        (tmp_path / "in" / "cat" / name).write_bytes(b"no image")
    with ws.convert(tmp_path / "in", tmp_path / "store", decode=True) as store:
        assert store[:]["path"] == ["cat/_DSC1.png", "cat/more/2.png"]
