"""A folder of images with a subfolder for each class, in the order of torchvision's ImageFolder.

Fields: `image`, the file's bytes or pixels; `label`, the number of the class; `path`, relative to the folder. The
store's metadata has the names of the classes under "classes".
"""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.known_formats import FORMATS, IMAGES
from warmstore.converting.record_columns import columns_of_records
from warmstore.converting.record_source import BATCH_BYTES, BATCH_ROWS, RecordSource, Request, SourceBatch
from warmstore.converting.source_paths import files_below
from warmstore.errors import BadSource, UnsupportedType
from warmstore.extras import imported
from warmstore.records.format.fields import Array, Bytes, Field, Fields, Ragged, Text
from warmstore.storage.threads import ThreadPool, result_of

_CHANNELS = 3
_DEEP = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
_HIDDEN = FORMATS["images"].hidden
_WORKERS = min(8, os.cpu_count() or 1)


def list_files(folder: Path) -> list[Path]:
    """The images of all classes, classes and files sorted by name."""
    found: list[Path] = []
    for class_folder in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(_HIDDEN)
    ):
        found += [path for path in files_below(class_folder, _HIDDEN) if path.suffix.lower() in IMAGES]
    if not found:
        raise BadSource(f"{folder} needs a subfolder with images for each class, such as {folder / 'cat' / '1.jpg'}")
    beside = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith(_HIDDEN))
    loose = sorted(path for path in beside if path.suffix.lower() in IMAGES)
    if loose:
        raise BadSource(f"{loose[0]} lies in no subfolder, so it has no class; move it into one, or out of {folder}")
    # The order of torchvision: folders by name, then the files of a folder by name.
    return sorted(found, key=lambda path: (path.relative_to(folder).parts[0], str(path.parent), path.name))


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    assert request.paths
    if len(request.paths) > 1:
        raise BadSource(f"{len(request.paths)} folders of images; convert one, with a subfolder for each class")
    folder = request.paths[0]
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(_HIDDEN))
    numbers = {name: number for number, name in enumerate(classes)}
    if request.decode:
        imported("PIL.Image", "this format")

    def infer(name: str) -> Field:
        if name == "image":
            return _image_field(request, files)
        return Array("int64") if name == "label" else Text()

    fields = request.choose(["image", "label", "path"], infer)

    def record(file: Path) -> dict[str, Any]:
        inside = file.relative_to(folder)
        values = {"label": numbers[inside.parts[0]], "path": inside.as_posix()}
        if "image" in fields:
            data = file.read_bytes()
            values["image"] = decoded(data, str(file), request.size) if request.decode else data
        return values

    return RecordSource(
        fields, lambda start: _read(files[start:], record, fields), len(files), metadata={"classes": classes}
    )


def _read(files: Sequence[Path], record: Any, fields: Fields) -> Iterator[SourceBatch]:
    group: list[dict[str, Any]] = []
    size = 0
    with ThreadPool(_WORKERS) as pool:
        # Few files at a time: all images that are being decoded are in memory.
        for first in range(0, len(files), 2 * _WORKERS):
            for future in [pool.submit(record, file) for file in files[first : first + 2 * _WORKERS]]:
                values = result_of(future)
                group.append(values)
                image = values.get("image", b"")
                size += image.nbytes if isinstance(image, np.ndarray) else len(image)
            if size >= BATCH_BYTES or len(group) >= BATCH_ROWS:
                yield columns_of_records(group, fields)
                group, size = [], 0
    if group:
        yield columns_of_records(group, fields)


def _image_field(request: Request, files: Sequence[Path]) -> Field:
    if not request.decode:
        return Bytes()
    if request.size is not None:
        return Array("uint8", (*request.size, _CHANNELS))
    with ThreadPool(_WORKERS) as pool:
        futures = [pool.submit(lambda file: size_of(file.read_bytes(), str(file)), file) for file in files]
        sizes = {result_of(future) for future in futures}
    return Array("uint8", (*sizes.pop(), _CHANNELS)) if len(sizes) == 1 else Ragged("uint8", 3)


def size_of(data: bytes, where: str) -> tuple[int, int]:
    """Height and width of an image file, from its header."""
    with _opened(data, where) as image:
        return image.height, image.width


def decoded(data: bytes, where: str, size: tuple[int, int] | None = None) -> np.ndarray[Any, Any]:
    """The pixels of an image file, uint8 [height, width, 3], resized to `size` if given. Of colours with 16 bits a
    channel these are the upper 8, as Pillow reads them.

    Raises:
        BadSource: the file is damaged; the message has `where`. UnsupportedType: gray pixels have more than 8 bits, of
            which Pillow would make other shades.
    """
    from PIL import Image

    with _opened(data, where) as image:
        if image.mode in _DEEP:
            raise UnsupportedType(
                f"{where} has pixels of more than 8 bits (mode {image.mode}), which decode=True would cut. Convert the "
                "file as it is, without decode"
            )
        try:
            pixels = image.convert("RGB")
        except Exception as error:  # Pillow's decoders raise errors of any type
            raise BadSource(f"{where} cannot be decoded: {error}") from None
        if size is not None and (pixels.height, pixels.width) != size:
            pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.asarray(pixels)


def _opened(data: bytes, where: str) -> Any:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(data))
    except Exception as error:  # Pillow's decoders raise errors of any type
        raise BadSource(f"{where} is not an image that Pillow can read: {error}") from None
