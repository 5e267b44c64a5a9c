"""Rules of NumPy: arrays, memory maps, subclasses of arrays, dtypes and universal functions.

An array is its dtype, shape, memory layout and content. Two arrays in the same memory differ from two copies.
"""

from __future__ import annotations

import mmap
import sys
from functools import partial
from typing import Any

import numpy as np
import xxhash

from warmstore.identity.kinds.registry import rule
from warmstore.identity.named_files import content_of, stat_of
from warmstore.identity.origin import origin_of_name
from warmstore.identity.places import Place
from warmstore.identity.plain_data import array_text, dtype_text, layout_text, texts_in
from warmstore.identity.settled_state import LEFT, form_of
from warmstore.identity.walk import Walk

_AT_ONCE = 1 << 17  # bytes. Every check looks at arrays of objects up to this size
_OF_MASK = frozenset(("_mask", "_sharedmask", "_fill_value", "_basedict"))
"""Attributes of masked arrays that are recorded otherwise, or that say how to copy."""


@rule(np.ndarray)
def _array(walk: Walk, place: Place, value: Any) -> None:
    if value.dtype.hasobject:
        walk.fact(place, f"array {dtype_text(value.dtype)} {value.shape}")
        walk.watch_probe(partial(form_of, value))
        if value.nbytes <= _AT_ONCE:
            walk.watch_cell(value.tobytes)  # the addresses of its elements
        elif walk.settings.watch is not None:
            walk.settings.watch.add_state(lambda: xxhash.xxh3_128_hexdigest(value.tobytes()))
        walk.whole(place + ".<elements>", value.reshape(-1).tolist())
        return
    base = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    known = walk.memory.setdefault(id(base), place)
    if known != place:
        offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        walk.fact(place + ".<memory>", f"same as {walk.key_of(known)} from {offset} bytes on")
    is_layout = walk.settings.tensors == "layout"
    text = layout_text(value) if is_layout else walk.watched_text(place, value, array_text)
    if text != LEFT:
        walk.origin(origin_of_name("numpy"))  # code may reach its operators without its name, as in `a @ b`
    walk.fact(place, text)
    walk.strings(place, texts_in(value))


@rule(np.memmap)
def _mapped(walk: Walk, place: Place, value: Any) -> None:
    walk.strings(place, texts_in(value.view(np.ndarray)))
    if value.mode == "r" and isinstance(value.base, mmap.mmap) and stat_of(str(value.filename)):
        # A read-only mapping has the content of its file: the size and time of the file suffice.
        walk.fact(place, f"mapped {dtype_text(value.dtype)} {value.shape} {value.strides} {value.offset}")
        if walk.settings.files == "content":
            walk.state(place + ".<file>", lambda: _content_text(str(value.filename)))
        else:
            walk.file(place + ".filename", str(value.filename))
        return
    walk.fact(place, walk.watched_text(place, value, _text_of_subclass))


def _text_of_subclass(value: Any) -> str:
    return array_text(value.view(np.ndarray))


def _text_of_masked(value: Any) -> str:
    mask = value.mask
    return f"{array_text(value.data)} mask {'' if mask is np.ma.nomask else array_text(np.asarray(mask))}"


def _content_text(path: str) -> str:
    found = stat_of(path)
    return "" if found is None else content_of(path, found)


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
    is_masked = isinstance(value, np.ma.MaskedArray)
    walk.attributes(place, {name: part for name, part in vars(value).items() if not is_masked or name not in _OF_MASK})
    if is_masked:
        walk.whole(place + ".fill_value", value.fill_value)
        walk.watch_read(partial(getattr, value, "fill_value"))  # is set in place
    if value.dtype.hasobject:
        walk.whole(place + ".<array>", value.view(np.ndarray))
        if is_masked:
            walk.whole(place + ".<mask>", np.ma.getmaskarray(value))
    else:  # a view would be another object in each walk
        text = _text_of_masked if is_masked else _text_of_subclass
        walk.fact(place + ".<array>", walk.watched_text(place, value, text))
        walk.strings(place, texts_in(value.view(np.ndarray)))


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
    state = {name: part for name, part in vars(value).items() if name not in ("_ufunc", "__doc__")}
    walk.watch_items(vars(value), tuple(state))
    walk.attributes(place, state)
