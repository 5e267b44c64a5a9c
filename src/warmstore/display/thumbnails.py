"""Thumbnails: arrays that look like images, and encoded images, as data URLs.

PNG files are written with zlib alone: Pillow is not among the dependencies that every installation has.
"""

import base64
import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np

from warmstore.display.html import Html, image

SIDE = 96
"""Pixels of the longer side of a thumbnail, at most."""

_LEAST = 8
"""Pixels of the shorter side of an array that is taken for an image. Smaller arrays are tables of numbers."""

_MOST_ENCODED = 64 << 10
"""Bytes of an encoded image that is shown as it is. Larger ones need Pillow, which makes them smaller."""

_MOST_DECODED = 8 << 20
_MOST_PIXELS = 50_000_000

_CHANNELS = (1, 3, 4)
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # of PNG, by channels
_SIGNATURES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif"}

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def as_pixels(value: Any) -> Pixels | None:
    """An array as the pixels of an image, [height, width, channels]; None if it does not look like one.

    Images are uint8, [height, width], [height, width, channels] or [channels, height, width], with 1, 3 or 4 channels.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return None
    pixels = value[..., None] if value.ndim == 2 else value
    if pixels.shape[2] not in _CHANNELS:
        if pixels.shape[0] not in _CHANNELS:
            return None
        pixels = np.moveaxis(pixels, 0, 2)
    return pixels if min(pixels.shape[:2]) >= _LEAST else None


def thumbnail(value: Any) -> Html | None:
    """A thumbnail of an array that looks like an image; None of any other value."""
    pixels = as_pixels(value)
    if pixels is None:
        return None
    small = _smaller(pixels)
    height, width = small.shape[:2]
    enlarged = max(SIDE // 2 // max(height, width), 1)
    url = f"data:image/png;base64,{base64.b64encode(png(small)).decode()}"
    shape = " x ".join(map(str, value.shape))
    return image(url, width * enlarged, height * enlarged, f"uint8 {shape}", pixelated=enlarged > 1)


def encoded_thumbnail(data: Any) -> Html | None:
    """An encoded image at the size of a thumbnail; None for other bytes, and for images that are too large."""
    head = bytes(data[:12])
    kind = next((name for signature, name in _SIGNATURES.items() if head.startswith(signature)), "")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        kind = "webp"
    if not kind or len(data) > _MOST_DECODED:
        return None
    shown = bytes(data) if len(data) <= _MOST_ENCODED else _decoded_smaller(bytes(data))
    if shown is None:
        return None
    mime = kind if len(data) <= _MOST_ENCODED else "png"
    return Html(
        f'<img src="data:image/{mime};base64,{base64.b64encode(shown).decode()}" alt="{kind}" '
        f'title="{kind}, {len(data):,} bytes" '
        f'style="max-width:{SIDE}px;max-height:{SIDE}px;width:auto;height:auto;margin:0">'
    )


def png(pixels: Pixels) -> bytes:
    """A PNG file of pixels [height, width, channels]: grey, RGB or RGBA."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter: 0, none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _decoded_smaller(data: bytes) -> bytes | None:
    """A large encoded image as a small PNG file; None without Pillow, and for files that it does not decode."""
    try:
        from PIL import Image
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as opened:
                if opened.width * opened.height > _MOST_PIXELS:
                    return None
                opened.draft("RGB", (SIDE, SIDE))
                opened.thumbnail((SIDE, SIDE))
                return png(np.array(opened.convert("RGB")))
        except Exception:
            return None


def _smaller(pixels: Pixels) -> Pixels:
    """Pixels whose longer side is at most `SIDE`: means of blocks, of at most 4 x 4 pixels each."""
    longer = max(pixels.shape[:2])
    every = -(-longer // SIDE)
    block = min(every, 4)
    step = every // block
    picked = pixels[::step, ::step] if step > 1 else pixels
    block = -(-max(picked.shape[:2]) // SIDE)
    if block == 1:
        return np.ascontiguousarray(picked)
    height, width = max(picked.shape[0] // block, 1), max(picked.shape[1] // block, 1)
    cut = picked[: height * block, : width * block]
    rows = min(block, cut.shape[0])
    columns = min(block, cut.shape[1])
    means = cut.reshape(height, rows, width, columns, -1).mean((1, 3))
    small: Pixels = means.astype(np.uint8)
    return small
