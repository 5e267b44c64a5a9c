"""Steps to test with: importable, so that spawned workers find them."""

from typing import Any

import ml_dtypes
import numpy as np

KINDS = (
    "array",
    "varying",
    "dict",
    "tuple",
    "bytes",
    "text",
    "number",
    "scalar",
    "list",
    "mixed",
    "turned",
    "refused",
    "crops",
    "bfloat",
)


def make(index: int, kind: str) -> Any:
    """A value of some kind that follows from the index alone."""
    rng = np.random.default_rng(index)
    if kind == "array":
        return rng.random((3, 4), np.float32)
    if kind == "varying":
        return rng.integers(0, 100, (index % 4, 3))
    if kind == "dict":
        return {"x": rng.random((2, 3)), "label": index, "name": f"é{index}", "more": {"flag": index % 2 == 0}}
    if kind == "tuple":
        return rng.integers(0, 256, (5,), np.uint8), index / 3
    if kind == "bytes":
        return rng.bytes(index % 7)
    if kind == "text":
        return "ß" * (index % 5)
    if kind == "number":
        return index
    if kind == "scalar":
        return np.float16(index)
    if kind == "list":
        return list(range(index % 5))
    if kind == "turned":
        return rng.random((2, 3, 4)).transpose(2, 0, 1)
    if kind == "crops":
        return [rng.random((2, 2)), rng.random(index % 3)]
    if kind == "bfloat":
        return {"x": ml_dtypes.bfloat16(index), "y": rng.random(2).astype(ml_dtypes.bfloat16)}
    if kind == "refused":
        return Opaque(index)
    return make(index, KINDS[index % 5])


class Opaque:
    """What no store can keep."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


def change(value: Any, by: int = 1) -> Any:
    """Another value of the same kind."""
    if isinstance(value, np.ndarray):
        return (value.sum() + value + by).astype(value.dtype)
    return _inside(value, lambda part: change(part, by))


def change_in_place(value: Any) -> Any:
    """The same, written into the arrays that were given."""
    if isinstance(value, np.ndarray):
        value += np.ones((), value.dtype)
        return value
    return _inside(value, change_in_place)


def shake(value: Any, rng: np.random.Generator, most: int = 5) -> Any:
    """A value that depends on chance."""
    return change(value, int(rng.integers(0, most)))


def unwrap(value: Any) -> Any:
    """What is in an Opaque."""
    return value.value if isinstance(value, Opaque) else value


def _inside(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(function, value))
    if isinstance(value, bytes):
        return value[::-1]
    if isinstance(value, str | bool | list | Opaque):
        return value
    return value + type(value)(1)


def slow_image(index: int, side: int = 32) -> np.ndarray[Any, Any]:
    """An image."""
    return np.random.default_rng(index).integers(0, 256, (side, side, 3), np.uint8)


def flip(image: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Flip an image half of the time."""
    return np.ascontiguousarray(image[:, ::-1]) if rng.random() < 0.5 else image


def fail_at(index: int, bad: int) -> int:
    """Fail for one sample."""
    if index == bad:
        raise ValueError(f"sample {index} is broken")
    return index
