"""The table of the known formats. It imports no library, so that the command line can list the formats."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmstore.converting.source_paths import files_below
from warmstore.errors import BadSource, NoSource, UnknownFormat

if TYPE_CHECKING:
    from warmstore.converting.record_source import RecordSource, Request


@dataclass(frozen=True)
class Format:
    """One format to convert from.

    suffixes: endings of file names. folder: the source is a folder, whose files the format's module lists. is_object:
        the source is an object in memory.
    options: arguments of `convert` that this format takes and others do not. hidden: beginnings of the names of files
        and folders in a folder that are no data.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    folder: bool = False
    is_object: bool = False
    options: frozenset[str] = frozenset()
    hidden: tuple[str, ...] = (".", "_")

    def matches(self, path: Path) -> bool:
        return plain_name(path).endswith(self.suffixes)

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
                found += filter(self.matches, files_below(path, self.hidden))
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
        Format("images", folder=True, options=frozenset({"decode", "size"}), hidden=(".",)),
        Format("iterable", is_object=True, options=frozenset({"batched"})),
        Format("jsonl", (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")),
        Format("map_style", is_object=True),
        Format("mds", folder=True, options=frozenset({"decode"})),
        Format("npy", (".npy",), hidden=(".",)),
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


def plain_name(path: Path) -> str:
    """The name of a file in small letters, without the number of a shard behind it: train.csv-00000-of-00010."""
    return re.sub(r"-\d+-of-\d+$", "", path.name.lower())


def named(name: str) -> Format:
    """The format with a name.

    Raises:
        UnknownFormat: no such format; the message lists all formats.
    """
    if name not in FORMATS:
        raise UnknownFormat(f"there is no format {name!r} to convert from; known are {', '.join(FORMATS)}")
    return FORMATS[name]
