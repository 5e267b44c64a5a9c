"""The known formats, and the format of a source."""

import glob
import importlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.brace_patterns import expand
from warmstore.converting.record_source import RecordSource, Request
from warmstore.errors import BadSource, NoSource, UnknownFormat
from warmstore.records.format.array_interop import is_tensor
from warmstore.records.format.manifest import NAME as STORE_NAME


@dataclass(frozen=True)
class Format:
    """One format to convert from.

    suffixes: endings of file names. folder: the source is a folder, whose files the format's module lists. is_object:
        the source is an object in memory.
    options: arguments of `convert` that this format takes and others do not.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    folder: bool = False
    is_object: bool = False
    options: frozenset[str] = frozenset()

    def matches(self, path: Path) -> bool:
        name = path.name.lower()
        # Shards may have their number after the suffix: train.array_record-00000-of-00010
        return any(
            name.endswith(suffix) or re.search(re.escape(suffix) + r"-\d+-of-\d+$", name) for suffix in self.suffixes
        )

    def open(self, request: Request, files: Sequence[Path]) -> RecordSource:
        source: RecordSource = self._module.open_source(request, files)
        return source

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """The files of a source, in the order of its records.

        Raises:
            NoSource: a path does not exist. BadSource: a path has no files of this format.
        """
        found: list[Path] = []
        for path in paths:
            if not path.exists():
                raise NoSource(f"{path} does not exist")
            if self.folder:
                if not path.is_dir():
                    raise BadSource(f"{path} is a file; the format {self.name!r} is a folder")
                found += self._module.list_files(path)
            elif path.is_dir():
                found += sorted(below for below in path.rglob("*") if self.matches(below) and not _hidden(below, path))
            else:
                found.append(path)
        if not found:
            raise BadSource(f"{', '.join(map(str, paths))}: no files of the format {self.name!r}; pass another format=")
        return found

    @property
    def _module(self) -> Any:
        package = "objects" if self.is_object else "formats"
        return importlib.import_module(f"warmstore.converting.{package}.{self.name}")


FORMATS = {
    kind.name: kind
    for kind in (
        Format("array_record", (".array_record", ".arrayrecord", ".arecord"), options=frozenset({"decode"})),
        Format("arrays", is_object=True),
        Format("arrow", (".arrow", ".feather", ".ipc")),
        Format("csv", (".csv", ".tsv", ".csv.gz", ".tsv.gz")),
        Format("hdf5", (".h5", ".hdf5")),
        Format("hugging_face", folder=True),
        Format("images", folder=True, options=frozenset({"decode", "size"})),
        Format("iterable", is_object=True, options=frozenset({"batched"})),
        Format("jsonl", (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")),
        Format("map_style", is_object=True),
        Format("mds", folder=True, options=frozenset({"decode"})),
        Format("npy", (".npy",)),
        Format("npz", (".npz",)),
        Format("parquet", (".parquet", ".pq")),
        Format("table", is_object=True),
        Format("torchcachex", folder=True),
        Format("webdataset", (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")),
    )
}
"""Every format to convert from, by name."""

OF_FILES = [kind.name for kind in FORMATS.values() if not kind.is_object]
"""The names of the formats of files and folders."""

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_TABLES = {
    "pandas.DataFrame",
    "polars.DataFrame",
    "pyarrow.Dataset",
    "pyarrow.RecordBatch",
    "pyarrow.RecordBatchReader",
    "pyarrow.Table",
}


def named(name: str) -> Format:
    """The format with a name.

    Raises:
        UnknownFormat: no such format; the message lists all formats.
    """
    if name not in FORMATS:
        raise UnknownFormat(f"there is no format {name!r} to convert from; known are {', '.join(FORMATS)}")
    return FORMATS[name]


def paths_of(source: Any) -> list[Path] | None:
    """The paths that a source names, or None when it is an object.

    Patterns are expanded: braces such as "train-{000..099}.tar", and "*", "?", "[...]" and "**".

    Raises:
        NoSource: a pattern matches no file, or a path that braces expand to does not exist.
    """
    if isinstance(source, str | os.PathLike):
        return _expanded(os.fspath(source))
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        return [path for item in source for path in paths_of(item) or []]
    return None


def _expanded(pattern: str) -> list[Path]:
    if Path(pattern).exists():
        return [Path(pattern)]
    names = expand(pattern)
    if names == [pattern] and not glob.has_magic(pattern):
        return [Path(pattern)]
    paths: list[Path] = []
    missing = []
    for name in names:
        if Path(name).exists():
            paths.append(Path(name))
        elif glob.has_magic(name) and (matches := sorted(glob.glob(name, recursive=True))):  # noqa: PTH207 - absolute too
            paths += map(Path, matches)
        else:
            missing.append(name)
    if missing and len(names) > 1:
        raise NoSource(
            f"{missing[0]} does not exist: {len(missing):,} of the {len(names):,} names that {pattern!r} expands to "
            "are missing"
        )
    if missing:
        raise NoSource(f"no file matches {pattern!r}")
    return paths


def root_of(source: Any) -> Path:
    """The folder below which folder names are Hive partitions: the part of a source's path without patterns."""
    if not isinstance(source, str | os.PathLike):
        return Path(os.path.commonpath([root_of(item) for item in source]))
    path = Path(source).absolute()
    if path.exists():
        return path if path.is_dir() else path.parent
    return Path(re.split(r"[*?\[{]", str(path))[0] + "x").parent


def detect(source: Any, paths: Sequence[Path] | None) -> Format:
    """The format of a source.

    Raises:
        NoSource: a path does not exist. UnknownFormat: the format cannot be found.
    """
    if paths is None:
        return FORMATS[_kind_of_object(source)]
    path = paths[0]
    if not path.exists():
        raise NoSource(f"{path} does not exist")
    found = (
        _kind_of_folder(path) if path.is_dir() else next((f.name for f in FORMATS.values() if f.matches(path)), None)
    )
    if found is None:
        raise UnknownFormat(
            f"the format of {path} cannot be told from {'the files in it' if path.is_dir() else 'its name'}; pass "
            f"format=, one of {', '.join(OF_FILES)}"
        )
    return FORMATS[found]


def _kind_of_object(source: Any) -> str:
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(source).__mro__}
    if "datasets.DatasetDict" in names:
        raise UnknownFormat(
            f"a DatasetDict holds several data sets; convert one, such as source[{next(iter(source))!r}]"
        )
    if "polars.LazyFrame" in names:
        raise UnknownFormat("a LazyFrame is a query and holds no records: convert source.collect()")
    if "datasets.Dataset" in names:
        return "hugging_face"
    if names & _TABLES:
        return "table"
    if isinstance(source, np.ndarray | Mapping) or is_tensor(source):
        return "arrays"
    if "torch.Dataset" in names and "torch.IterableDataset" not in names:
        return "map_style"
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return "iterable"
    raise UnknownFormat(
        f"a {type(source).__name__} cannot be converted; pass a path, an array, a dict of arrays, a table or data "
        "frame, a datasets.Dataset, a torch Dataset, or an iterable of records"
    )


def _kind_of_folder(path: Path) -> str | None:
    if (path / STORE_NAME).exists():
        raise UnknownFormat(f"{path} is a store already; open it with RecordStore.open({str(path)!r})")
    if (path / "segments").is_dir():
        return "torchcachex"
    if (path / "index.json").is_file() and b'"mds"' in (path / "index.json").read_bytes():
        return "mds"
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        return "hugging_face"
    below = [file for file in path.rglob("*") if file.is_file() and not _hidden(file, path)]
    # A folder of images may also hold a table of labels. The format of most files decides.
    counts = {name: sum(map(kind.matches, below)) for name, kind in FORMATS.items()}
    del counts["images"]  # the last entry, so that another format wins a tie
    counts["images"] = sum(file.suffix.lower() in IMAGES for file in below)
    if any((folder / "segments").is_dir() for folder in path.iterdir()):
        return "torchcachex"
    most = max(counts, key=lambda name: counts[name])
    return most if counts[most] else None


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
