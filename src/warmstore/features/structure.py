"""The shape of a module's output: which parts are per sample, and how to put a batch together again.

An output is taken apart into leaves, each of which becomes a field of the cache's store. What is no container, no
array and not one value per sample is a constant: it is part of the structure and must be the same in every batch. So
are arrays that `out_dims` marks with None.
"""

import dataclasses
import json
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from warmstore.errors import AmbiguousBatch, SchemaMismatch, UnsupportedType
from warmstore.features.constants import constant_array, restored_array
from warmstore.features.out_dims import UNTOLD, dimension, spread
from warmstore.features.pickled import pickled, unpickled
from warmstore.records.arrays import to_numpy
from warmstore.records.fields import Array, Bytes, Field, Json, Ragged, dtype_name
from warmstore.type_names import find_type, type_name

Structure = dict[str, Any]
"""A JSON tree. A "node" is a tensor, ndarray, values, pickled, items, constant, dict, list, tuple, namedtuple or
dataclass. "dim" of a tensor or ndarray is the dimension of its samples, where that is not 0."""

_CONSTANTS = frozenset((type(None), bool, int, float, str))

Copy = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
"""Gives the same values, contiguous, in memory that nobody else writes to."""

LISTS = ("auto", "structure", "per_sample")


@dataclass(frozen=True)
class _Rules:
    """How to read outputs, as `take_apart` is told."""

    lists: str
    allow_pickle: bool


@dataclass(frozen=True)
class Leaf:
    """One per-sample part of a batch of outputs.

    path: where it stands in the output, such as "hidden/0"; "output" for an output that is a single tensor.
    values: an array or tensor [n, ...] whose samples come first, wherever they lie in the output; or a list of n
    arrays, n JSON values, or n pickled objects as bytes.
    """

    path: str
    values: Any

    @property
    def stacked(self) -> bool:
        return not isinstance(self.values, list)

    @property
    def dtype(self) -> str:
        """The dtype's name where the values are stacked.

        Raises:
            UnsupportedType: such a tensor cannot be stored.
        """
        return _dtype_of(self.path, self.values)

    def to_host(self, copy: Copy) -> "Leaf":
        """The same values as NumPy arrays that `copy` gave."""
        if self.stacked:
            return Leaf(self.path, copy(to_numpy(self.values)))
        if self.values and is_array(self.values[0]):
            return Leaf(self.path, [copy(to_numpy(value)) for value in self.values])
        return self if self.is_pickled else Leaf(self.path, json.loads(json.dumps(self.values)))

    def take(self, rows: "np.ndarray[Any, np.dtype[np.int64]]") -> "Leaf":
        """The values of some samples."""
        if isinstance(self.values, list):
            return Leaf(self.path, [self.values[row] for row in rows.tolist()])
        which = torch.from_numpy(rows).to(self.values.device) if isinstance(self.values, torch.Tensor) else rows
        return Leaf(self.path, self.values[which])

    def field(self) -> Field:
        """The field that holds this leaf."""
        if self.stacked:
            return Array(self.dtype, tuple(self.values.shape[1:]))
        if self.values and is_array(self.values[0]):
            return ragged_of(_dtype_of(self.path, self.values[0]), self.values[0].ndim)
        return Bytes() if self.is_pickled else Json()

    @property
    def is_pickled(self) -> bool:
        return not self.stacked and bool(self.values) and isinstance(self.values[0], bytes)

    def restored(self) -> Any:
        """The values as the output had them."""
        return unpickled(self.path, self.values, allow_pickle=True) if self.is_pickled else self.values


def ragged_of(dtype: str, ndim: int) -> Field:
    """A field of arrays whose shapes vary; scalars have no shape to vary."""
    return Ragged(dtype, ndim) if ndim else Array(dtype)


def take_apart(
    output: Any,
    count: int,
    known: Structure | None,
    lists: str,
    *,
    allow_pickle: bool = False,
    out_dims: Any = UNTOLD,
) -> tuple[Structure, list[Leaf]]:
    """Split a batch of outputs into its structure and its per-sample leaves.

    Args:
        output: what a module returned for `count` samples.
        known: the structure that the cache has fixed already, which decides what could be read in two ways.
        lists: what a list of `count` things is: one per sample, or structure; "auto" decides where it can.
        allow_pickle: keep what is nothing else, one per sample, as pickled objects.
        out_dims: the dimension of each array's samples, as a pytree prefix; `UNTOLD` for those of `known`, else 0.

    Raises:
        SchemaMismatch: the output has another structure than `known` or `out_dims`, or a part that is not per sample.
        AmbiguousBatch: a list may be one value per sample or a fixed structure, and nothing tells which.
        UnsupportedType: a part that cannot be stored.
    """
    leaves: list[Leaf] = []
    structure = _split(output, "", count, known, out_dims, _Rules(lists, allow_pickle), leaves)
    if known is not None:
        check_structure(known, structure)
    paths = [leaf.path for leaf in leaves]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UnsupportedType(f"two parts of the output are both called {twice!r}; rename a key of its dicts")
    if not leaves:
        raise SchemaMismatch(f"the output of type {type(output).__name__} holds nothing with one value per sample")
    return structure, leaves


def check_structure(known: Structure, given: Structure) -> None:
    """Raise SchemaMismatch, saying where, when an output's structure is not the known one."""
    difference = _difference(known, given, "")
    if difference:
        raise SchemaMismatch(
            f"the module's output changed: {difference}. The first batch fixed what this cache holds; "
            "use another cache id for another kind of output"
        )


def check_dims(structure: Structure, dims: Any, ndim: Callable[[str], int], path: str = "") -> None:
    """Raise SchemaMismatch where `out_dims` says other dimensions of the samples than a structure has.

    Args:
        ndim: gives the number of dimensions of the array at a path, that of the samples included.
    """
    name, node = path or "output", structure["node"]
    if node in ("tensor", "ndarray"):
        has, told = structure.get("dim", 0), dims if dims is None else dimension(dims, ndim(name), name)
    elif node == "constant":
        has, told = None, dims if "array" in structure else None
    elif node == "items":
        has, told = 0, dims
    else:
        keys = structure.get("keys", range(len(structure["children"])))
        each = spread(dims, keys, name, positional=node != "dict")
        for key, child, below in zip(keys, structure["children"], each, strict=True):
            check_dims(child, below, ndim, _under(path, key))
        return
    if has != told:
        raise SchemaMismatch(
            f"{name} has its samples in {_dimension(told)} by out_dims, and this cache was filled with them in "
            f"{_dimension(has)}: use another cache id, or the out_dims that it was filled with"
        )


def _dimension(dim: int | None) -> str:
    return "no dimension" if dim is None else f"dimension {dim}"


def put_together(structure: Structure, leaf: Callable[[str], Any], device: torch.device | None = None) -> Any:
    """The inverse of `take_apart`.

    Args:
        leaf: gives the values of the leaf at a path, its samples first; of per-sample lists a list.
        device: where tensors that are constants are wanted; the CPU if None.
    """
    return _join(structure, "", leaf, device)


def paths_of(structure: Structure) -> dict[str, tuple[str, bool]]:
    """By the path of every leaf, in order: its node, and whether it comes as a list with one item per sample."""
    return dict(_paths(structure, "", False))


def _split(
    value: Any, path: str, count: int, known: Structure | None, dims: Any, rules: _Rules, leaves: list[Leaf]
) -> Structure:
    name = path or "output"
    if is_array(value):
        return _split_array(value, path, count, known, dims, leaves)
    if isinstance(value, dict):
        if type(value) is not dict and dataclasses.is_dataclass(value):
            return _split_named(value, path, count, known, dims, rules, leaves, "dataclass")
        _check_keys(name, value)
        told = spread(dims, list(value), name, positional=False)
        children = [
            _split(v, _under(path, k), count, _child(known, i), told[i], rules, leaves)
            for i, (k, v) in enumerate(value.items())
        ]
        return {"node": "dict", **_type_of(value, dict), "keys": list(value), "children": children}
    if isinstance(value, list):
        return _split_list(value, path, count, known, dims, rules, leaves)
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return _split_named(value, path, count, known, dims, rules, leaves, "namedtuple")
        children = _split_each(value, path, count, known, dims, rules, leaves)
        return {"node": "tuple", **_type_of(value, tuple), "children": children}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _split_named(value, path, count, known, dims, rules, leaves, "dataclass")
    if type(value) in _CONSTANTS:
        return {"node": "constant", "value": value}
    raise UnsupportedType(
        f"{name} is a {type(value).__name__}; outputs may hold tensors, arrays, dicts, lists, tuples, dataclasses, "
        "None, bool, int, float and str. With allow_pickle=True a list may hold any object per sample"
    )


def _split_array(
    value: Any, path: str, count: int, known: Structure | None, dims: Any, leaves: list[Leaf]
) -> Structure:
    name = path or "output"
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise SchemaMismatch(
            f"{name} is a masked array, and a cache keeps no masks. Fill it with values.filled(...), or return the "
            "mask beside it"
        )
    if dims is UNTOLD and known is not None:
        dims = None if "array" in known else known.get("dim", 0)
    if dims is None:
        return {"node": "constant", "array": constant_array(name, _dtype_of(name, value), value)}
    dim = dimension(dims, value.ndim, name) if value.ndim else 0
    if value.ndim == 0 or value.shape[dim] != count:
        raise SchemaMismatch(_not_per_sample(name, tuple(value.shape), count, dim, known is not None))
    leaves.append(Leaf(name, _moved(value, dim, 0)))
    return {"node": "tensor" if isinstance(value, torch.Tensor) else "ndarray", **({"dim": dim} if dim else {})}


def _not_per_sample(name: str, shape: tuple[int, ...], count: int, dim: int, known: bool) -> str:
    fitting = [at for at, size in enumerate(shape) if size == count]
    hint = f" (dimension {fitting[0]} has {count} entries)" if fitting else ""
    told = ". What the cache holds was taken for that: fill another cache id" if known else ""
    return (
        f"{name} has shape {shape} for {count} samples: it is not one value per sample in dimension {dim}, so it "
        f"cannot be cached. Say with CachedModule(out_dims=) where its samples lie{hint}, return per-sample values, or "
        f"leave it out of the cached module{told}"
    )


def _split_each(
    value: Sequence[Any],
    path: str,
    count: int,
    known: Structure | None,
    dims: Any,
    rules: _Rules,
    leaves: list[Leaf],
) -> list[Structure]:
    told = spread(dims, range(len(value)), path or "output", positional=True)
    return [
        _split(child, _under(path, at), count, _child(known, at), told[at], rules, leaves)
        for at, child in enumerate(value)
    ]


def _split_list(
    value: list[Any], path: str, count: int, known: Structure | None, dims: Any, rules: _Rules, leaves: list[Leaf]
) -> Structure:
    name = path or "output"
    if _is_per_sample(value, name, count, known, dims, rules):
        if len(value) != count:
            raise SchemaMismatch(f"{name} is a list of {len(value)} items for {count} samples; it held one per sample")
        # One structure for all samples; each sample's leaf becomes one entry of the leaf's list.
        columns: list[list[Leaf]] = []
        item, before = None, known["item"] if known is not None else None
        for one in value:
            found: list[Leaf] = []
            structure = _split_item(one, path, found, rules, item or before)
            if item is not None and structure != item:
                raise SchemaMismatch(
                    f"{name} is a list with one item per sample, but its items differ: {item} and {structure}"
                )
            item = structure
            columns.append(found)
        for at, leaf in enumerate(columns[0]):
            leaves.append(Leaf(leaf.path, [column[at].values for column in columns]))
        return {"node": "items", "item": item}
    return {"node": "list", "children": _split_each(value, path, count, known, dims, rules, leaves)}


def _split_item(value: Any, path: str, leaves: list[Leaf], rules: _Rules, other: Structure | None = None) -> Structure:
    """One sample's own output: every leaf in it belongs to that sample alone. `other` is what another sample's is."""
    name = path or "output"
    if rules.allow_pickle and other is not None and other["node"] == "pickled":
        leaves.append(Leaf(name, pickled(name, value)))
        return {"node": "pickled"}
    if is_array(value):
        leaves.append(Leaf(name, value))
        return {
            "node": "tensor" if isinstance(value, torch.Tensor) else "ndarray",
            "dtype": str(value.dtype),
            "ndim": value.ndim,
        }
    if isinstance(value, dict):
        _check_keys(name, value)
        children = [
            _split_item(v, _under(path, k), leaves, rules, _child(other, at)) for at, (k, v) in enumerate(value.items())
        ]
        return {"node": "dict", **_type_of(value, dict), "keys": list(value), "children": children}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        children = [_split_item(v, _under(path, i), leaves, rules, _child(other, i)) for i, v in enumerate(value)]
        return {"node": "tuple", **_type_of(value, tuple), "children": children}
    if _is_json(value):
        leaves.append(Leaf(name, value))
        return {"node": "values"}
    if rules.allow_pickle:
        leaves.append(Leaf(name, pickled(name, value)))
        return {"node": "pickled"}
    raise UnsupportedType(
        f"{name} holds a {type(value).__name__} per sample; tensors, dicts, tuples and JSON values can be kept, and "
        "lists of JSON values. Other values would not come back as they were, unless FeatureCache is given "
        "allow_pickle=True"
    )


def _check_keys(name: str, value: dict[Any, Any]) -> None:
    for key in value:
        if type(key) not in (str, int):
            raise UnsupportedType(f"{name} has the key {key!r}; keys of output dicts must be str or int")


def _is_json(value: Any) -> bool:
    """Whether a value comes back from JSON as it was."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and _is_json(child) for key, child in value.items())
    return type(value) in _CONSTANTS


def _is_per_sample(value: list[Any], name: str, count: int, known: Structure | None, dims: Any, rules: _Rules) -> bool:
    if dims is not UNTOLD and dims != 0:
        return False  # dimensions of its parts were told
    if known is not None:
        return bool(known["node"] == "items")
    if rules.lists != "auto" or len(value) != count:
        return rules.lists == "per_sample" and len(value) == count
    arrays = list(arrays_in(value))
    if arrays and any(array.ndim == 0 or len(array) != count for array in arrays):
        return True
    if not value:
        return False
    raise AmbiguousBatch(
        f"{name} is a list of {len(value)} for {count} samples: it may hold one item per sample or be part of the "
        "output's structure (one entry per layer, say). Pass lists='per_sample' or lists='structure' to FeatureCache"
    )


def _split_named(
    value: Any,
    path: str,
    count: int,
    known: Structure | None,
    dims: Any,
    rules: _Rules,
    leaves: list[Leaf],
    node: str,
) -> Structure:
    names = value._fields if node == "namedtuple" else [field.name for field in dataclasses.fields(value)]
    told = spread(dims, names, path or "output", positional=True)
    children = [
        _split(getattr(value, name), _under(path, name), count, _child(known, at), told[at], rules, leaves)
        for at, name in enumerate(names)
    ]
    cls = type(value)
    if node == "dataclass" and find_type(*type_name(cls)) is not cls:
        raise UnsupportedType(
            f"{path or 'output'} is a {cls.__qualname__}, which {cls.__module__} does not have under that name; "
            "define the dataclass at the top of a module"
        )
    return {"node": node, "type": type_name(cls), "keys": list(names), "children": children}


def _type_of(value: Any, plain: type) -> Structure:
    # Beside plain dicts and tuples those that can be made from their children: OrderedDict, torch.return_types.max.
    cls = type(value)
    remade = cls is OrderedDict or (plain is tuple and hasattr(cls, "n_fields"))
    return {"type": type_name(cls)} if remade else {}


def _join(structure: Structure, path: str, leaf: Callable[[str], Any], device: torch.device | None) -> Any:
    node = structure["node"]
    if node in ("tensor", "ndarray"):
        return _moved(leaf(path or "output"), 0, structure.get("dim", 0))
    if node == "constant":
        return restored_array(structure["array"], device) if "array" in structure else structure["value"]
    if node == "items":
        return _join_items(structure["item"], path, leaf)
    keys = structure.get("keys", range(len(structure["children"])))
    children = [
        _join(child, _under(path, key), leaf, device) for key, child in zip(keys, structure["children"], strict=True)
    ]
    return _container(structure, children)


def _moved(array: Any, source: int, target: int) -> Any:
    """An array with one dimension moved. Samples that lie elsewhere than first come contiguous."""
    if source == target:
        return array
    if isinstance(array, torch.Tensor):
        moved = array.movedim(source, target)
        return moved.contiguous() if target else moved
    moved = np.moveaxis(array, source, target)
    return np.ascontiguousarray(moved) if target else moved


def _join_items(structure: Structure, path: str, leaf: Callable[[str], Any]) -> list[Any]:
    if structure["node"] in ("tensor", "ndarray", "values", "pickled"):
        return list(leaf(path or "output"))
    keys = structure.get("keys", range(len(structure["children"])))
    columns = [
        _join_items(child, _under(path, key), leaf) for key, child in zip(keys, structure["children"], strict=True)
    ]
    return [_container(structure, list(children)) for children in zip(*columns, strict=True)]


def _container(structure: Structure, children: list[Any]) -> Any:
    node = structure["node"]
    cls = find_type(*structure["type"]) if "type" in structure else None
    if node == "dict":
        items = dict(zip(structure["keys"], children, strict=True))
        return items if cls is None else cls(items)
    if node == "list":
        return children
    if node == "tuple":
        return tuple(children) if cls is None else cls(children)
    if node == "namedtuple":
        cls = cls or namedtuple(structure["type"][1].rsplit(".", 1)[-1], structure["keys"])
        return cls(*children)
    if cls is None:
        module, name = structure["type"]
        raise UnsupportedType(
            f"the cached output is a {name}; import {module} before reading it, so that it can be made"
        )
    return cls(**dict(zip(structure["keys"], children, strict=True)))


def _paths(structure: Structure, path: str, per_sample: bool) -> Iterator[tuple[str, tuple[str, bool]]]:
    node = structure["node"]
    if node in ("tensor", "ndarray", "values", "pickled"):
        yield path or "output", (node, per_sample)
    elif node == "items":
        yield from _paths(structure["item"], path, True)
    elif node != "constant":
        keys = structure.get("keys", range(len(structure["children"])))
        for key, child in zip(keys, structure["children"], strict=True):
            yield from _paths(child, _under(path, key), per_sample)


def _difference(known: Structure, given: Structure, path: str) -> str:
    name = path or "output"
    if known["node"] != given["node"]:
        return f"{name} was {_say(known)} and is {_say(given)}"
    if known["node"] == "items":
        return _difference(known["item"], given["item"], path)
    if known.get("dim", 0) != given.get("dim", 0):
        return f"{name} had its samples in dimension {known.get('dim', 0)} and has them in {given.get('dim', 0)}"
    if known.get("array") != given.get("array"):
        return f"{name} was the same for all samples (out_dims had None for it) and has other values now"
    for part in ("value", "dtype", "ndim", "type", "keys"):
        if known.get(part) != given.get(part) or type(known.get(part)) is not type(given.get(part)):
            return f"{name} had {part} {known.get(part)!r} and has {given.get(part)!r}"
    children, others = known.get("children", []), given.get("children", [])
    if len(children) != len(others):
        return f"{name} had {len(children)} entries and has {len(others)}"
    keys = known.get("keys", range(len(children)))
    differences = (_difference(a, b, _under(path, key)) for key, a, b in zip(keys, children, others, strict=True))
    return next((text for text in differences if text), "")


def _say(structure: Structure) -> str:
    node = structure["node"]
    return {
        "items": "a list with one item per sample",
        "values": "a value",
        "pickled": "a pickled object",
        "constant": "the same array for all samples" if "array" in structure else repr(structure.get("value")),
    }.get(node, f"a {node}")


def _child(known: Structure | None, at: int) -> Structure | None:
    children = known.get("children", []) if known is not None else []
    return children[at] if at < len(children) else None


def _under(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def nbytes_of(values: Any) -> int:
    """Bytes of a leaf's values, guessed where they are no arrays."""
    if isinstance(values, list):
        return sum(len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 64) for value in values)
    return int(values.nbytes)


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or a NumPy array."""
    return isinstance(value, torch.Tensor | np.ndarray)


def arrays_in(value: Any) -> Iterator[Any]:
    if is_array(value):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from arrays_in(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from arrays_in(child)


def _dtype_of(path: str, value: Any) -> str:
    if isinstance(value, np.ndarray):
        if not value.dtype.isnative:
            raise UnsupportedType(f"{path} is an array of {value.dtype.str}; only native byte order can be cached")
        return dtype_name(value.dtype)
    if value.is_quantized or value.is_sparse or value.layout != torch.strided:
        raise UnsupportedType(f"{path} is a {value.layout} {value.dtype} tensor; only dense ones can be cached")
    return str(value.dtype).removeprefix("torch.")
