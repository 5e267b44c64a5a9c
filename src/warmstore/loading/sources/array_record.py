"""ArrayRecord files as a source of bytes. Each thread of each process opens the files."""

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from warmstore.converting.formats.array_record import open_reader
from warmstore.errors import BadSource, NoSource
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.sources.parts import Parts
from warmstore.storage.cached_property import cached_property

_NAME = re.compile(r"\.(array_record|arrayrecord|array-record)(-\d+-of-\d+)?$")
_SHOWN = 4


def is_array_record(path: Path) -> bool:
    """Whether a file is named like an ArrayRecord file: `train.array_record`, `train.array_record-00000-of-00002`."""
    return _NAME.search(path.name) is not None


def shards_beside(path: Path) -> list[Path]:
    """The ArrayRecord files in a folder; or the shards beside a missing file such as `train.array_record`."""
    folder, start = (path, "") if path.is_dir() else (path.parent, _NAME.sub("", path.name))
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if is_array_record(file) and file.name.startswith(start))


def advice(path: Path) -> str:
    """Advice to pass ArrayRecord files instead of a folder or a missing path; "" if there are none."""
    found = shards_beside(path)
    if not found:
        return ""
    names = ", ".join(file.name for file in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    where = path if path.is_dir() else path.parent
    pattern = "*" if path.is_dir() else f"{_NAME.sub('', path.name)}.*"
    return f"{where} holds {names}: pass the files, as in sorted(Path({str(where)!r}).glob({pattern!r}))"


@final
class ArrayRecordSource(Source):
    """The records of some files, one file after the other.

    Raises:
        NoSource: a file does not exist. BadSource: a file cannot be read. NotInstalled: array_record is needed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [path.absolute() for path in paths]
        for path in self._paths:
            if not path.exists():
                raise NoSource(". ".join(filter(None, [f"{path} does not exist", advice(path)])))
        self._local = threading.local()  # a reader must not be used by several threads at once
        self._counts = [int(reader.num_records()) for reader in self._readers()]
        self._parts = Parts(self._counts)

    @cached_property
    def identity(self) -> Any:
        """Names, sizes and numbers of records of the files."""
        files = [[path.name, path.stat().st_size, count] for path, count in zip(self._paths, self._counts, strict=True)]
        return {"kind": "array_record", "files": files}

    @property
    def forks(self) -> bool:
        """False: the threads of the library do not survive a fork, and the child crashes."""
        return False

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, positions: Int64) -> list[bytes]:
        readers = self._readers()
        records: list[bytes] = [b""] * len(positions)
        for file, places, within in self._parts.by_part(positions):
            try:
                found = readers[file].read(within.tolist())
            except (OSError, RuntimeError, ValueError) as error:
                raise BadSource(f"{self._paths[file]} cannot be read: {error}") from None
            for place, record in zip(places.tolist(), found, strict=True):
                records[place] = record
        return records

    def _readers(self) -> list[Any]:
        if not hasattr(self._local, "readers"):
            self._local.readers = [open_reader(path) for path in self._paths]
        return self._local.readers  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return ArrayRecordSource, (self._paths,)
