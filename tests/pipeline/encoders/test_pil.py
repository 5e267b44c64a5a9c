"""PIL images come back with all that a step can tell, and are refused where that is not known."""

import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, ImagePalette
from PIL.PngImagePlugin import PngInfo, iTXt
from PIL.TiffImagePlugin import IFDRational

import warmstore as ws
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.unflattening import from_bytes

MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F")
DEEP = ("I;16", "I;16L", "I;16B")


def back(value: Any) -> Any:
    return from_bytes(to_bytes(*flatten(value)))


def random(mode: str, size: tuple[int, int] = (5, 3)) -> Image.Image:
    image = Image.new(mode, size)
    count = len(image.tobytes())
    image.frombytes(np.random.default_rng(0).integers(0, 256, count, np.uint8).tobytes())
    return image


def reloaded(image: Image.Image, **options: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, **options)
    return Image.open(file)


@pytest.mark.parametrize("size", [(5, 3), (9, 1), (0, 4), (4, 0)])
@pytest.mark.parametrize("mode", [*MODES, *DEEP])
def test_every_mode(mode: str, size: tuple[int, int]) -> None:
    image = random(mode, size) if 0 not in size else Image.new(mode, size)
    made = back(image)
    assert type(made) is Image.Image
    assert (made.mode, made.size, made.im.mode, made.tobytes()) == (mode, size, mode, image.tobytes())
    assert made == image
    assert made.format is None
    if 0 not in size:
        made.putpixel((0, 0), image.getpixel((0, 0)))  # it can be written to, as the original
        assert made == image


@pytest.mark.parametrize("colors", [2, 7, 256])
@pytest.mark.parametrize("transparency", [None, 1, bytes(range(2))])
def test_palettes(colors: int, transparency: Any) -> None:
    image = random("RGB", (30, 20)).quantize(colors)
    if transparency is not None:
        image.info["transparency"] = transparency
    for drawn in (False, True):
        made = back(image)
        assert vars(made.palette) == {**vars(image.palette), "_colors": None}
        assert made.palette.colors == image.palette.colors
        for mode in ("RGBA", "L") if transparency is None else ("RGBA",):
            assert made.convert(mode).tobytes() == image.convert(mode).tobytes()
        if not drawn:
            image.putpixel((0, 0), (1, 2, 3) if colors < 256 else 0)  # adds a colour to the palette


def test_a_palette_that_is_not_yet_applied() -> None:
    image = random("P")
    image.putpalette([7, 8, 9, 10] * 4, "RGBA")
    made = back(image)
    assert made.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    assert made.getpalette("RGBA") == image.getpalette("RGBA")


def test_a_palette_of_two_images_stays_shared() -> None:
    first, second = random("P"), random("P")
    second.palette = first.palette
    made = back([first, second, first])
    assert made[0] is made[2]
    assert made[0].palette is made[1].palette
    assert made[0].palette is not first.palette


def test_colours_that_contradict_the_palette_are_refused() -> None:
    image = random("P")
    assert image.palette is not None
    image.palette.colors = {(1, 2, 3): 5}
    with pytest.raises(ws.UnsupportedType, match="the colours of a palette were changed"):
        flatten(image)


def test_info_of_files() -> None:
    text = PngInfo()
    text.add_itxt("title", "ß", "de", "Titel")
    text.add_text("comment", "a")
    image = reloaded(random("RGB"), format="png", pnginfo=text, dpi=(72, 72), icc_profile=b"profile").copy()
    assert isinstance(image.info["title"], iTXt)
    image.info["rational"] = IFDRational(1, 3)
    made = back(image)
    assert made.info == image.info
    assert list(made.info) == list(image.info)
    assert (made.info["title"].lang, made.info["title"].tkey) == ("de", "Titel")
    assert type(made.info["rational"]) is IFDRational
    assert made.info["rational"] == Fraction(1, 3)


def test_exif() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "maker"
    image = reloaded(random("RGB"), format="jpeg", exif=exif)
    turned = ImageOps.exif_transpose(image)
    for each in (image.convert("RGB"), turned, turned.copy()):
        made = back(each)
        assert dict(made.getexif()) == dict(each.getexif())
        assert made.getexif().tobytes() == each.getexif().tobytes()
        assert ImageOps.exif_transpose(made) == ImageOps.exif_transpose(each)


def test_exif_that_is_not_in_info_is_refused() -> None:
    image = random("RGB")
    image.getexif()[0x0112] = 6
    with pytest.raises(ws.UnsupportedType, match="the EXIF data of an image was changed"):
        flatten({"image": image})
    image.info["exif"] = image.getexif().tobytes()
    assert dict(back(image.copy()).getexif()) == {0x0112: 6}


def test_attributes_of_the_program() -> None:
    image: Any = random("L")
    image.label = [1, np.arange(2)]
    made = back(image)
    assert made.label[0] == 1
    assert list(vars(made)) == list(vars(image))
    image.label = print
    with pytest.raises(ws.UnsupportedType, match=r"added/label is a builtins.builtin_function_or_method"):
        flatten(image)


def test_images_of_files_are_refused() -> None:
    with pytest.raises(ws.UnsupportedType, match=r"JpegImageFile.*return image.copy\(\) or image.convert"):
        flatten([reloaded(random("RGB"), format="jpeg")])


def test_a_closed_image_is_refused() -> None:
    image = random("RGB")
    image.close()
    with pytest.raises(ws.UnsupportedType, match="Operation on closed image"):
        flatten(image)


@pytest.mark.parametrize("shape", [(4, 8), (4, 8, 4)])
def test_an_image_over_an_array(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.uint8)
    image = Image.fromarray(array)
    for other in (array, array[1:], bytearray(array)):
        shares = not isinstance(other, bytearray)
        if shares:
            with pytest.raises(ws.UnsupportedType, match="share memory; return copies"):
                flatten([image, other])
        else:
            assert back([image, other])[0] == image
    assert back([image.copy(), array])[0] == image
    made = back(image)
    array += 1
    assert made.getextrema() != image.getextrema()


def test_a_palette_alone() -> None:
    palette = ImagePalette.ImagePalette("RGB", [1, 2, 3])
    made = back(palette)
    assert (made.palette, made.mode, made.colors) == ([1, 2, 3], "RGB", {(1, 2, 3): 0})
    raw = ImagePalette.raw("BGR", b"\x01\x02\x03")
    assert (back(raw).rawmode, back(raw).dirty, back(raw).colors) == ("BGR", 1, raw.colors)
