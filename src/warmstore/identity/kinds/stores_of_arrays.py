"""Rules of arrays that stay on the disk, those of zarr and tensorstore: their objects have places, and no values.

An array or group counts by its place in its store, and a store of files by the paths, sizes and times of all its files.
The rules match by the module of a type, so that no library is imported here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from warmstore.identity.kinds.registry import Rule
from warmstore.identity.named_files import folder_text
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

_NODES = frozenset(("Array", "AsyncArray", "Group", "AsyncGroup"))
_OF_FILES = frozenset(("LocalStore", "DirectoryStore"))
_OUT_OF_REACH = frozenset(("FsspecStore", "ObjectStore", "FSStore", "ABSStore", "TensorStore"))


def rule_of_stored_array(kind: type) -> Rule | None:
    """The rule of a type of these libraries; None for other types, and for stores in memory."""
    names = {base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] in ("zarr", "tensorstore")}
    if names & _NODES:
        return _node
    if names & _OF_FILES:
        return _folder
    return _out_of_reach if names & _OUT_OF_REACH else None


def _node(walk: Walk, place: Place, value: Any) -> None:
    """Record an array or group. What its object keeps of its metadata is in the store, too."""
    walk.fact(place, f"{walk.cls(type(value))} at {value.path!r}")
    walk.whole(place + ".store", value.store)
    walk.whole(place + ".chunk_store", getattr(value, "chunk_store", None))


def _folder(walk: Walk, place: Place, value: Any) -> None:
    root = str(value.root if hasattr(value, "root") else value.path)
    walk.state(place, partial(folder_text, root, walk.settings.files, walk.settings.root))


def _out_of_reach(walk: Walk, place: Place, value: Any) -> None:
    walk.cannot_tell(place, f"what a {type(value).__name__} holds is out of reach; pass the paths of its files")
