"""Single flight: of several processes that need the same artifact, one compiles and the others wait for it.

A flight is a lock on one of 4,096 empty files, chosen by a hash of the key. The system releases the lock when its
process ends. Two keys with the same file wait for each other, which only costs time. A lock of `flock` belongs to an
open file, so other code of the process that opens and closes the same file does not release it.
"""

import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path

from warmstore.storage.interrupts import uninterrupted

_FILES = 1 << 12


class SingleFlight:
    """The flights of one process, with files in a folder that is created if missing. Raises OSError if it cannot be
    written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(self._open(folder / "000"))
        self._folder = folder
        self._held: dict[Path, int] = {}
        self._is_closed = False
        self._guard = threading.Lock()

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def begin(self, key: str) -> bool:
        """Take the flight of `key`. False if another process has it; true also if no lock can be taken at all."""
        path = self._file(key)
        is_taken = False
        try:
            with uninterrupted(), self._guard:
                if self._is_closed or path in self._held:
                    return True
                try:
                    file = self._open(path)
                except OSError:
                    return True  # the folder is gone: compile without a lock
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(file)
                    return False
                self._held[path] = file
                is_taken = True
                return True
        except BaseException:  # an interrupt, after which nobody would end the flight
            if is_taken:
                self.end(key)
            raise

    def wait(self, key: str, seconds: float) -> bool:
        """Take the flight of `key` as soon as no other process has it. False after that many seconds."""
        end = time.monotonic() + seconds
        pause = 0.005
        while not self.begin(key):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return True

    def end(self, key: str) -> None:
        """Release the flight of `key`, if this process has it."""
        with self._guard:
            file = self._held.pop(self._file(key), None)
            if file is not None:
                self._release(file)

    def close(self) -> None:
        """Release all flights. From then on `begin` is always true."""
        with self._guard:
            while self._held:
                self._release(self._held.popitem()[1])
            self._is_closed = True

    def leave(self) -> None:
        """In a forked child: close the files. The flights are the parent's; an open file would keep them locked."""
        self._guard = threading.Lock()
        while self._held:
            os.close(self._held.popitem()[1])
        self._is_closed = True

    @staticmethod
    def _release(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may still have the file open
        os.close(file)

    def _file(self, key: str) -> Path:
        return self._folder / f"{int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % _FILES:03x}"
