"""The machine a figure belongs to: what matters for reading it, and no names of hosts, users or folders."""

from __future__ import annotations

import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

PACKAGES = (
    "torch",
    "numpy",
    "pyarrow",
    "lmdb",
    "pylance",
    "datasets",
    "array-record",
    "loaderx",
    "h5py",
    "zstandard",
    "grain",
    "joblib",
    "diskcache",
    "dask",
)


def facts(folder: Path) -> dict[str, str]:
    """Cores, memory, system and versions; the file system is that of the data folder."""
    found = {
        "cores": f"{psutil.cpu_count(logical=False) or '?'} ({psutil.cpu_count()} logical)",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "file system": file_system(folder),
        "Python": platform.python_version(),
    }
    return found | {package: _version(package) for package in PACKAGES}


def file_system(folder: Path) -> str:
    """The type of the file system the folder is on: "ext4", "tmpfs", ..."""
    places = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    path = folder.resolve()
    return next((places[parent] for parent in (path, *path.parents) if parent in places), "unknown")


def disk_folder() -> Path:
    """Where data goes unless told otherwise: the temporary folder, or /var/tmp where that one is memory."""
    usual = Path(tempfile.gettempdir())
    return Path("/var/tmp") if file_system(usual) == "tmpfs" else usual


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
