"""Texts of plain data in one pass: numbers, strings, dates, paths, and containers and simple objects of these.

A text shows exact types and contents, and which containers are the same object. Other values have no text here: the
walk records their parts.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import ipaddress
import math
import pathlib
import struct
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import xxhash

from warmstore.identity.object_state import attributes_of, full_name, slots_of

_LONGEST = 200
LONGEST_PATH = 1024
"""Bytes from this length on name no file."""
_DEEPEST = 40
_WORD = 1 << 64
_MANTISSA_OF_X87 = 63  # bits: a long double then has 10 bytes, and is stored in 12 or 16
_SAME_TYPE = 16  # a longer list becomes one text if all items have the same type


class NotPlain(Exception):
    """A value is not plain data."""


def _float(value: float) -> str:
    return repr(value) if not math.isnan(value) else f"nan {struct.pack('<d', value).hex()}"


def decimal_context_text(context: decimal.Context | None = None) -> str:
    """The text of a decimal context, or of the current one, without its flags, which calculations set."""
    return repr(context or decimal.getcontext()).partition(", flags")[0]


def digest_of(text: str) -> str:
    """The xxh3-128 of a text. Lone surrogates are allowed."""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def shortened(text: str) -> str:
    """A text; of a long text its beginning, length and hash."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:40]}... {len(text)} {digest_of(text)}"


def _int(value: int) -> str:
    if -_WORD < value < _WORD:
        return repr(value)
    return shortened(hex(value))  # Python refuses to write very long numbers in decimals


def _str(value: str) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else shortened(text)


def _datetime(value: Any) -> str:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        zone = getattr(value.tzinfo, "key", None)
        if zone is None:
            raise NotPlain
        return f"{value.replace(tzinfo=None)!r} fold {value.fold} zone {zone}"
    return repr(value)


def _scalar(value: np.generic) -> str:
    if value.dtype.hasobject:
        raise NotPlain
    is_whole = counted_bytes(value.dtype) is None
    content = value.tobytes() if is_whole else contiguous_bytes(np.asarray(value))
    return f"numpy {dtype_text(value.dtype)} {content.hex()}"


def _number(value: np.generic) -> str:
    number = value.item()  # NumPy's own text depends on its version and options
    return f"np.{type(value).__name__}({number!r})" if number == number else _scalar(value)


ATOMS: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    type(NotImplemented): repr,
    type(...): repr,
    bool: repr,
    int: _int,
    float: _float,
    complex: lambda value: f"complex({_float(value.real)}, {_float(value.imag)})",
    str: _str,
    bytes: lambda value: shortened(repr(value)) if len(value) < _LONGEST else _long_bytes(value),
    range: repr,
    datetime.date: repr,
    datetime.time: _datetime,
    datetime.datetime: _datetime,
    datetime.timedelta: repr,
    datetime.timezone: repr,
    decimal.Decimal: repr,
    fractions.Fraction: repr,
    uuid.UUID: repr,
    pathlib.PosixPath: repr,
    pathlib.PurePosixPath: repr,
    pathlib.PureWindowsPath: repr,
    ipaddress.IPv4Address: repr,
    ipaddress.IPv6Address: repr,
}
_NUMBERS = (np.bool_, np.integer, np.float16, np.float32, np.float64)
for _kind in {*np.sctypeDict.values()}:
    if _kind is not np.object_:
        ATOMS[_kind] = _number if _kind is not np.timedelta64 and issubclass(_kind, _NUMBERS) else _scalar
ATOMS[np.record] = _scalar

NAMES_A_FILE = frozenset((str, np.str_, pathlib.PosixPath, pathlib.PurePosixPath))
BYTES = frozenset((bytes, np.bytes_))
"""Types of bytes, which may name a file too."""
VOIDS = frozenset((np.void, np.record))
"""Types of the elements of structured arrays, whose fields may name files too."""

READ_ONLY = " read-only"
"""Part of the text of a read-only array. Copies and pickles of the array are writable."""

_CHEAP = frozenset((bool, int, float, type(None)))


def _long_bytes(value: bytes) -> str:
    return f"{value[:24]!r}... {len(value)} {xxhash.xxh3_128_hexdigest(value)}"


def atom_text(value: Any) -> str | None:
    """The text of a value without parts; None for any other value."""
    rule = ATOMS.get(type(value))
    if rule is None:
        return None
    try:
        return rule(value)
    except NotPlain:
        return None


class PlainTexts:
    """Makes texts of plain data. Collects the classes of objects, and the strings that may name files.

    Args:
        is_simple: Returns whether objects of a class count by their attributes alone.
        by_content: Whether an object that occurs again has its content as text, and not a reference to its first
            occurrence. Values that share objects then have independent texts.
        moved: Returns what stands for a path in a folder that may move; None for another text.
    """

    def __init__(
        self,
        is_simple: Callable[[type], bool],
        *,
        by_content: bool = False,
        moved: Callable[[str], str | None] | None = None,
    ) -> None:
        self.classes: dict[type, int] = {}
        self.strings: list[Any] = []
        self.alive: list[Any] = []
        self.has_decimals = False
        self.cycles = False  # whether an object contains itself
        self.has_moved = moved is not None
        self._is_simple = is_simple
        self._moved = moved
        self.by_content = by_content
        self._numbers: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._simple: dict[type, bool] = {}
        self._known_kinds: dict[type, tuple[object, bool]] = {}
        self._strings: dict[int, list[Any]] = {}

    def text(self, value: Any, depth: int = 0) -> str:
        """The text of a value.

        Raises:
            NotPlain: The value is not plain data, or nested more than 40 levels deep.
        """
        kind = type(value)
        rule = ATOMS.get(kind)
        if rule is not None:
            if kind in BYTES and 0 < len(value) < LONGEST_PATH and b"\0" not in value:
                self.strings.append(value)
            elif kind is decimal.Decimal:
                self.has_decimals = True
            elif kind in VOIDS:
                self.strings += texts_in(np.asarray(value))
            return self.named(value) if kind in NAMES_A_FILE else rule(value)
        if depth > _DEEPEST:
            raise NotPlain
        if kind is tuple:
            return f"({self._items(value, depth)})"
        if kind is frozenset:
            return f"frozenset({self._sorted(value, depth)})"
        rule_of = array_of if kind is np.ndarray else _CONTAINERS.get(kind)
        if rule_of is None:
            simple = self._simple.get(kind)
            if simple is None:
                simple = self._simple[kind] = self._is_simple(kind)
            if not simple:
                raise NotPlain
            rule_of = _object
        known = self._numbers.get(id(value))
        if known is not None:
            if id(value) in self._texts:
                self.strings += self._strings.get(id(value), ())
                return self._texts[id(value)]
            self.cycles = True
            return f"same as {known}"
        self._numbers[id(value)] = len(self._numbers)
        self.alive.append(value)
        before = len(self.strings)
        text = rule_of(self, value, depth)
        if self.by_content:
            if len(self.strings) > before:
                self._strings[id(value)] = self.strings[before:]
            if len(text) > _LONGEST:
                text = digest_of(text)
            self._texts[id(value)] = text
        return text

    def named(self, value: Any) -> str:
        """The text of a string or path that may name a file."""
        self.strings.append(value)
        moved = None if self._moved is None else self._moved(str(value))
        return ATOMS[type(value)](value) if moved is None else f"{type(value).__name__} {moved!r}"

    def known_kind(self, kind: type) -> tuple[object, bool]:
        """What stands for a class in texts, and whether its objects have state outside a `__dict__`."""
        known = self._known_kinds.get(kind)
        if known is None:
            number = self.classes.setdefault(kind, len(self.classes))
            has_slots = bool(slots_of(kind)) or not kind.__dictoffset__
            known = self._known_kinds[kind] = full_name(kind) if self.by_content else number, has_slots
        return known

    def _items(self, values: Any, depth: int) -> str:
        if len(values) > _SAME_TYPE and len(kinds := set(map(type, values))) == 1:
            kind = next(iter(kinds))
            if kind is str:
                self.strings += values
                moved = self._moved
                return text_of_strings(values if moved is None else [moved(text) or text for text in values])
            if kind in _CHEAP and kind is not float:
                with suppress(ValueError):  # of integers that Python refuses to write
                    return shortened(repr(list(values)))
        depth += 1
        if all(map(_CHEAP.__contains__, map(type, values))):
            return ", ".join(map(_text_of_cheap, values))
        return ", ".join([self.text(value, depth) for value in values])

    def _sorted(self, values: Any, depth: int) -> list[str]:
        before, first = len(self._numbers), len(self.strings)
        found: list[tuple[str, list[Any]]] = []
        for value in values:
            text = self.text(value, depth + 1)
            found.append((text, self.strings[first:]))
            del self.strings[first:]
        if len(self._numbers) != before:
            raise NotPlain  # the order of the numbers would differ in each process
        found.sort(key=itemgetter(0))
        self.strings += [string for _, strings in found for string in strings]
        return [text for text, _ in found]


def _text_of_cheap(value: Any) -> str:
    return ATOMS[type(value)](value)


def text_of_strings(values: Any) -> str:
    """One text for many strings: a hash of the strings and their lengths."""
    joined = "".join(values).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    digest = xxhash.xxh3_128(joined)
    digest.update(lengths.data)
    return f"{len(values)} str {digest.hexdigest()}"


def array_text(array: np.ndarray[Any, Any]) -> str:
    """The text of an array: dtype, shape, strides unless in C order, whether it is read-only, and content.

    Raises:
        NotPlain: The elements are objects.
    """
    return f"{layout_text(array)} {_content(array)}"


def _content(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.hasobject:
        raise NotPlain
    return xxhash.xxh3_128_hexdigest(contiguous_bytes(array))


def nbytes_of(value: Any) -> int:
    """The bytes of an array or tensor; 0 for one that cannot tell."""
    try:
        return int(value.nbytes)
    except (AttributeError, RuntimeError, TypeError):  # sparse tensors have no size, and nested ones symbolic sizes
        return 0


def layout_text(array: np.ndarray[Any, Any]) -> str:
    """The text of an array without its content."""
    return f"{_form(array)}{'' if array.flags.writeable else READ_ONLY}"


def _form(array: np.ndarray[Any, Any]) -> str:
    order = order_text(array.shape, array.strides, is_contiguous=array.flags.c_contiguous)
    return f"array {dtype_text(array.dtype)} {array.shape}{order}"


def dtype_text(dtype: np.dtype[Any]) -> str:
    """The text of a dtype, with its metadata and that of its fields."""
    if dtype.metadata is None and dtype.names is None:
        return repr(dtype)
    metadata = sorted(map(repr, (dtype.metadata or {}).items()))
    return f"{dtype!r} {metadata} {[dtype_text(dtype[name].base) for name in dtype.names or ()]}"


def contiguous_bytes(array: np.ndarray[Any, Any]) -> Any:
    """The elements of an array in logical order, as bytes, without padding."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.itemsize or not flat.size:
        return b""
    counted = counted_bytes(flat.dtype)
    found = flat.view(np.uint8)
    return found.data if counted is None else found.reshape(len(flat), -1)[:, counted].tobytes()


@lru_cache(maxsize=256)
def counted_bytes(dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Which bytes of an element hold its value, bool [itemsize]; None if all do. The others are whatever was there."""
    counted = np.zeros(dtype.itemsize, np.bool_)
    if dtype.subdtype is not None:
        part = counted_bytes(dtype.base)
        counted[:] = True if part is None else np.resize(part, len(counted))
    elif dtype.names is not None:
        for field in (dtype.fields or {}).values():
            part = counted_bytes(field[0])
            counted[field[1] : field[1] + field[0].itemsize] |= True if part is None else part
    elif dtype.char in "gG" and np.finfo(dtype).nmant == _MANTISSA_OF_X87:
        real = counted.reshape(2 if dtype.char == "G" else 1, -1)
        real[:, :10] = True
        counted = real[:, ::-1].reshape(-1) if not dtype.isnative else counted
    else:
        counted[:] = True
    return None if counted.all() else counted


def text_columns(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The array itself if its elements are str or bytes; of a structured array, the fields of these types."""
    if array.dtype.names is not None:
        return [column for name in array.dtype.names for column in text_columns(array[name])]
    return [array] if array.dtype.kind in "US" else []


def texts_in(array: np.ndarray[Any, Any]) -> list[str | bytes]:
    """The strings and bytes in an array without objects."""
    return [text for column in text_columns(array) for text in column.ravel().tolist()]


def order_text(shape: tuple[int, ...], strides: tuple[int, ...], *, is_contiguous: bool) -> str:
    """The strides of an array; "" in C order. Kernels may sum in the order of memory."""
    return "" if is_contiguous else f" strides {tuple(s for n, s in zip(shape, strides, strict=True) if n > 1)}"


def _object(plain: PlainTexts, value: Any, depth: int) -> str:
    kind = type(value)
    name, has_slots = plain.known_kind(kind)
    state: dict[str, Any] = attributes_of(value) if has_slots else value.__dict__
    parts, depth = [], depth + 1
    for label, attribute in state.items():
        kind = type(attribute)
        if not label.isidentifier():
            label = repr(label)
        if kind is int:  # inline: most attributes are integers, and there may be millions
            parts.append(f"{label}={attribute}" if -_WORD < attribute < _WORD else f"{label}={_int(attribute)}")
        elif kind is str:
            parts.append(f"{label}={plain.named(attribute)}")
        else:
            parts.append(f"{label}={plain.text(attribute, depth)}")
    return f"object {name}{{{', '.join(parts)}}}"


def array_of(plain: PlainTexts, value: Any, depth: int) -> str:
    """The text of an array within other plain data."""
    plain.strings += texts_in(value)
    return f"{_form(value)} {_content(value)}"


def _list(plain: PlainTexts, value: Any, depth: int) -> str:
    return f"[{plain._items(value, depth)}]"


def _set(plain: PlainTexts, value: Any, depth: int) -> str:
    return f"set({plain._sorted(value, depth)})"


def _dict(plain: PlainTexts, value: Any, depth: int) -> str:
    depth += 1
    name = "" if type(value) is dict else type(value).__name__
    return f"{name}{{{', '.join(_pairs(plain, value, depth))}}}"


def _pairs(plain: PlainTexts, value: Any, depth: int) -> list[str]:
    """The texts of the keys and values of a dict. One of texts, as a table of names, takes a third of the time."""
    if len(value) > _SAME_TYPE and not plain.has_moved and set(map(type, value)) == {str}:
        kinds = set(map(type, value.values()))
        if kinds <= _CHEAP:
            plain.strings += value
            return [f"{_str(key)}: {_text_of_cheap(item)}" for key, item in value.items()]
        if kinds == {str}:
            plain.strings += chain.from_iterable(value.items())
            return [f"{_str(key)}: {_str(item)}" for key, item in value.items()]
    return [f"{plain.text(key, depth)}: {plain.text(item, depth)}" for key, item in value.items()]


def _deque(plain: PlainTexts, value: Any, depth: int) -> str:
    return f"deque([{plain._items(list(value), depth)}], {value.maxlen})"


def _bytearray(plain: PlainTexts, value: Any, depth: int) -> str:
    return f"bytearray {_long_bytes(bytes(value))}"


_CONTAINERS: dict[type, Callable[[PlainTexts, Any, int], str]] = {
    list: _list, set: _set, dict: _dict, OrderedDict: _dict, Counter: _dict, deque: _deque, bytearray: _bytearray,
}  # fmt: skip
