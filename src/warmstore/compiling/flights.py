"""Single flight: of several processes that need the same thing compiled, one compiles and the others wait for it.

A flight is a lock on one byte of a file, at an offset that its key decides. The system lets go of it when its process
ends, so nobody waits for the dead, and the file does not grow.
"""

import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path


class Flights:
    """The flights of one process.

    Args:
        path: The file that holds the locks; made when missing.

    Raises:
        OSError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._mine: set[int] = set()
        self._guard = threading.Lock()

    def begin(self, key: str) -> bool:
        """Take the flight of `key` if nobody in another process has it. Also true for one that is ours already."""
        offset = _offset(key)
        with self._guard:
            if self._file < 0 or offset in self._mine:
                return True
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError:
                return False
            self._mine.add(offset)
            return True

    def wait(self, key: str, seconds: float) -> bool:
        """Take the flight of `key` as soon as the other process is through with it; false after that many seconds."""
        end = time.monotonic() + seconds
        pause = 0.005
        while not self.begin(key):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return True

    def end(self, key: str) -> None:
        """Let the others go on. Ending a flight that is not ours does nothing."""
        offset = _offset(key)
        with self._guard:
            if offset in self._mine and self._file >= 0:
                self._mine.discard(offset)
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)

    def close(self) -> None:
        """End all of them. From then on `begin` is always true."""
        with self._guard:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            self._mine.clear()


def _offset(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 2
