"""What kept samples depend on: the steps that made them, and what each was made from.

Steps are told by their code, their arguments and the versions of the packages they call; samples by the path, size and
time of files, or by their content. Whatever cannot be told is never found again: it is computed anew by every run.
"""

import dataclasses
import functools
import io
import json
import logging
import mmap
import os
import pickle
import secrets
import sys
import types
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.fingerprint import Code, Reach, describe, is_foreign, name_of
from warmstore.loading.draws import UInt64
from warmstore.loading.sources import NpySource
from warmstore.pipeline.steps import Step
from warmstore.records.arrays import is_tensor
from warmstore.records.formats import Formatted
from warmstore.records.store import RecordStore
from warmstore.records.view import FieldView

_log = logging.getLogger("warmstore")

_DEPTH = 8
_LONGEST_PATH = 4096
_PICKLED = frozenset((str, int, float, bytes, bool, type(None), list, tuple, dict))
_NAMES_NOTHING = (int, float, bool, bytes, type(None))
_DEEPEST = 20
_OURS = "warmstore"
_FIRST = 16
_SOURCE = "the source"
_ADVICE_ON_SOURCE = "Leave it out in __getstate__, or give the data set an attribute `identity`"

Description = dict[str, Any]
"""Of a step, as JSON: name, code, arguments by name, random, packages by name."""


def describe_step(step: Step, threads: int = 1) -> Description:
    """What a step's results depend on, with so many native threads beneath it."""
    reach = Everything(step.name)
    code = _hash(describe(step.function, 0, reach))
    arguments = {name: _hash(describe(value, 0, reach)) for name, value in sorted(step.arguments.items())}
    packages = {name: _version(name) for name in sorted(reach.packages)}
    return {
        "name": step.name, "code": code, "arguments": arguments, "random": step.random, "packages": packages,
        "threads": threads,
    }  # fmt: skip


def key_of(descriptions: Sequence[Description]) -> str:
    """The key of what so many steps make, 16 hex digits."""
    return _hash(json.dumps(descriptions, sort_keys=True))[:16]


def difference(old: Sequence[Description], new: Sequence[Description]) -> str:
    """What tells two rows of steps apart, in words; "" where nothing does."""
    for one, other in zip(old, new, strict=False):
        name = other["name"]
        if one["random"] != other["random"]:
            return f"step {name!r} is {'random' if other['random'] else 'no longer random'}"
        if one["threads"] != other["threads"]:
            return f"step {name!r} runs with {other['threads']} native threads and not {one['threads']}"
        changed = [key for key in other["arguments"] if one["arguments"].get(key) != other["arguments"][key]]
        changed += [key for key in one["arguments"] if key not in other["arguments"]]
        if changed:
            return f"step {name!r} has other arguments: {', '.join(changed)}"
        if one["code"] != other["code"]:
            return f"the code of step {name!r} changed"
        for package, version in other["packages"].items():
            if one["packages"].get(package) != version:
                return f"step {name!r} calls {package} {version}, and called {one['packages'].get(package)}"
    return ""


def name_of_source(source: Any) -> str:
    """What tells a source from others, 16 hex digits. A file that changes does not change it."""
    samples = _listed(source)
    if samples is None:
        return _hash(_described(source))[:16]
    digest = xxhash.xxh3_128(b"" if samples is source else b"an array")
    for sample in samples:
        digest.update(_text_of(sample))
    return digest.hexdigest()[:16]


def identities(source: Any) -> UInt64:
    """Hashes of what each sample is made from, uint64 [samples]; of files their size and time are part of it."""
    samples = _listed(source)
    if samples is not None:
        # A stat that fails raises, and that takes five times as long: texts are asked first whether they are files.
        ask = not any(map(_stat_of, samples[:_FIRST]))
        hashes = (xxhash.xxh3_64_intdigest(_text_of(sample) + _stat_of(sample, ask=ask)) for sample in samples)
        return np.fromiter(hashes, np.uint64, len(samples))
    return np.full(len(source), xxhash.xxh3_64_intdigest(_described(source) + _stat_of(source, True)), np.uint64)


def _listed(source: Any) -> Sequence[Any] | None:
    """The samples of a source that holds them one by one; None of others."""
    if isinstance(source, np.ndarray) and source.ndim == 1 and source.dtype.kind in "OU":
        return source.tolist()  # type: ignore[no-any-return]
    return source if isinstance(source, list | tuple) else None


def _described(source: Any) -> bytes:
    given = getattr(source, "identity", None)
    return describe(source if given is None else given, 0, Everything(_SOURCE)).encode()


class Everything(Reach):
    """Reaches into whatever a step or source holds. packages: those it names, by their top-level names.

    Args:
        of: whose it is, for messages.
    """

    thorough = True

    def __init__(self, of: str) -> None:
        self.packages: set[str] = set()
        self._of = of

    def is_foreign(self, value: Any) -> bool:
        """Also what is installed beside Python's own library: it is told by its version."""
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type):
            name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
            top = (name or "").partition(".")[0]
            if _is_installed(top):
                self.packages.add(top)
                return True
        return is_foreign(value)

    def mapped(self, array: np.ndarray[Any, Any]) -> str:
        """A file that is mapped and cannot be written through the mapping, by its path, size and time."""
        if not (isinstance(array, np.memmap) and array.mode == "r" and isinstance(array.base, mmap.mmap)):
            return ""
        layout = f"{array.dtype} {array.shape} {array.strides} {array.offset}"
        return f"{array.filename} {_stat_of(array.filename)!r} {layout}"

    def other(self, value: Any, depth: int, code: Code | None) -> str:
        """Objects by their class and attributes, or by what a pickle of them holds."""
        if isinstance(value, types.ModuleType):
            self.is_foreign(value)
            return value.__name__
        if isinstance(value, np.ufunc) and any(one is value for one in vars(np).values()):
            return f"numpy.{value}"
        if isinstance(value, _NAMED):
            return _identity_of(value)
        if _is_hugging_face(value):
            return str(value._fingerprint)
        kind = type(value)
        if depth < _DEPTH and hasattr(value, "__dict__") and (_is_ours(kind) or not self.is_foreign(kind)):
            return describe([kind, _state_of(value)], depth + 1, self, code)
        try:
            return f"{name_of(kind)} {_hash(_pickled(value, self, code))}"
        except Exception as error:  # pickling runs code of all kinds
            _log.warning(
                "%s: it cannot be told whether a %s changes (%s), so what depends on it is not found again by the next "
                "run. %s",
                self._of,
                name_of(kind),
                error,
                _ADVICE_ON_SOURCE if self._of == _SOURCE else "Pass plain values as arguments instead",
            )
            return secrets.token_hex(8)


class _Pickler(pickle.Pickler):
    """Pickles an object of a library, but says of what is in it, and is the program's, what a `Reach` says of that.

    So code counts, of which a pickle has no more than the name; and what differs in each process does not: the order
    of a set, the address of a tensor.
    """

    def __init__(self, file: io.BytesIO, reach: Everything, code: Code | None) -> None:
        super().__init__(file, 5)
        self._reach = reach
        self._code = code

    def persistent_id(self, value: Any) -> str | None:
        if type(value) in _PICKLED:
            return None
        if isinstance(value, set | frozenset):
            return repr(sorted(_hash(_pickled(child, self._reach, self._code)) for child in value))
        if isinstance(value, _NAMED):
            return _identity_of(value)
        if isinstance(value, np.ndarray):
            return self._reach.mapped(value) or None
        if isinstance(value, types.FunctionType | types.ModuleType | type) or is_tensor(value):
            return describe(value, _DEPTH, self._reach, self._code)
        return None


def _pickled(value: Any, reach: Everything, code: Code | None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, reach, code).dump(value)
    return file.getvalue()


_NAMED = (RecordStore, FieldView, Formatted, NpySource)


def _identity_of(value: RecordStore | FieldView | Formatted | NpySource) -> str:
    if isinstance(value, NpySource):
        path = value.path
        return f"{path} {_stat_of(path)!r}"
    if isinstance(value, FieldView):
        return f"{_identity_of(value.store)} {value.name}"
    if isinstance(value, Formatted):
        return f"{_identity_of(value.store)} {value.format}"
    return f"{value.manifest.id} {value.manifest.generation} {value.snapshot.edits}"


def _text_of(sample: Any) -> bytes:
    """A sample as bytes that differ where samples do; of files their names."""
    if isinstance(sample, str):
        text = sample.encode(errors="surrogatepass")
    elif isinstance(sample, bytes):
        text = sample
    elif isinstance(sample, os.PathLike):
        text = os.fsencode(sample)
    elif isinstance(sample, bool | int | float | complex | np.generic | None):
        text = repr(sample).encode()
    elif isinstance(sample, list | tuple):
        text = b"".join(map(_text_of, sample))
    elif isinstance(sample, dict):
        text = b"".join(_text_of(key) + _text_of(part) for key, part in sample.items())
    else:
        text = describe(sample, 0, Everything(_SOURCE)).encode()
    return b"%s %d %s" % (type(sample).__name__.encode(), len(text), text)


def _stat_of(value: Any, ask: bool = False, depth: int = 0, seen: set[int] | None = None) -> bytes:
    """Size and time of the files that a value names, wherever in it; of what is no file nothing.

    Args:
        seen: objects that were looked into, by id: they may know each other.
    """
    kind = type(value)
    if kind is str or isinstance(value, os.PathLike):
        return _stat(value, ask)
    if kind in _NAMES_NOTHING or depth > _DEEPEST:
        return b""
    if kind is tuple or kind is list:
        return b"".join([_stat_of(part, ask, depth + 1, seen) for part in value])
    seen = set() if seen is None else seen
    if id(value) in seen:
        return b""
    seen.add(id(value))
    return b"".join([_stat_of(part, ask, depth + 1, seen) for part in _parts(value)])


def _stat(path: Any, ask: bool) -> bytes:
    if isinstance(path, str) and (len(path) > _LONGEST_PATH or "\0" in path or "\n" in path):
        return b""
    if ask and not os.access(path, os.F_OK):
        return b""
    try:
        found = os.stat(path)  # noqa: PTH116  half the time of Path.stat, a million times
    except (OSError, ValueError):
        return b""
    return b"%d %d;" % (found.st_size, found.st_mtime_ns)


def _parts(value: Any) -> Iterable[Any]:
    """What an object holds."""
    kind = type(value)
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if kind.__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.kind in "OU" else ()
    if isinstance(value, (type, types.ModuleType, types.FunctionType, *_NAMED)) or _is_hugging_face(value):
        return ()
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values())


def _state_of(value: Any) -> Any:
    """The attributes of an object, or what it says itself that a copy needs: not what it opened on the way."""
    says_itself = any("__getstate__" in vars(base) for base in type(value).__mro__[:-1])
    try:
        state = value.__getstate__() if says_itself else vars(value)
    except Exception:  # it runs code of all kinds
        state = vars(value)
    return OrderedDict(sorted(state.items())) if isinstance(state, dict) else state


def _is_hugging_face(value: Any) -> bool:
    return type(value).__module__ == "datasets.arrow_dataset" and hasattr(value, "_fingerprint")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _OURS


def _is_installed(name: str) -> bool:
    if name == _OURS:
        return True
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
    return bool({"site-packages", "dist-packages"} & set(Path(path).parts))


def _version(name: str) -> str:
    found = getattr(sys.modules.get(name), "__version__", None)
    if found is None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return _versions_in(name)
    return str(found)


@functools.cache
def _versions_in(name: str) -> str:
    """Of all that is installed under a name that is no package of its own, such as `nvidia` or `google`."""
    found = set(metadata.packages_distributions().get(name, ()))
    return ", ".join(f"{one} {metadata.version(one)}" for one in sorted(found))


def _hash(data: str | bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data.encode(errors="surrogatepass") if isinstance(data, str) else data)
