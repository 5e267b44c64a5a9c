"""A folder of images with a subfolder for each class, in the order of torchvision's ImageFolder.

Fields: `image`, the file's bytes or its pixels; `label`, the number of its class; `path`, from the folder on. The
names of the classes stand in the store's metadata under "classes".
"""

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import BadSource
from warmstore.records.convert.formats import IMAGES
from warmstore.records.convert.iterable import columns_of_records
from warmstore.records.convert.source import BATCH_BYTES, BATCH_ROWS, Batch, Request, Source, needed
from warmstore.records.fields import Array, Bytes, Field, Fields, Ragged, Text

_CHANNELS = 3
_WORKERS = min(8, os.cpu_count() or 1)


def list_files(folder: Path) -> list[Path]:
    """Every image below every class, classes and files in the order of their names."""
    found: list[Path] = []
    for one in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for below, folders, names in os.walk(one, followlinks=True):
            folders.sort()
            found += [Path(below, name) for name in names if Path(name).suffix.lower() in IMAGES]
    if not found:
        raise BadSource(f"{folder} needs a subfolder with images for each class, such as {folder / 'cat' / '1.jpg'}")
    # torchvision walks folders in the order of their names, and files in a folder too.
    return sorted(found, key=lambda path: (path.relative_to(folder).parts[0], str(path.parent), path.name))


def open_source(request: Request, files: Sequence[Path]) -> Source:
    assert request.paths
    if len(request.paths) > 1:
        raise BadSource(f"{len(request.paths)} folders of images; convert one, with a subfolder for each class")
    folder = request.paths[0]
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    numbers = {name: number for number, name in enumerate(classes)}
    if request.decode:
        needed("PIL.Image", "Pillow", "convert")

    def infer(name: str) -> Field:
        if name == "image":
            return _image_field(request, files)
        return Array("int64") if name == "label" else Text()

    fields = request.choose(["image", "label", "path"], infer)

    def record(file: Path) -> dict[str, Any]:
        inside = file.relative_to(folder)
        values = {"label": numbers[inside.parts[0]], "path": inside.as_posix()}
        if "image" in fields:
            values["image"] = _decoded(file, request.size) if request.decode else file.read_bytes()
        return values

    return Source(fields, lambda start: _read(files[start:], record, fields), len(files), metadata={"classes": classes})


def _read(files: Sequence[Path], record: Any, fields: Fields) -> Iterator[Batch]:
    group: list[dict[str, Any]] = []
    size = 0
    with ThreadPoolExecutor(_WORKERS) as pool:
        # A few at a time: decoded images are large, and what is being decoded is in memory too.
        for first in range(0, len(files), 2 * _WORKERS):
            for values in pool.map(record, files[first : first + 2 * _WORKERS]):
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
    with ThreadPoolExecutor(_WORKERS) as pool:
        sizes = set(pool.map(_size_of, files))
    return Array("uint8", (*sizes.pop(), _CHANNELS)) if len(sizes) == 1 else Ragged("uint8", 3)


def _size_of(file: Path) -> tuple[int, int]:
    """Height and width, from the file's header."""
    with _opened(file) as image:
        return image.height, image.width


def _decoded(file: Path, size: tuple[int, int] | None) -> np.ndarray[Any, Any]:
    """uint8 [height, width, 3]."""
    from PIL import Image

    with _opened(file) as image:
        try:
            pixels = image.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise BadSource(f"{file} cannot be decoded: {error}") from None
        if size is not None and (pixels.height, pixels.width) != size:
            pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.asarray(pixels)


def _opened(file: Path) -> Any:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(file.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        raise BadSource(f"{file} is not an image that Pillow can read: {error}") from None
