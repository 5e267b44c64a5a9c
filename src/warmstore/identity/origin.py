"""Where code comes from: Python itself, an installed distribution, or the program.

A module is installed if a distribution beside it lists the module's file in its record; names of folders do not matter.
An installed distribution counts by name, version and the hashes that its installer recorded. A listed file that was
edited in place counts by its content, too. A module that a Linux distribution adds to Python's own folder counts by its
content: Debian's `_distutils_system_mod`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import platform
import re
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import xxhash

from warmstore.identity.object_state import is_heap_type
from warmstore.storage.cached_property import cached_property

WARMSTORE = "warmstore"
PYTHON, INSTALLED, PROGRAM = "python", "installed", "program"
_RULES = 1
"""Version of what warmstore does to samples. It counts in place of warmstore's code."""

_CODE = (".py", ".so", ".pyd", ".dylib")
_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_MOST_PARENTS = 4
_MOST_PARENTS_INSTALLED = 8
_FEW = 16
_OF_USERS = ("__main__", "sitecustomize", "usercustomize")
"""Modules that are the user's, wherever they lie."""


@dataclass(frozen=True)
class Origin:
    """Where a module comes from.

    kind: "python", "installed" or "program". name: "python", or the name of the distribution or module. text: Differs
    between versions; "" for the program. folder: Where the module was imported from; "" if unknown.
    """

    kind: str
    name: str
    text: str = ""
    folder: str = ""

    @property
    def is_program(self) -> bool:
        return self.kind == PROGRAM


PYTHON_ORIGIN = Origin(PYTHON, "python", f"{platform.python_implementation()} {platform.python_version()}")


def origin_of(module: ModuleType) -> Origin:
    """Where a module comes from."""
    file = getattr(module, "__file__", None) or ""
    return _origin(getattr(module, "__name__", ""), file, hasattr(module, "__path__"))


def is_extension(module: ModuleType) -> bool:
    """Whether a module is a library of machine code."""
    return str(getattr(module, "__file__", None) or "").endswith(_CODE[1:])


def has_file_of(namespace: dict[str, Any]) -> bool:
    """Whether a namespace is that of an installed module which has another object in its place."""
    file = namespace.get("__file__")
    return (
        isinstance(file, str) and not _origin(str(namespace.get("__name__")), file, "__path__" in namespace).is_program
    )


def is_installed_code(function: FunctionType) -> bool:
    """Whether the code of a function is from a file of an installed module."""
    return not _origin(str(function.__module__), function.__code__.co_filename, False).is_program


def origin_of_name(name: str) -> Origin:
    """Where the module of a name comes from. A name without a module belongs to the program."""
    module = sys.modules.get(name)
    return origin_of(module) if isinstance(module, ModuleType) else Origin(PROGRAM, name)


def origin_of_function(function: FunctionType) -> Origin:
    """Where a function comes from: the module that has its globals. A function that `exec` made is the program's."""
    globals_ = function.__globals__
    name = globals_.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or vars(module) is not globals_:
        return Origin(PROGRAM, str(function.__module__))
    return origin_of(module)


def origin_of_class(cls: type) -> Origin:
    """Where a class comes from. A class that its module does not have under its name is the program's."""
    found = origin_of_name(cls.__module__ if isinstance(cls.__module__, str) else "")
    if found.is_program or not is_heap_type(cls) or is_found(cls):
        return found
    # A library may make classes inside functions or under other names: they are the library's if all methods are.
    methods = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
    is_of_library = bool(methods) and not any(origin_of_function(method).is_program for method in methods)
    return found if is_of_library else Origin(PROGRAM, cls.__module__)


def is_found(thing: Any) -> bool:
    """Whether the module of a function or class has it under its qualified name."""
    found: Any = sys.modules.get(str(getattr(thing, "__module__", "")))
    for part in str(getattr(thing, "__qualname__", "")).split("."):
        holder, found = found, vars(found).get(part) if isinstance(found, ModuleType | type) else None
        if found is None and isinstance(holder, ModuleType) and type(holder) is not ModuleType:
            with contextlib.suppress(Exception):  # an object that stands in for the module: `torch.backends`
                found = getattr(holder, part)
        found = getattr(found, "__func__", found)
    return found is thing


def top_level_folder(name: str, file: str, is_package: bool) -> str:
    """The folder from which a module with a file was imported."""
    depth = name.count(".") + (1 if is_package else 0) if name != "__main__" else 0
    return file.rsplit("/", depth + 1)[0] or "/"


@functools.lru_cache(maxsize=256)
def program_root(folder: str) -> str:
    """The checkout of a folder of code: the nearest folder above it with a file that marks a project."""
    here = Path(folder)
    for candidate in (here, *here.parents[: _MOST_PARENTS - 1]):
        if any((candidate / mark).exists() for mark in _MARKS):
            return str(candidate)
    return folder


@functools.cache
def _origin(name: str, file: str, is_package: bool) -> Origin:
    top = name.partition(".")[0]
    if top == WARMSTORE and sys.modules.get(WARMSTORE) is not None:
        return Origin(INSTALLED, WARMSTORE, f"{WARMSTORE} rules {_RULES}")
    if not file.startswith("/"):
        if top in sys.stdlib_module_names and top != "__main__" and not _file_of(top):
            return PYTHON_ORIGIN
        if top != name and _file_of(top):  # a module that a package made for itself
            return _origin(top, _file_of(top), hasattr(sys.modules[top], "__path__"))
        return Origin(PROGRAM, name)
    if _is_standard_library(top, file):
        return Origin(PYTHON, "python", PYTHON_ORIGIN.text, _stdlib()[0])
    folder = top_level_folder(name, file, is_package)
    record = _record_of(folder, file)
    if record is None:  # it has a name of its own: a module that a library of C made, or a copy within a package
        for parent in list(Path(file).parents)[:_MOST_PARENTS_INSTALLED]:
            if _infos(str(parent)) and (record := _record_of(str(parent), file)) is not None:
                folder = str(parent)
                break
    if record is None and top not in _OF_USERS and _is_beside_standard_library(file):
        return Origin(INSTALLED, name, f"{name} {_hash_of(file)}", folder)
    if record is None:
        return Origin(PROGRAM, name, "", folder)
    return Origin(INSTALLED, record.name, record.text + record.edited(file), folder)


def _file_of(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "")


@functools.cache
def _stdlib() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(
        dict.fromkeys(str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib") if paths.get(name))
    )


def _is_standard_library(top: str, file: str) -> bool:
    """Whether a file belongs to the standard library, and not to a package that is installed below it."""
    first = _place_in_standard_library(file) if top in sys.stdlib_module_names else ""
    return first == "lib-dynload" or first.partition(".")[0] in sys.stdlib_module_names


def _is_beside_standard_library(file: str) -> bool:
    """Whether a file lies in the folder of the standard library: a module that Linux distributions add to Python."""
    first = _place_in_standard_library(file)
    return first.endswith(".py") and first.removesuffix(".py") not in sys.stdlib_module_names


def _place_in_standard_library(file: str) -> str:
    """The file or folder in the folder of the standard library that holds a file; "" if the file is elsewhere."""
    for folder in _stdlib():
        with contextlib.suppress(ValueError):
            return Path(file).resolve().relative_to(folder).parts[0]
    return ""


def _hash_of(file: str) -> str:
    try:
        return xxhash.xxh3_64_hexdigest(Path(file).read_bytes())
    except OSError:
        return "cannot be read"


class _Record:
    """The files of one distribution, as its installer recorded them."""

    def __init__(self, info: Path, text: str) -> None:
        self.folder = info.parent
        self.info = info
        self._lookups = 0
        self._content = f"\n{text}\n"
        self._written = _installed_by(info / "RECORD") if text else 0
        name, _, version = info.name.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")
        self.name = name
        code = [line for line in text.splitlines() if line.partition(",")[0].endswith(_CODE)]
        listed = sorted(
            line for line in code if not line.startswith("..") and ".dist-info/" not in line.partition(",")[0]
        )
        self.text = f"{name} {version.partition('-')[0]} {xxhash.xxh3_64_hexdigest(chr(10).join(listed).encode())}"

    @cached_property
    def _files(self) -> dict[str, str]:
        """Lines by files. For few look-ups, a search in the text is faster."""
        return {line.partition(",")[0]: line for line in self._content.splitlines() if line}

    def lists(self, place: str) -> bool:
        """Whether a file belongs to this distribution, by its path beside the metadata."""
        return bool(self._line_of(place))

    def _line_of(self, place: str) -> str:
        self._lookups += 1
        if self._lookups > _FEW:
            return self._files.get(place, "")
        start = self._content.find(f"\n{place},") + 1
        return self._content[start : self._content.find("\n", start)] if start else ""

    def edited(self, file: str) -> str:
        """The hash of a file that was edited after it was installed; "" for any other file."""
        try:
            found = os.stat(file)  # noqa: PTH116  faster for thousands of modules
            _, digest, size = self._line_of(file[len(str(self.folder)) + 1 :]).rsplit(",", 2)
            if size == str(found.st_size) and found.st_mtime_ns <= self._written:
                return ""
            content = Path(file).read_bytes()
        except (OSError, ValueError, KeyError):
            return ""
        algorithm, _, recorded = digest.partition("=")
        now = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        if algorithm == "sha256" and now == recorded:
            return ""
        return f" {Path(file).name} edited {xxhash.xxh3_64_hexdigest(content)}"


def _installed_by(record: Path) -> int:
    """The time, in nanoseconds since 1970, by which a distribution's files were written; 0 if a wrong clock gave it.

    A file that is edited in place has a later time, unless the clock was ahead when the distribution was installed.
    """
    written = record.stat().st_mtime_ns + 10**9
    return written if written <= time.time_ns() + 10**9 else 0


@functools.cache
def _listed(folder: str) -> dict[str, Path]:
    """The metadata folder of each file of code that the distributions in a folder list."""
    found: dict[str, Path] = {}
    for info in sorted(Path(folder).glob("*.dist-info")):
        try:
            text = (info / "RECORD").read_text(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            place = line.partition(",")[0]
            if place.endswith(_CODE):
                found[place] = info
    return found


@functools.cache
def _record(info: Path) -> _Record:
    try:
        return _Record(info, (info / "RECORD").read_bytes().decode(errors="replace").replace("\r\n", "\n"))
    except OSError:
        return _Record(info, "")


def _record_of(folder: str, file: str) -> _Record | None:
    """The distribution that lists a file."""
    if not file.startswith(f"{folder}/"):
        return None
    place = file[len(folder) + 1 :]
    named = _infos(folder).get(normal_name(place.partition("/")[0].partition(".")[0]))
    if named is not None and (record := _record(Path(folder) / named)).lists(place):
        return record  # most have the name of their package; reading all records takes about 50 ms
    info = _listed(folder).get(place)
    return _record(info) if info is not None else _without_record(folder, place)


@functools.cache
def _infos(folder: str) -> dict[str, str]:
    """The names of the metadata folders in a folder, by the names of distributions."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".dist-info"))  # noqa: PTH208
    except OSError:
        return {}
    return {normal_name(name.partition("-")[0]): name for name in names}


@functools.cache
def _without_record(folder: str, place: str) -> _Record | None:
    """A distribution of the system's package manager, which records no files. It counts by its version."""
    top = place.partition("/")[0].removesuffix(".py")
    for info in (*Path(folder).glob("*.egg-info"), *Path(folder).glob("*.dist-info")):
        if (info / "RECORD").exists():
            continue
        try:
            names = (info / "top_level.txt").read_text().split()
        except OSError:
            names = []
        if top in names or normal_name(info.name.partition("-")[0]) == normal_name(top):
            return _record(info)
    return None


def metadata_of(name: str, folder: str) -> Path | None:
    """The folder with the metadata of a distribution, by its normal name; None if there is none."""
    info = _infos(folder).get(name)
    return None if info is None else Path(folder) / info


def normal_name(name: str) -> str:
    """The name of a distribution as it is compared."""
    return re.sub(r"[-_.]+", "_", name).lower()


def edited_files(origin: Origin) -> str:
    """The loaded modules of an installed distribution that were edited in place, with hashes; "" if there are none."""
    if origin.kind != INSTALLED or origin.name == WARMSTORE or not origin.folder:
        return ""
    return _edited(origin.name, origin.folder, len(sys.modules))


@functools.lru_cache(maxsize=64)
def _edited(name: str, folder: str, modules: int) -> str:
    # A loaded module does not follow later edits of its file, so the number of modules is a sufficient key.
    info = _infos(folder).get(normal_name(name))
    if info is None:
        return ""
    record, found = _record(Path(folder) / info), []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(f"{folder}/") and record.lists(place := file[len(folder) + 1 :]):
            changed = record.edited(file)
            if changed:
                found.append(changed.partition(" edited ")[2] + "/" + place)
    return " ".join(sorted(found))
