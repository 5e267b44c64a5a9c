"""Rules of NumPy: arrays, memory maps, subclasses of arrays, dtypes and universal functions.

An array is its dtype, shape, memory layout and content. Two arrays in the same memory differ from two copies.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from warmstore.identity.kinds.registry import rule
from warmstore.identity.named_files import content_of, stat_of
from warmstore.identity.origin import origin_of_name
from warmstore.identity.places import Place
from warmstore.identity.plain_data import array_text, dtype_text, layout_text
from warmstore.identity.walk import Walk


@rule(np.ndarray)
def _array(walk: Walk, place: Place, value: Any) -> None:
    if value.dtype.hasobject:
        walk.fact(place, f"array {dtype_text(value.dtype)} {value.shape}")
        walk.watch(value.flat)
        walk.whole(place + ".<elements>", value.reshape(-1).tolist())
        return
    base = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    known = walk.memory.setdefault(id(base), place)
    if known != place:
        walk.fact(place + ".<memory>", f"same as {walk.key_of(known)}")
    walk.fact(
        place, layout_text(value) if walk.settings.tensors == "layout" else walk.watched_text(place, value, array_text)
    )


@rule(np.memmap)
def _mapped(walk: Walk, place: Place, value: Any) -> None:
    if value.mode == "r" and isinstance(value.base, mmap.mmap) and (found := stat_of(str(value.filename))):
        # A read-only mapping has the content of its file: the size and time of the file suffice.
        walk.fact(place, f"mapped {dtype_text(value.dtype)} {value.shape} {value.strides} {value.offset}")
        if walk.settings.files == "content":
            walk.fact(place + ".<file>", content_of(str(value.filename), found))
        else:
            walk.file(place + ".filename", str(value.filename))
        return
    walk.fact(place, walk.watched_text(place, np.asarray(value), array_text))


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array is a view of a mapped file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def record_content(walk: Walk, place: Place, value: Any) -> None:
    """Record the content of arrays that are not inputs of compiled code: tracing may make constants of them."""
    if walk.settings.tensors == "layout":
        walk.fact(place + ".<content>", walk.apart(value, tensors="content"))


def array_subclass(walk: Walk, place: Place, value: Any) -> None:
    """Record an object of a subclass of `numpy.ndarray`."""
    walk.fact(place, f"object of {walk.cls(type(value))}")
    record_content(walk, place, value)
    walk.watch_attributes(value)
    if isinstance(value, np.ma.MaskedArray):
        parts = {"data": value.data, "mask": np.ma.getmaskarray(value), "fill_value": value.fill_value}
    else:
        parts = {"<array>": value.view(np.ndarray)}
    walk.attributes(place, {**{k: v for k, v in vars(value).items() if not k.startswith("_")}, **parts})


@rule(*{type(np.dtype(name)) for name in np.sctypeDict.values()}, type(np.dtype([("a", "i4")])))
def dtype(walk: Walk, place: Place, value: Any) -> None:
    """Record a dtype."""
    walk.fact(place, f"dtype {dtype_text(value)}")


@rule(np.ufunc)
def _ufunc(walk: Walk, place: Place, value: Any) -> None:
    name: str = value.__name__
    module = "numpy" if getattr(np, name, None) is value else _module_of(value)
    if module is not None:
        walk.origin(origin_of_name(module))
        walk.fact(place, f"{module}.{name}")
    else:
        walk.cannot_tell(place, "the Python function that a ufunc was made from is unknown")


def _module_of(ufunc: Any) -> str | None:
    for name in ("scipy.special", "scipy.special._ufuncs", "numpy.linalg._umath_linalg", "ml_dtypes"):
        module = sys.modules.get(name)
        if module is not None and any(value is ufunc for value in vars(module).values()):
            return name
    return None


@rule(np.vectorize)
def _vectorize(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"object of {walk.cls(type(value))}")
    # `_ufunc` is a cache that the first call fills; it follows from the other attributes.
    walk.attributes(place, {name: part for name, part in vars(value).items() if name not in ("_ufunc", "__doc__")})
