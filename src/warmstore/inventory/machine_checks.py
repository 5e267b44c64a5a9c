"""Checks of this machine for `warmstore doctor`: what is installed, where data goes, and whether there is room."""

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from warmstore.compiling.finding import Finding
from warmstore.errors import WarmstoreError, message_of
from warmstore.extras import EXTRAS
from warmstore.storage.humanize import format_size
from warmstore.storage.registry import VARIABLE, registered, registry_folder

_LITTLE_DISK = 1_000_000_000  # free bytes
_LITTLE_SHARED = 256_000_000  # bytes of /dev/shm; containers have 64 MB by default
_SHARED = Path("/dev/shm")
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "ceph", "glusterfs", "beegfs", "fuse", "9p", "afs")
_WITHIN = {"nvidia": "nvidia.dali"}
"""Packages within a name that other distributions share: torch brings `nvidia`, too."""

_BASE = ("numpy", "pyarrow", "xxhash", "zstandard", "lz4")


def check_machine() -> list[Finding]:
    """All findings. Takes seconds where torch is installed, which is imported."""
    return [*_versions(), *_extras(), *_floor(), *_disks(), *_shared_memory(), *_registry(), *_threads(), *_compiling()]


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"
    yield Finding("warmstore", True, f"{version('warmstore')} on Python {platform.python_version()}, {system}")
    yield Finding("packages", True, ", ".join(f"{name} {version(name)}" for name in _BASE))


def _extras() -> Iterator[Finding]:
    for extra in sorted(set(EXTRAS.values())):
        packages = [_WITHIN.get(name, name) for name, brings in EXTRAS.items() if brings == extra]
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
            text = f"{', '.join(missing)} not installed: pip install 'warmstore[{extra}]'"
        else:
            text = ", ".join(_with_version(name) for name in packages)
        yield Finding(f"extra {extra}", True, text)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # it is distributed under another name
        return package


def _floor() -> Iterator[Finding]:
    from warmstore._native import is_compiled

    text = "in use" if is_compiled else "not in use, and NumPy is slower; install warmstore with a C compiler present"
    if not is_compiled and os.environ.get("WARMSTORE_NATIVE") == "0":
        text = "turned off by WARMSTORE_NATIVE=0"
    yield Finding("compiled part", is_compiled, text)


def _disks() -> Iterator[Finding]:
    for name, find in (("this folder", Path.cwd), ("home", Path("~").expanduser), ("temporary", _temporary)):
        try:
            folder = find()
            free = shutil.disk_usage(folder).free
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
            yield Finding(f"disk of {name}", False, message_of(error))
            continue
        kind = _file_system(folder)
        text = f"{folder}: {format_size(free)} free, {kind or 'file system unknown'}"
        if kind.startswith(_NETWORK):
            text += "; a network: locks must work between its hosts, and local disks are faster"
        if not os.access(folder, os.W_OK):
            text += "; it cannot be written"
        yield Finding(f"disk of {name}", free >= _LITTLE_DISK, text)


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on; "" if the system does not tell."""
    real = os.path.realpath(folder)
    mounts = [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
    holding = [mount for mount in mounts if real == mount[0] or real.startswith(mount[0].rstrip("/") + "/")]
    return max(holding, key=lambda mount: len(mount[0]), default=("", ""))[1]


def _shared_memory() -> Iterator[Finding]:
    if not _SHARED.is_dir():
        text = "there is none; pipelines keep their memory tier in the temporary folder"
        yield Finding(str(_SHARED), sys.platform != "linux", text)
        return
    usage = shutil.disk_usage(_SHARED)
    text = f"{format_size(usage.total)}, {format_size(usage.free)} free"
    if usage.total < _LITTLE_SHARED:
        text += "; loader workers and memory tiers need more (docker run --shm-size)"
    yield Finding(str(_SHARED), usage.total >= _LITTLE_SHARED, text)


def _registry() -> Iterator[Finding]:
    if os.environ.get(VARIABLE) == "0":
        yield Finding("registry", True, f"turned off by {VARIABLE}=0; `warmstore ls FOLDER` finds what is in a folder")
        return
    try:
        folder = registry_folder()
    except RuntimeError as error:
        yield Finding("registry", False, f"{error}; set XDG_STATE_HOME")
        return
    there = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110
    text = f"{folder}: {len(registered()):,} folders"
    is_writable = there.is_dir() and os.access(there, os.W_OK)
    yield Finding("registry", is_writable, text if is_writable else f"{text}; {there} cannot be written")


def _threads() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    try:
        import torch
    except (ImportError, OSError) as error:  # such as a library of CUDA that is not there
        yield Finding("torch", False, f"it cannot be imported: {message_of(error)}")
        return
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    text = f"{threads} for {usable} cores"
    if variable := os.environ.get("OMP_NUM_THREADS"):
        text += f"; OMP_NUM_THREADS={variable}"
    if threads > usable:
        text += "; more threads than cores wait for each other: set OMP_NUM_THREADS"
    yield Finding("torch threads", threads <= usable, text)


def _compiling() -> Iterator[Finding]:
    """The findings of `warmstore compiled doctor`, if there is a compile cache. None is made."""
    try:
        from warmstore.compiling.doctor import doctor
        from warmstore.compiling.settings import default_folder

        folder = Path(os.environ.get("WARMSTORE_CACHE_DIR") or default_folder()).expanduser()
    except ImportError as error:
        yield Finding("compile cache", True, f"needs {error.name}: pip install 'warmstore[compile]'")
        return
    except RuntimeError as error:
        yield Finding("compile cache", False, f"{error}; set WARMSTORE_CACHE_DIR")
        return
    try:
        if not (folder / "index.sqlite").exists():
            yield Finding("compile cache", True, f"there is none in {folder}")
            return
        for finding in doctor(folder):
            yield Finding(f"compile cache: {finding.name}", finding.well, finding.said)
    except (WarmstoreError, OSError, ValueError) as error:
        yield Finding("compile cache", False, message_of(error))
