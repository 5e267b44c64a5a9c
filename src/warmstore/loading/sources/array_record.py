"""ArrayRecord files as a source: records by position, as bytes. The files open in each process that reads them."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource, NoSource, NotInstalled
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.sources.source import Source


@final
class ArrayRecordSource(Source):
    """The records of some files, one file after the other.

    Raises:
        NoSource: a file is not there.
        BadSource: a file that cannot be read.
        NotInstalled: the package array_record is needed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [path.absolute() for path in paths]
        for path in self._paths:
            if not path.exists():
                raise NoSource(f"{path} is not there")
        self._local = threading.local()  # readers are not made for several threads at once
        counts = [reader.num_records() for reader in self._readers()]
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, positions: Int64) -> list[bytes]:
        files = np.searchsorted(self._ends, positions, side="right")
        readers = self._readers()
        records: list[bytes] = [b""] * len(positions)
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            before = int(self._ends[file - 1]) if file else 0
            try:
                found = readers[file].read((positions[places] - before).tolist())
            except (OSError, RuntimeError, ValueError) as error:
                raise BadSource(f"{self._paths[file]} cannot be read: {error}") from None
            for place, record in zip(places.tolist(), found, strict=True):
                records[place] = record
        return records

    def _readers(self) -> list[Any]:
        if not hasattr(self._local, "readers"):
            self._local.readers = [_opened(path) for path in self._paths]
        return self._local.readers  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return ArrayRecordSource, (self._paths,)


def _opened(path: Path) -> Any:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise NotInstalled(f"{path} needs array-record: pip install warmstore[convert] ({error})") from None
    try:
        reader = ArrayRecordReader(str(path), options="readahead_buffer_size:0,max_parallelism:0")
        if not reader.ok():
            reader.close()  # raises what was wrong
            raise ValueError("it is damaged")
    except (OSError, RuntimeError, ValueError) as error:
        raise BadSource(f"{path} cannot be read as an ArrayRecord file: {error}") from None
    return reader
