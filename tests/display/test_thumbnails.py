"""Arrays that look like images become PNG files that other libraries read, and encoded images are shown as they are."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from warmstore.display.thumbnails import as_pixels, encoded_thumbnail, png, thumbnail


def decoded(html: str) -> Image.Image:
    """The image of an `img` with a data URL."""
    data = re.search(r'src="data:image/\w+;base64,([^"]+)"', html)
    assert data is not None
    return Image.open(io.BytesIO(base64.b64decode(data[1])))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_png_files_hold_the_pixels(channels: int, mode: str) -> None:
    pixels = noise(9, 13, channels)
    opened = Image.open(io.BytesIO(png(pixels)))
    assert opened.mode == mode
    np.testing.assert_array_equal(np.asarray(opened).reshape(9, 13, channels), pixels)


@pytest.mark.parametrize(
    ("shape", "pixels"),
    [
        ((28, 28), (28, 28, 1)), ((28, 20, 1), (28, 20, 1)), ((28, 20, 3), (28, 20, 3)), ((28, 20, 4), (28, 20, 4)),
        ((3, 28, 20), (28, 20, 3)), ((1, 28, 20), (28, 20, 1)),
        ((7, 28), None), ((28,), None), ((5, 28, 20), None), ((2, 3, 28, 20), None), ((0, 0), None), ((3, 4, 4), None),
    ],
)  # fmt: skip
def test_which_arrays_look_like_images(shape: tuple[int, ...], pixels: tuple[int, ...] | None) -> None:
    found = as_pixels(noise(*shape))
    assert (None if found is None else found.shape) == pixels


@pytest.mark.parametrize("value", [noise(28, 28).astype(np.float32), noise(28, 28) > 3, noise(28, 28).tolist(), b"x"])
def test_other_values_do_not(value: object) -> None:
    assert thumbnail(value) is None


def test_channels_come_first_or_last() -> None:
    pixels = noise(20, 16, 3)
    first, last = thumbnail(np.moveaxis(pixels, 2, 0).copy()), thumbnail(pixels)
    assert first is not None
    assert last is not None
    np.testing.assert_array_equal(np.asarray(decoded(first)), pixels)
    np.testing.assert_array_equal(np.asarray(decoded(last)), pixels)


@pytest.mark.parametrize("shape", [(97, 96), (3000, 2000, 3), (8, 5000), (5000, 8, 3), (3, 500, 700), (600, 9)])
def test_large_images_become_small(shape: tuple[int, ...]) -> None:
    small = decoded(str(thumbnail(np.full(shape, 77, np.uint8))))
    assert max(small.size) <= 96
    assert set(np.asarray(small).ravel().tolist()) == {77}


def test_small_images_are_means_of_blocks() -> None:
    pixels = np.zeros((192, 192), np.uint8)
    pixels[::2] = 100
    assert set(np.asarray(decoded(str(thumbnail(pixels)))).ravel().tolist()) == {50}


def test_tiny_images_are_enlarged_without_smoothing() -> None:
    html = str(thumbnail(noise(8, 8)))
    assert 'width="48"' in html
    assert "pixelated" in html
    assert decoded(html).size == (8, 8)


def encoded(kind: str, side: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(noise(side, side, 3)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "webp"])
def test_small_encoded_images_are_shown_as_they_are(kind: str) -> None:
    data = encoded(kind, 40)
    html = encoded_thumbnail(memoryview(data))
    assert html is not None
    assert f"data:image/{kind};base64,{base64.b64encode(data).decode()}" in html


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_large_encoded_images_are_made_smaller(kind: str) -> None:
    data = encoded(kind, 400)
    assert len(data) > 64 << 10
    assert max(decoded(str(encoded_thumbnail(data))).size) <= 96


@pytest.mark.parametrize("data", [b"", b"GIF", b"text", b"\xff\xd8\xff" + bytes(100_000), bytes(9 << 20)])
def test_other_bytes_are_no_images(data: bytes) -> None:
    assert encoded_thumbnail(data) is None


def test_too_many_pixels_are_not_decoded() -> None:
    file = io.BytesIO()
    Image.new("L", (9000, 9000)).save(file, "png")  # 80 kB
    assert encoded_thumbnail(file.getvalue()) is None
