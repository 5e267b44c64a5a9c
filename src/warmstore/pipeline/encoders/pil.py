"""Encoders of Pillow: plain images with their palette and `info`, and the values that formats put into `info`.

An image of a file format, such as a `JpegImageFile`, is tied to its file and has no encoder.
"""

from typing import Any

import numpy as np
from PIL import Image, ImagePalette
from PIL.PngImagePlugin import iTXt
from PIL.TiffImagePlugin import IFDRational

from warmstore.errors import UnsupportedType
from warmstore.pipeline.encoders.comparison import difference
from warmstore.pipeline.encoders.encoder import Bits, Encoder

_ATTRIBUTES = frozenset(vars(Image.new("L", (1, 1))))
_PALETTE = frozenset(vars(ImagePalette.ImagePalette()))


def _encode_image(image: Image.Image) -> dict[str, Any]:
    """Pixels as uint8 [height, bytes of a row]; with the attributes that the program has added."""
    _check_exif(image)
    width, height = image.size
    data = image.tobytes()
    pixels = np.frombuffer(data, np.uint8).reshape(height, -1) if data else np.zeros((0, 0), np.uint8)
    palette = None
    if image.im.mode in ("P", "PA"):
        mode = image.im.getpalettemode()
        palette = [mode, image.im.getpalette(mode, mode)]
    parts = {
        "mode": image.mode,
        "size": [width, height],
        "pixels": pixels,
        "palette": image.palette,
        "colors": palette,
        "info": image.info,
    }
    added = {name: value for name, value in vars(image).items() if name not in _ATTRIBUTES}
    return {**parts, "added": added} if added else parts


def _decode_image(parts: dict[str, Any]) -> Image.Image:
    mode, size = parts["mode"], tuple(parts["size"])
    image = Image.new(mode, size)
    if parts["pixels"].size:
        image.frombytes(parts["pixels"].data)
    if parts["colors"] is not None:
        palette_mode, colors = parts["colors"]
        image.im.putpalette(palette_mode, palette_mode, colors)
    image.palette = parts["palette"]
    image.info = parts["info"]
    vars(image).update(parts.get("added", {}))
    return image


def _check_exif(image: Image.Image) -> None:
    """Check that the image has no EXIF data but that of its `info`.

    Raises:
        UnsupportedType: it has been changed.
    """
    if getattr(image, "_exif", None) is None:
        return
    blank = Image.new("L", (1, 1))
    blank.info = image.info
    if wrong := difference(_exif_of(blank), _exif_of(image)):
        raise UnsupportedType(
            f"the EXIF data of an image was changed: {wrong}; set image.info['exif'] = image.getexif().tobytes() and "
            "return image.copy()"
        )


def _exif_of(image: Image.Image) -> Any:
    exif = image.getexif()
    return dict(exif), exif.tobytes() if exif else b""


def _encode_palette(palette: Any) -> dict[str, Any]:
    colors = vars(palette).get("_colors")
    fresh = palette.copy()
    if colors is not None and difference(fresh.colors, colors):
        raise UnsupportedType("the colours of a palette were changed; return image.copy()")
    if not _PALETTE.issuperset(vars(palette)):
        raise UnsupportedType(f"a palette has the attributes {sorted(vars(palette))}; return image.copy()")
    return {"mode": palette.mode, "rawmode": palette.rawmode, "palette": palette.palette, "dirty": palette.dirty}


def _decode_palette(parts: dict[str, Any]) -> Any:
    made = ImagePalette.ImagePalette(parts["mode"])
    made.rawmode, made.palette, made.dirty = parts["rawmode"], parts["palette"], parts["dirty"]
    return made


def _same_image(first: Image.Image, second: Image.Image) -> bool:
    return not difference(_comparable(first), _comparable(second))


def _comparable(image: Image.Image) -> Any:
    parts = _encode_image(image)
    palette = parts["palette"]
    return {**parts, "palette": palette and _encode_palette(palette)}


def _same_palette(first: Any, second: Any) -> bool:
    return not difference(_encode_palette(first), _encode_palette(second))


def _memory(image: Image.Image) -> list[Bits]:
    """The memory of an image that has none of its own, as `Image.fromarray` makes it."""
    if not image.readonly:
        return []
    import pyarrow as pa

    try:
        buffers = pa.array(image).buffers()
    except Exception as error:  # by the version of Pillow
        raise UnsupportedType(
            f"an image over other memory, as of Image.fromarray, shares it: {error}; copy() it"
        ) from error
    return [np.frombuffer(buffer, np.uint8) for buffer in buffers if buffer is not None and buffer.size]


ENCODERS = [
    Encoder(Image.Image, _encode_image, _decode_image, _same_image, "1", is_own=True, memory=_memory),
    Encoder(ImagePalette.ImagePalette, _encode_palette, _decode_palette, _same_palette, "1", is_own=True),
    Encoder(
        iTXt, lambda text: [str(text), text.lang, text.tkey], lambda parts: iTXt(*parts), version="1", is_own=True,
        is_mutable=False,
    ),
    Encoder(
        IFDRational, lambda value: [value.numerator, value.denominator], lambda parts: IFDRational(*parts), version="1",
        is_own=True, is_mutable=False,
    ),
]  # fmt: skip
