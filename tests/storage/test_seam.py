"""Everything that a store does to files goes through `Files`, so that fault tests can fail, stop or kill all of it."""

import re
from pathlib import Path

import warmstore

AROUND = re.compile(
    r"\bos\.(open|p?read|p?write|replace|rename|unlink)\w*\(|\.(read|write)_(bytes|text)\(|(?<![\w.])open\(|sqlite3\.connect\("
)
ROOMS = ("compiling", "records", "remote", "replicate", "storage")
ALLOWED = {
    "compiling/probes.py": 2,  # files of the system's in /proc
    "compiling/single_flight.py": 1,  # a lock file of no content; it must not follow a link
    "remote/credentials.py": 1,  # a file of Google's
    "remote/signing.py": 1,  # a file of keys, whose owner and mode are those of the descriptor that is read
    "storage/boot.py": 1,  # reads a number of the system's in /proc
    "records/maintenance/store_summary.py": 1,  # reads for lists alone, without the NumPy that the seam imports
    "storage/registry.py": 2,  # reads and drops entries, on which nothing of a store depends, without that NumPy
    "storage/memory/memory_limits.py": 3,  # control groups, which the system shows as files
    "storage/lease.py": 1,  # a lock file of no content; it must not follow a link that somebody else has put there
    "storage/reading_lease.py": 1,  # a folder, to lock it, without the NumPy that the seam imports
}


def test_no_file_is_opened_around_the_seam() -> None:
    house = Path(warmstore.__file__).parent
    found = {
        str(path.relative_to(house)): lines
        for room in ROOMS
        for path in sorted((house / room).rglob("*.py"))
        if path != house / "storage/files.py"
        and (
            lines := [line for line in path.read_text().splitlines() if AROUND.search(line) and "def open(" not in line]
        )
    }
    assert {name: len(lines) for name, lines in found.items()} == ALLOWED, found


def test_the_search_finds_what_opens_files() -> None:
    around = [
        "with open(path) as file:",
        "os.open(path, 0)",
        "path.read_bytes()",
        "draft.write_text(said)",
        "os.pread(1, 2, 3)",
        "sqlite3.connect(path)",
    ]
    assert all(AROUND.search(line) for line in around)
    assert not any(AROUND.search(line) for line in ("files.open(path)", "self._open(path)", "RecordStore.open(path)"))
