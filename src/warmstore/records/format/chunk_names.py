"""The files of chunks in a generation's folder: NNNNNN.arrow, by number."""

from pathlib import Path

from warmstore.storage.disk_usage import entries_below


def chunk_path(folder: Path, number: int) -> Path:
    """The path of a chunk's file."""
    return folder / f"{number:06d}.arrow"


def chunk_numbers(folder: Path) -> list[int]:
    """The numbers of the chunk files in a folder."""
    return [int(path.stem) for path in folder.glob("*.arrow") if path.stem.isdecimal()]


def chunk_bytes(folder: Path) -> int:
    """Bytes of the chunk files below a folder, which other processes may remove meanwhile."""
    return sum(status.st_size for path, status in entries_below(folder) if path.endswith(".arrow"))
