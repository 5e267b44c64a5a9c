"""Compares two objects of any type by all that pickle would write of them, bit for bit.

Numbers and arrays are compared by their bits, so NaN equals NaN and 0.0 does not equal -0.0. Two objects that cannot be
compared count as different.
"""

import types
from collections import OrderedDict
from typing import Any

import numpy as np

from warmstore.records.format.array_interop import axis_order, is_tensor, to_numpy

_DEEPEST = 100
_PLAIN = (int, bool, str, bytes, bytearray, type(None))
_SETS = (frozenset, set)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def difference(first: Any, second: Any, *, by_order: bool = False) -> str:
    """Where two objects differ, in words; "" if they do not.

    Args:
        by_order: also compare the order of the axes of arrays in memory.
    """
    return _Comparison(by_order).difference(first, second, "", 0)


class _Comparison:
    def __init__(self, by_order: bool) -> None:
        self._by_order = by_order
        self._pairs: dict[tuple[int, int], tuple[Any, Any]] = {}  # compared, or being compared; they stay alive

    def difference(self, first: Any, second: Any, path: str, depth: int) -> str:
        """See the module. `path`: of the objects in the first ones."""
        if first is second:
            return ""
        if type(first) is not type(second):
            return f"{_at(path)} is a {type(second).__name__} and not a {type(first).__name__}"
        kind = type(first)
        if kind in _PLAIN or isinstance(first, _NAMED):
            return "" if first == second else f"{_at(path)} is {second!r:.60} and not {first!r:.60}"
        if kind in _SETS:  # in which 1, 1.0 and True are one
            same = first == second and sorted(map(repr, first)) == sorted(map(repr, second))
            return "" if same else f"{_at(path)} is {second!r:.60} and not {first!r:.60}"
        if kind in (float, complex) or isinstance(first, np.generic):
            return self._of_arrays(np.asarray(first), np.asarray(second), path, depth)
        pair = (id(first), id(second))
        if pair in self._pairs:
            return ""
        self._pairs[pair] = first, second
        if depth > _DEEPEST:
            return f"{_at(path)} is nested too deep to be compared"
        if kind is np.ndarray:
            return self._of_arrays(first, second, path, depth)
        if is_tensor(first) and first.device.type == "cpu" and not first.is_quantized and not first.is_sparse:
            if first.requires_grad != second.requires_grad:
                return f"{_at(path)} has requires_grad={second.requires_grad} and not {first.requires_grad}"
            return self._of_arrays(to_numpy(first.detach()), to_numpy(second.detach()), path, depth)
        if kind in (dict, OrderedDict):
            return self._of_items(list(first), list(first.values()), list(second), list(second.values()), path, depth)
        if kind in (list, tuple):
            return self._of_items(list(range(len(first))), first, list(range(len(second))), second, path, depth)
        return self._of_states(first, second, path, depth)

    def _of_arrays(self, first: Any, second: Any, path: str, depth: int) -> str:
        if first.dtype != second.dtype or first.shape != second.shape:
            return f"{_at(path)} is {second.dtype} {second.shape} and not {first.dtype} {first.shape}"
        if self._by_order and axis_order(first) != axis_order(second):
            return f"{_at(path)} has another order of axes in memory, on which sums depend"
        if first.dtype == object:
            numbers = list(range(first.size))
            return self._of_items(numbers, list(first.flat), numbers, list(second.flat), path, depth)
        return "" if first.tobytes() == second.tobytes() else f"{_at(path)} has other values"

    def _of_items(self, names: Any, values: Any, others: Any, other_values: Any, path: str, depth: int) -> str:
        if wrong := self._of_names(names, others, path):
            return wrong
        for name, value, other in zip(names, values, other_values, strict=True):
            if wrong := self.difference(value, other, f"{path}/{name}" if path else str(name), depth + 1):
                return wrong
        return ""

    def _of_names(self, names: list[Any], others: list[Any], path: str) -> str:
        same = list(map(type, names)) == list(map(type, others)) and names == others
        pairs = zip(names, others, strict=True) if same else ()
        same &= all(type(one) in _PLAIN or repr(one) == repr(other) for one, other in pairs)  # (1,) equals (True,)
        return "" if same else f"{_at(path)} has the entries {others!r:.60} and not {names!r:.60}"

    def _of_states(self, first: Any, second: Any, path: str, depth: int) -> str:
        """The difference of two objects by what pickle would write."""
        try:
            state, other = _state(first), _state(second)
        except Exception as error:  # pickling runs code of all kinds
            if not _compares(type(first)):
                return f"{_at(path)} cannot be compared: {error}"
            return "" if first == second else f"{_at(path)} is not equal"
        return self.difference(state, other, path, depth + 1)


def _compares(cls: type) -> bool:
    """Whether a class defines what equal means."""
    return any("__eq__" in vars(base) for base in cls.__mro__[:-1])


def _state(value: Any) -> Any:
    found = value.__reduce_ex__(2)
    if isinstance(found, str):
        return found
    maker, arguments, state, items, entries = (*found, None, None, None)[:5]
    listed = None if items is None else list(items)
    named = None if entries is None else dict(entries)
    return {"made by": maker, "arguments": arguments, "state": state, "items": listed, "entries": named}


def _at(path: str) -> str:
    return f"`{path}`" if path else "it"
