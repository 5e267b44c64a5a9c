"""The format of a source: of an object by its type, of files by their names, of a folder by what is in it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.known_formats import FORMATS, IMAGES, OF_FILES, Format
from warmstore.converting.source_paths import files_below
from warmstore.errors import NoSource, UnknownFormat
from warmstore.records.format.array_interop import is_tensor
from warmstore.records.format.manifest import NAME as STORE_NAME

_TABLES = {
    "pandas.DataFrame",
    "polars.DataFrame",
    "pyarrow.Dataset",
    "pyarrow.RecordBatch",
    "pyarrow.RecordBatchReader",
    "pyarrow.Table",
}


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
    below = {hidden: files_below(path, hidden) for hidden in {kind.hidden for kind in FORMATS.values()}}
    # A folder of images may also hold a table of labels. The format of most files decides.
    counts = {name: sum(map(kind.matches, below[kind.hidden])) for name, kind in FORMATS.items()}
    del counts["images"]  # the last entry, so that another format wins a tie
    counts["images"] = sum(file.suffix.lower() in IMAGES for file in below[FORMATS["images"].hidden])
    if any((folder / "segments").is_dir() for folder in path.iterdir()):
        return "torchcachex"
    most = max(counts, key=lambda name: counts[name])
    return most if counts[most] else None
