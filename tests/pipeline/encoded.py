"""Samples of types that encoders keep, steps that see all of them and write to them, and encoders of a program."""

from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw

KINDS = (
    "image",
    "palette",
    "exif",
    "gray",
    "images",
    "text",
    "bytes",
    "words",
    "objects",
    "views",
    "scalar",
    "array",
    "slice",
    "dictionary",
    "table",
    "track",
    "tracks",
)


class Track:
    """Sound, as a program may have it: an array of its own, and what was found out about it."""

    def __init__(self, sound: Any, rate: int, tags: Any = None) -> None:
        self.sound = sound
        self.rate = rate
        self.tags = [] if tags is None else tags


class Clip(Track):
    """A subclass, which has no encoder."""


def encode(track: Track) -> Any:
    return {"sound": track.sound, "rate": track.rate, "tags": track.tags}


def decode(parts: Any) -> Track:
    return Track(parts["sound"], parts["rate"], parts["tags"])


def make(index: int, kind: str) -> Any:
    """A sample of some kind that follows from the index alone."""
    rng = np.random.default_rng(index)
    pixels = rng.integers(0, 256, (6 + index % 2, 5, 3), np.uint8)
    made: Any
    if kind == "image":
        made = Image.frombytes("RGB", pixels.shape[1::-1], pixels.tobytes())
        made.info.update(dpi=(72, 72.5), comment=b"\xff", chunks=[index, None])
        made.label = index  # an attribute of the program
    elif kind == "palette":
        made = Image.frombytes("RGB", pixels.shape[1::-1], pixels.tobytes()).quantize(5)
        made.info["transparency"] = 1
    elif kind == "exif":
        made = Image.new("L", (4, 3), index)
        exif = made.getexif()
        exif[0x0112] = 1 + index % 8
        made.info["exif"] = exif.tobytes()
    elif kind == "gray":
        made = Image.fromarray(pixels[:, :, 0].copy())
    elif kind == "images":
        image = Image.new(("1", "L", "I;16", "F", "CMYK", "LA")[index % 6], (9, 2), index)
        made = {"first": image, "again": image, "info": image.info}
    elif kind == "text":
        made = [f"\ud800{index}", "\ud83d\ude00", "\x00", "😀", ""]
    elif kind == "bytes":
        made = (bytes(index % 3), bytearray(b"\x00\xff"), memoryview(b"ab"))
    elif kind == "words":
        words = np.array([f"word {index}", "\ud800", "ß" * (1 + index % 2)])
        made = {"words": words, "first": words[0], "rest": words[1:], "swapped": pixels[0].astype(">i4")}
    elif kind == "objects":
        made = np.empty((2, 3), object)
        shared = [index, [None]]
        for at, value in enumerate([None, shared, shared, pixels[0], "ü", (1, 2.5)]):
            made.flat[at] = value
        made = made.T if index % 2 else made
    elif kind == "views":
        whole = np.empty(6, object)
        whole[:] = [index, None, [index], "a", 2.5, b"b"]
        made = {"whole": whole, "tail": whole[2:], "turned": whole[::-2], "entry": whole[2], "x": pixels}
        made["row"] = pixels[1]
    elif kind == "scalar":
        made = [pa.scalar(index), pa.scalar(None, pa.string()), pa.scalar({"a": [index]})]
    elif kind == "array":
        made = pa.array([index, None, float("nan"), -0.0], pa.float64())
    elif kind == "slice":
        made = pa.array([None, "a", "bc", None, "d" * index], pa.large_string())[1 + index % 2 :]
    elif kind == "dictionary":
        made = pa.array(["b", "a", None, "b"]).dictionary_encode()[index % 3 :]
    elif kind == "table":
        words = pa.field("w", pa.list_(pa.string()), nullable=False)
        fields = [pa.field("n", pa.int8(), metadata={"unit": "m"}), words]
        chunks = [[1, None], [index]], [[["x"], []], [["y", None]]]
        made = pa.table([pa.chunked_array(each) for each in chunks], pa.schema(fields, metadata={"by": str(index)}))
    elif kind == "track":
        made = Track(pixels[0].astype(float), 16_000 + index, [f"tag {index}"])
    else:
        track = Track(pixels, index, ["a"])
        made = {"x": track.sound, "track": track, "again": track, "tags": track.tags, "part": track.sound[1:]}
    return made


def make_pair(pair: tuple[int, str]) -> Any:
    """A sample of the source's index and kind."""
    return make(*pair)


def seen(value: Any) -> Any:
    """All that a step can tell of a value, in types that any version of the library keeps."""
    if isinstance(value, Image.Image):
        palette = value.palette
        return {
            "type": type(value).__name__, "mode": value.mode, "size": list(value.size), "data": value.tobytes(),
            "core": value.im.mode, "info": seen(value.info), "exif": repr(dict(value.getexif())),
            "as colours": value.convert("RGBA").tobytes() if value.mode in ("P", "L", "RGB") else None,
            "palette": palette and [palette.mode, palette.rawmode, bytes(palette.palette), palette.dirty],
            "label": getattr(value, "label", None), "names": sorted(set(vars(value)) - {"_exif"}),
        }  # fmt: skip
    if isinstance(value, pa.Table | pa.RecordBatch):
        chunks = [[len(chunk) for chunk in column.chunks] for column in value.columns]
        return [type(value).__name__, repr(value.schema), seen(value.to_pydict()), chunks]
    if isinstance(value, pa.Array | pa.Scalar):
        dictionary = value.dictionary.to_pylist() if isinstance(value, pa.DictionaryArray) else None
        listed = value.to_pylist() if isinstance(value, pa.Array) else value.as_py()
        return [type(value).__name__, repr(value.type), seen(listed), dictionary]
    if isinstance(value, Track):
        return [type(value).__name__, seen(vars(value))]
    if isinstance(value, np.ndarray):
        order = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
        content = seen(list(value.flat)) if value.dtype == object else value.tobytes()
        return ["array", str(value.dtype), list(value.shape), order, content, value.flags.writeable]
    if isinstance(value, dict):
        return [type(value).__name__, [[key, seen(part)] for key, part in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [seen(part) for part in value]]
    return [type(value).__name__, repr(bytes(value) if isinstance(value, memoryview) else value)]


def same(first: Any, second: Any) -> bool:
    """Whether a step can tell no difference."""
    return bool(seen(first) == seen(second))


def written(value: Any) -> Any:
    """What a step sees after it has written to every part that can be written: sharing shows."""
    _write(value, set())
    return repr(seen(value))


def _write(value: Any, done: set[int]) -> None:
    if id(value) in done:
        return
    done.add(id(value))
    if isinstance(value, Image.Image):
        ImageDraw.Draw(value).point((1, 1), 1 if value.mode in ("1", "L", "I;16", "F", "P") else None)
        value.info["seen"] = len(value.info)
    elif isinstance(value, Track):
        value.rate += 1
        _write(value.sound, done)
        _write(value.tags, done)
    elif isinstance(value, np.ndarray) and value.dtype == object:
        for part in value.flat:
            _write(part, done)
        value[(-1,) * value.ndim] = f"written {len(done)}"
    elif isinstance(value, np.ndarray) and value.dtype.kind == "U":
        value[-1] = "w"
    elif isinstance(value, np.ndarray):
        value += np.ones((), value.dtype)
    elif isinstance(value, bytearray):
        value += b"w"
    elif isinstance(value, dict):
        for part in list(value.values()):
            _write(part, done)
    elif isinstance(value, list):
        for part in list(value):
            _write(part, done)
        value.append(len(done))
