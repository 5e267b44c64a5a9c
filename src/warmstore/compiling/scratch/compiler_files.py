"""The files of compilers' caches: the kind of artifact of a file, and whether the file is complete.

Paths are relative to the scratch directory, in which each compiler has a folder: `inductor`, `triton` or `jax`. Paths
are the same on every machine; they are the keys of artifacts.
"""

import json
import re
import struct
from pathlib import PurePosixPath

_TRITON = {".cubin": "triton.cubin", ".ptx": "triton.ptx", ".hsaco": "triton.cubin", ".ttir": "triton.ttir"}
_WANTED = re.compile(r"inductor/(?:\w\w/\w+\.best_config|cache/\w+)")
_GROUP = re.compile(r"__grp__.*\.json")
_HERE = "<live>"

HEADER = "header"
"""The kind of precompiled headers, of 75 MB each. They fit only one compiler and one installation of torch, so bundles,
jobs and remotes leave them out."""


def kind_of(path: str) -> str | None:
    """The kind of artifact of a file; None for files that are not stored: locks, sources, temporary files."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    if name.startswith(".") or name.endswith((".lock", ".tmp")):
        return None
    match parts:
        case ("inductor", "fxgraph", _, _, _):
            return "fx_graph"
        case ("inductor", "aotautograd", _, _):
            return "aot_autograd"
        case ("inductor", "dynamo", _) if name.endswith(".pkl"):
            return "pgo"
        case ("inductor", "triton", _, _, _) | ("triton", _, _):
            return None if ".tmp." in name else _TRITON.get(PurePosixPath(name).suffix, "triton.cubin")
        case ("inductor", _, _) if name.endswith(".so"):
            return "cpp.so"
        case ("inductor", "precompiled_headers", _) if name.endswith(".gch"):
            return HEADER
        case ("jax", _) if name.endswith("-cache"):
            return "jax"
    return "autotune" if _WANTED.fullmatch(path) else None


def belongs(path: str, kind: str) -> bool:
    """Whether a key is a safe path for files of a kind. A key may come from a bundle that somebody else made."""
    return not any(part in ("", ".", "..") for part in path.split("/")) and kind_of(path) == kind


def is_whole(path: str, data: bytes) -> bool:
    """Whether a file is complete. Compilers write libraries and precompiled headers in place, other files atomically.
    A header does not show whether it is complete, so `CompileSession.made_header` stores headers."""
    if path.endswith(".so"):
        return is_whole_library(data)
    return bool(data) and kind_of(path) != HEADER


def is_whole_library(data: bytes) -> bool:
    """Whether an ELF file has its table of sections, which is at its end (System V ABI, chapter 4). Of a Mach-O file
    only the magic number is checked."""
    if data[:4] != b"\x7fELF":
        return data[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
    if len(data) < 64 or data[4] != 2:
        return False
    order = "<" if data[5] == 1 else ">"
    (start,) = struct.unpack_from(f"{order}Q", data, 40)
    size, count = struct.unpack_from(f"{order}HH", data, 58)
    return bool(start) and start + size * count <= len(data)


def to_keep(path: str, data: bytes, root: str) -> bytes:
    """The stored form of a file: a mark replaces the path of the scratch directory."""
    return _replaced(path, data, root, _HERE)


def to_use(path: str, data: bytes, root: str) -> bytes:
    """The inverse of `to_keep`, for another scratch directory."""
    return _replaced(path, data, _HERE, root)


def is_rewritten(path: str) -> bool:
    """Whether the stored form of a file differs: Triton's group files contain absolute paths."""
    return bool(_GROUP.fullmatch(path.rpartition("/")[2]))


def _replaced(path: str, data: bytes, old: str, new: str) -> bytes:
    if not is_rewritten(path):
        return data
    group = json.loads(data)
    children = group.get("child_paths")
    if isinstance(children, dict):
        group["child_paths"] = {name: _moved(str(child), old, new) for name, child in children.items()}
    return json.dumps(group).encode()


def _moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if path.startswith(old) else path
