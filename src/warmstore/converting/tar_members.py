"""The files in a tar, compressed or not, read as a stream.

Python's tarfile treats a damaged header as the end of the tar. Here it is an error; so are a missing end marker,
content after the end marker, and a wrong checksum of the compression.
"""

import bz2
import contextlib
import gzip
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

import zstandard

from warmstore.converting.record_source import reading
from warmstore.errors import BadSource

_BLOCK = 1 << 20
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZSTD = b"\x28\xb5\x2f\xfd"


class _CutShort(tarfile.ReadError):
    """A tar that was cut short, or has a damaged header."""


class _Member(tarfile.TarInfo):
    """A header. A damaged header raises an error that tarfile does not treat as the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        at = tarfile_.offset
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise  # the marker of the end
        except tarfile.HeaderError as error:
            raise _CutShort(
                f"the header at byte {at:,} of the tar is damaged, or the tar was cut short: {error}"
            ) from None


def members_of(path: Path) -> Iterator[tuple[str, bytes, int]]:
    """The names and contents of the files in a tar, in order, each with the bytes of the tar read so far.

    Raises:
        BadSource: the tar is damaged or cut short, or has links.
    """
    with reading(path), open(path, "rb") as file, _unpacked(file) as content, _opened(path, content) as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # else tarfile keeps every member in memory
            if member.isdir():
                continue
            if not member.isfile():
                raise BadSource(
                    f"{path}: {member.name} is a link or a device, which has no content. Write the tar again with the "
                    "files themselves (tar --dereference --hard-dereference)"
                )
            data = tar.extractfile(member)
            yield member.name, data.read() if data else b"", file.tell()
        _check_end(path, tar)


def _check_end(path: Path, tar: tarfile.TarFile) -> None:
    stream: Any = tar.fileobj
    while block := stream.read(_BLOCK):
        if block.strip(b"\0"):
            raise BadSource(f"{path} has content after the end of the tar; split concatenated tars into one file each")


def _opened(path: Path, content: IO[bytes]) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=content, mode="r|", tarinfo=_Member)
    except _CutShort as error:
        raise BadSource(f"{path} is not a tar: {error}") from None


def _unpacked(file: IO[bytes]) -> Any:
    start = file.read(6)
    file.seek(0)
    if start.startswith(_ZSTD):
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    for magic, opener in _OPENERS.items():
        if start.startswith(magic):
            return opener(file)
    return contextlib.nullcontext(file)
