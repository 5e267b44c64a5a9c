"""Flattens a batch of a module's outputs into a `TreeSpec` and per-sample leaves, and back.

Each leaf becomes a field of the cache's store. Numbers, strings and None, and arrays that `out_dims` marks with None,
are constants: they are part of the spec and must be the same in every batch.

The nodes of a spec are containers; tensor, ndarray, values and pickled, which are leaves; constant; and items, a list
with one "item" per sample. "dim" of a tensor or ndarray is the dimension of its samples, if this is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.errors import AmbiguousBatch, SchemaMismatch, UnsupportedType
from warmstore.features.outputs.constant_arrays import constant_array, restored_array
from warmstore.features.outputs.leaves import Leaf, check_array, is_array, stored_dtype
from warmstore.features.outputs.out_dims import UNSET, dimension, spread
from warmstore.features.outputs.pickled_leaves import pickled
from warmstore.records.format.array_interop import is_tensor
from warmstore.tree import spec as tree
from warmstore.tree.containers import Container, opened, under
from warmstore.tree.spec import TreeSpec, children_of, is_unicode, keys_of, leaf_specs, spec_of

if TYPE_CHECKING:
    import torch

ROOT = "output"
"""The path of an output that is one leaf."""

_CONSTANTS = frozenset((type(None), bool, int, float, str))

LISTS = ("auto", "structure", "per_sample")


def flatten(
    output: Any,
    count: int,
    known: TreeSpec | None,
    lists: str,
    *,
    allow_pickle: bool = False,
    out_dims: Any = UNSET,
) -> tuple[TreeSpec, list[Leaf]]:
    """Split a batch of outputs into its spec and its per-sample leaves.

    Args:
        output: the return value of a module for `count` samples.
        known: the spec that the cache has fixed already; it decides between two readings of an output.
        lists: the meaning of a list of `count` items: one per sample, or structure; "auto" infers it.
        allow_pickle: pickle items per sample of any other type.
        out_dims: the dimension of each array's samples, as a pytree prefix; `UNSET` for those of `known`, else 0.

    Raises:
        SchemaMismatch: the output has another structure than `known` or `out_dims`, or a part that is not per sample.
        AmbiguousBatch: a list may be one value per sample or a fixed structure.
        UnsupportedType: a part cannot be stored.
    """
    flattener = _Flattener(count, lists, allow_pickle)
    spec, leaves = flattener.batch(output, "", known, out_dims), flattener.leaves
    if known is not None:
        check_spec(known, spec)
    paths = [leaf.path for leaf in leaves]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UnsupportedType(f"two parts of the output are both called {twice!r}; rename a key of its dicts")
    if not leaves:
        raise SchemaMismatch(f"the output of type {type(output).__name__} holds nothing with one value per sample")
    return spec, leaves


def check_spec(known: TreeSpec, given: TreeSpec) -> None:
    """Raise SchemaMismatch, which names the part, if an output's spec is not the known one."""
    difference = _difference(known, given, "")
    if difference:
        raise SchemaMismatch(
            f"the module's output changed: {difference}. The first batch fixed the structure of this cache; use "
            "another cache id for outputs of another structure"
        )


def check_dims(spec: TreeSpec, dims: Any, ndim: Callable[[str], int], path: str = "") -> None:
    """Raise SchemaMismatch if `out_dims` has other dimensions of the samples than a spec.

    Args:
        ndim: returns the number of dimensions of the array at a path, with that of the samples.
    """
    name, node = path or ROOT, spec["node"]
    if "children" in spec:
        each = spread(dims, keys_of(spec), name, positional=node != "dict")
        for (below, child), child_dims in zip(children_of(spec, path), each, strict=True):
            check_dims(child, child_dims, ndim, below)
        return
    if node == "constant":
        stored, given = None, dims if "array" in spec else None
    elif node == "items":
        stored, given = 0, dims
    else:
        stored, given = spec.get("dim", 0), dims if dims is None else dimension(dims, ndim(name), name)
    if stored != given:
        raise SchemaMismatch(
            f"{name} has its samples in {_dimension(given)} by out_dims, and in {_dimension(stored)} in this cache: "
            "use another cache id, or the out_dims that the cache was filled with"
        )


def _dimension(dim: int | None) -> str:
    return "no dimension" if dim is None else f"dimension {dim}"


def unflatten(spec: TreeSpec, leaf: Callable[[str], Any], device: torch.device | None = None) -> Any:
    """The inverse of `flatten`.

    Args:
        leaf: returns the values of the leaf at a path, with the samples in dimension 0; a list for per-sample lists.
        device: the device of constant tensors; None is the CPU.
    """

    def part(spec: TreeSpec, path: str) -> Any:
        if spec["node"] == "items":
            return tree.unflatten(spec["item"], lambda _, below: list(leaf(below or ROOT)), path, _containers)
        if spec["node"] == "constant":
            return restored_array(spec["array"], device) if "array" in spec else spec["value"]
        return _moved(leaf(path or ROOT), 0, spec.get("dim", 0))

    return tree.unflatten(spec, part)


def sample_of(spec: TreeSpec, leaf: Callable[[str], Any], device: torch.device | None = None) -> Any:
    """`unflatten` for one sample, without the dimension of samples.

    Args:
        leaf: returns the value of the leaf at a path.
    """

    def part(spec: TreeSpec, path: str) -> Any:
        if spec["node"] == "items":
            return tree.unflatten(spec["item"], lambda _, below: leaf(below or ROOT), path)
        if spec["node"] == "constant":
            return restored_array(spec["array"], device) if "array" in spec else spec["value"]
        return leaf(path or ROOT)

    return tree.unflatten(spec, part)


def _containers(spec: TreeSpec, columns: Sequence[Any]) -> list[Any]:
    """One container per sample, from columns with the children of all samples."""
    return [tree.container_of(spec, children) for children in zip(*columns, strict=True)]


def paths_of(spec: TreeSpec) -> dict[str, tuple[str, bool]]:
    """By the path of every leaf, in order: its node, and whether it is in a list with one item per sample."""
    found = {}
    for path, part in leaf_specs(spec):
        if part["node"] == "items":
            found.update({below or ROOT: (leaf["node"], True) for below, leaf in leaf_specs(part["item"], path)})
        elif part["node"] != "constant":
            found[path or ROOT] = (part["node"], False)
    return found


@dataclass(frozen=True)
class _Flattener:
    """Flattens the outputs of `count` samples into `leaves`; the other attributes are arguments of `flatten`."""

    count: int
    lists: str
    allow_pickle: bool
    leaves: list[Leaf] = field(default_factory=list)

    def batch(self, value: Any, path: str, known: TreeSpec | None, dims: Any) -> TreeSpec:
        """The spec of a part of the output that holds all samples."""
        name = path or ROOT
        if is_array(value):
            return self._array(value, name, known, dims)
        if isinstance(value, list) and self._is_per_sample(value, name, known, dims):
            return self._items(value, path, known)
        container = opened(value)
        if container is None:
            return _constant(value, name)
        _check_keys(container, name)
        each = spread(dims, container.keys, name, positional=container.kind != "dict")
        children = [
            self.batch(child, under(path, key), _child(known, at), each[at])
            for at, (key, child) in enumerate(container.items())
        ]
        return spec_of(value, container, children, name)

    def _array(self, value: Any, name: str, known: TreeSpec | None, dims: Any) -> TreeSpec:
        check_array(name, value)
        if dims is UNSET and known is not None:
            dims = None if "array" in known else known.get("dim", 0)
        if dims is None:
            return {"node": "constant", "array": constant_array(name, stored_dtype(name, value), value)}
        dim = dimension(dims, value.ndim, name) if value.ndim else 0
        if value.ndim == 0 or value.shape[dim] != self.count:
            raise SchemaMismatch(_not_per_sample(name, tuple(value.shape), self.count, dim, known is not None))
        self.leaves.append(Leaf(name, _moved(value, dim, 0)))
        return {"node": _node_of_array(value), **({"dim": dim} if dim else {})}

    def _items(self, value: list[Any], path: str, known: TreeSpec | None) -> TreeSpec:
        """The spec of a list with one item per sample."""
        name = path or ROOT
        if len(value) != self.count:
            raise SchemaMismatch(
                f"{name} is a list of {len(value)} items for {self.count} samples; it held one per sample"
            )
        # One spec for all samples; each sample's leaf becomes one entry of the leaf's list.
        samples: list[list[Leaf]] = []
        item, before = None, known["item"] if known is not None else None
        for sample in value:
            samples.append([])
            spec = self._item(sample, path, samples[-1], item or before)
            if item is not None and spec != item:
                raise SchemaMismatch(
                    f"{name} is a list with one item per sample, but its items differ: {item} and {spec}"
                )
            item = spec
        self.leaves.extend(Leaf(same[0].path, [leaf.values for leaf in same]) for same in zip(*samples, strict=True))
        return {"node": "items", "item": item}

    def _item(self, value: Any, path: str, leaves: list[Leaf], other: TreeSpec | None) -> TreeSpec:
        """The spec of the output of one sample. `other` is the spec of another sample."""
        name = path or ROOT
        if not (self.allow_pickle and other is not None and other["node"] == "pickled"):
            if is_array(value):
                check_array(name, value)
                leaves.append(Leaf(name, value))
                return {"node": _node_of_array(value), "dtype": str(value.dtype), "ndim": value.ndim}
            if isinstance(value, dict) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
                container = opened(dict(value) if isinstance(value, dict) else value)
                assert container is not None
                _check_keys(container, name)
                children = [
                    self._item(child, under(path, key), leaves, _child(other, at))
                    for at, (key, child) in enumerate(container.items())
                ]
                return spec_of(value, container, children, name)
            if _is_json(value):
                leaves.append(Leaf(name, value))
                return {"node": "values"}
            if not self.allow_pickle:
                raise UnsupportedType(
                    f"{name} holds a {type(value).__name__} per sample; tensors, dicts, tuples and JSON values of "
                    "valid Unicode can be stored. Pass allow_pickle=True to FeatureCache to store other values"
                )
        leaves.append(Leaf(name, pickled(name, value)))
        return {"node": "pickled"}

    def _is_per_sample(self, value: list[Any], name: str, known: TreeSpec | None, dims: Any) -> bool:
        if dims is not UNSET and dims != 0:
            return False  # `dims` are the dimensions of the list's parts
        if known is not None:
            return bool(known["node"] == "items")
        if self.lists != "auto" or len(value) != self.count:
            return self.lists == "per_sample" and len(value) == self.count
        arrays = list(arrays_in(value))
        if arrays and any(array.ndim == 0 or len(array) != self.count for array in arrays):
            return True
        if not value:
            return False
        raise AmbiguousBatch(
            f"{name} is a list of {len(value)} for {self.count} samples: it may hold one item per sample or be part of "
            "the output's structure (one entry per layer, say). Pass lists='per_sample' or lists='structure' to "
            "FeatureCache"
        )


def _node_of_array(value: Any) -> str:
    return "tensor" if is_tensor(value) else "ndarray"


def _constant(value: Any, name: str) -> TreeSpec:
    if type(value) is str and not is_unicode(value):
        raise UnsupportedType(f"{name} is {value!r:.100}, which is not valid Unicode")
    if type(value) in _CONSTANTS:
        return {"node": "constant", "value": value}
    if any(base.__module__ == "transformers.cache_utils" for base in type(value).__mro__):
        raise UnsupportedType(
            f"{name} is a {type(value).__name__}: the keys and values of each attention layer, with which a decoder "
            "generates its next token. They are no features and larger than these. Call the module with "
            "use_cache=False, or set model.config.use_cache = False before wrapping it; or cache what you need, such "
            'as CachedModule(..., select="last_hidden_state")'
        )
    raise UnsupportedType(
        f"{name} is a {type(value).__name__}; outputs may hold tensors, arrays, dicts, lists, tuples, dataclasses, "
        "None, bool, int, float and str. With allow_pickle=True a list may hold any object per sample"
    )


def _not_per_sample(name: str, shape: tuple[int, ...], count: int, dim: int, known: bool) -> str:
    fitting = [at for at, size in enumerate(shape) if size == count]
    hint = f" (dimension {fitting[0]} has {count} entries)" if fitting else ""
    advice = ". The cache was filled with one value per sample: use another cache id" if known else ""
    return (
        f"{name} has shape {shape} for {count} samples: it is not one value per sample in dimension {dim}, so it "
        f"cannot be cached. Pass the dimension of its samples in CachedModule(out_dims=){hint}, return per-sample "
        f"values, or remove it from the cached module's output{advice}"
    )


def _check_keys(container: Container, name: str) -> None:
    for key in container.keys:
        if type(key) not in (str, int) or (type(key) is str and not is_unicode(key)):
            raise UnsupportedType(f"{name} has the key {key!r}; keys of output dicts must be Unicode text or int")


def _is_json(value: Any) -> bool:
    """Whether JSON restores a value exactly."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and is_unicode(key) and _is_json(child) for key, child in value.items())
    return is_unicode(value) if type(value) is str else type(value) in _CONSTANTS


def _moved(array: Any, source: int, target: int) -> Any:
    """An array with one dimension moved. The result is contiguous if the target is not dimension 0."""
    if source == target:
        return array
    if is_tensor(array):
        moved = array.movedim(source, target)
        return moved.contiguous() if target else moved
    moved = np.moveaxis(array, source, target)
    return np.ascontiguousarray(moved) if target else moved


def _difference(known: TreeSpec, given: TreeSpec, path: str) -> str:
    if known == given and known["node"] in ("tensor", "ndarray"):
        return ""  # the common case
    name = path or ROOT
    if known["node"] != given["node"]:
        return f"{name} was {_described(known)} and is {_described(given)}"
    if known["node"] == "items":
        return _difference(known["item"], given["item"], path)
    if known.get("dim", 0) != given.get("dim", 0):
        return f"{name} had its samples in dimension {known.get('dim', 0)} and has them in {given.get('dim', 0)}"
    if known.get("array") != given.get("array"):
        return f"{name} was the same for all samples (out_dims had None for it) and has other values now"
    for part in ("value", "dtype", "ndim", "type", "keys"):
        before, now = known.get(part), given.get(part)
        if type(before) is not type(now) or (repr(before) != repr(now) if part == "value" else before != now):
            return f"{name} had {part} {before!r} and has {now!r}"
    children, others = children_of(known, path), given.get("children", ())
    if len(children) != len(others):
        return f"{name} had {len(children)} entries and has {len(others)}"
    differences = (_difference(child, other, below) for (below, child), other in zip(children, others, strict=True))
    return next((text for text in differences if text), "")


def _described(spec: TreeSpec) -> str:
    node = spec["node"]
    return {
        "items": "a list with one item per sample",
        "values": "a value",
        "pickled": "a pickled object",
        "constant": "the same array for all samples" if "array" in spec else repr(spec.get("value")),
    }.get(node, f"a {node}")


def _child(known: TreeSpec | None, at: int) -> TreeSpec | None:
    children = known.get("children", []) if known is not None else []
    return children[at] if at < len(children) else None


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays in nested dicts, lists and tuples."""
    if is_array(value):
        yield value
    elif isinstance(value, dict | list | tuple):
        for child in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(child)
