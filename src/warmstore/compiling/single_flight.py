"""Single flight: of several processes that need the same thing compiled, one compiles and the others wait for it.

A flight is a lock on one of 4,096 empty files, which its key decides. The system lets go of it when its process ends,
so nobody waits for the dead. Two keys of one file wait for each other, which costs time and nothing else. Locks belong
to a file that was opened (`flock`), and not to the process, so nothing else in it that opens and closes the same file
lets go of them.
"""

import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path

_FILES = 1 << 12


class SingleFlight:
    """The flights of one process.

    Args:
        folder: Holds the files; made when missing.

    Raises:
        OSError: nothing can be written there.
    """

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
        """Take the flight of `key` if nobody in another process has it. Also true for one that is ours already."""
        path = self._file(key)
        with self._guard:
            if self._is_closed or path in self._held:
                return True
            try:
                file = self._open(path)
            except OSError:
                return True  # the folder is gone: who cannot lock compiles
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                return False
            self._held[path] = file
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
        with self._guard:
            file = self._held.pop(self._file(key), None)
            if file is not None:
                self._let_go(file)

    def close(self) -> None:
        """End all of them. From then on `begin` is always true."""
        with self._guard:
            while self._held:
                self._let_go(self._held.popitem()[1])
            self._is_closed = True

    def leave(self) -> None:
        """In a forked child: forget all of them. They are the parent's, and the child would keep them from ending."""
        self._guard = threading.Lock()
        while self._held:
            os.close(self._held.popitem()[1])
        self._is_closed = True

    @staticmethod
    def _let_go(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile may still have the file open
        os.close(file)

    def _file(self, key: str) -> Path:
        return self._folder / f"{int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % _FILES:03x}"
