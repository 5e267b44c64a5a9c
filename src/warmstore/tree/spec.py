"""The structure of a nested value as JSON, without its leaves. It can be stored, compared, and filled with leaves."""

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from warmstore.errors import UnsupportedType
from warmstore.tree.containers import Container, under
from warmstore.tree.named_parts import attributes_of, blank, give_parts, names_of_parts
from warmstore.tree.type_names import find_type, type_name

TreeSpec = dict[str, Any]
"""A JSON tree. "node" of a container is its kind; "children" are the specs of its children, "keys" their keys unless
these are positions, "type" the name of the class to construct, "items" the keys of a dataclass that is a dict as well,
unless these are those of the children that are not None. A spec without "children" is that of a leaf; the code that
flattens values defines its "node" and other entries."""


def spec_of(value: Any, container: Container, children: list[TreeSpec], name: str) -> TreeSpec:
    """The spec of a container.

    Args:
        value, container: the container, and its content from `opened`.
        children: specs of the children.
        name: the name of the value, for messages.

    Raises:
        UnsupportedType: a dataclass that cannot be found by its name, or a dataclass or namedtuple with other state
            than its fields.
    """
    cls, kind = type(value), container.kind
    if kind == "dataclass" and find_type(*type_name(cls)) is not cls:
        raise UnsupportedType(
            f"{name} is a {cls.__qualname__}, which {cls.__module__} does not have under that name; "
            "define the dataclass at the top of a module"
        )
    if kind in ("namedtuple", "dataclass") and names_of_parts(value) is None:
        others = sorted(attributes_of(value).keys() - {*container.keys})
        raise UnsupportedType(
            f"{name} is a {cls.__qualname__} with other state than its fields {[*container.keys]}, which would be "
            f"lost{f': {others}' if others else ''}. Return it in fields, or return a dict of the parts"
        )
    spec: TreeSpec = {"node": kind}
    # Classes that can be constructed from their children, such as OrderedDict and torch.return_types.max.
    is_constructed = cls is OrderedDict or (kind == "tuple" and hasattr(cls, "n_fields"))
    if is_constructed or kind in ("namedtuple", "dataclass"):
        spec["type"] = type_name(cls)
    if kind not in ("list", "tuple"):
        spec["keys"] = list(container.keys)
    if kind == "dataclass" and isinstance(value, dict):
        items = [key for key, child in container.items() if child is not None]
        spec |= {} if list(value) == items else {"items": list(value)}
    spec["children"] = children
    return spec


def is_unicode(text: str) -> bool:
    """Whether a text can be stored, as UTF-8: it has no lone surrogates, which `os.fsdecode` makes of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def keys_of(spec: TreeSpec) -> Sequence[Any]:
    """The keys of the children of a spec; none for a leaf."""
    found: Sequence[Any] = spec.get("keys", range(len(spec.get("children", ()))))
    return found


def children_of(spec: TreeSpec, path: str = "") -> list[tuple[str, TreeSpec]]:
    """The specs of the children of the container at a path, with their paths; none for a leaf."""
    children = spec.get("children")
    return [(under(path, key), child) for key, child in zip(keys_of(spec), children, strict=True)] if children else []


def leaf_specs(spec: TreeSpec, path: str = "") -> Iterator[tuple[str, TreeSpec]]:
    """The specs of all leaves with their paths, in order."""
    if "children" not in spec:
        yield path, spec
    for below, child in children_of(spec, path):
        yield from leaf_specs(child, below)


def container_of(spec: TreeSpec, children: Sequence[Any]) -> Any:
    """The container of a spec, with children.

    Raises:
        UnsupportedType: the program has not imported the module of the container's class, or the class has changed.
    """
    kind = spec["node"]
    cls = find_type(*spec["type"]) if "type" in spec else None
    if kind == "dict":
        items = dict(zip(spec["keys"], children, strict=True))
        return items if cls is None else cls(items)
    if kind == "list":
        return list(children)
    if kind == "tuple":
        return tuple(children) if cls is None else cls(children)
    if kind == "namedtuple":
        if cls is None or list(getattr(cls, "_fields", ())) != spec["keys"]:
            return namedtuple(spec["type"][1].rsplit(".", 1)[-1], spec["keys"])(*children)
        return tuple.__new__(cls, children)  # a constructor of its own may compute
    if cls is None:
        module, name = spec["type"]
        raise UnsupportedType(
            f"the cached output is a {name}; import {module} before reading it, so that it can be constructed"
        )
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    if names != spec["keys"]:
        raise UnsupportedType(f"the cached output is a {cls.__qualname__} with {spec['keys']}, which now has {names}")
    made = blank(cls)
    give_parts(made, names, children, spec.get("items"))
    return made


def unflatten(
    spec: TreeSpec,
    leaf: Callable[[TreeSpec, str], Any],
    path: str = "",
    container: Callable[[TreeSpec, Sequence[Any]], Any] = container_of,
) -> Any:
    """The value of a spec.

    Args:
        leaf: returns a leaf, given its spec and path.
        container: returns a container, given its spec and its children.
    """
    if "children" not in spec:
        return leaf(spec, path)
    children = [unflatten(child, leaf, below, container) for below, child in children_of(spec, path)]
    return container(spec, children)
