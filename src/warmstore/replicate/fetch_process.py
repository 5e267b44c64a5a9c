"""FetchProcess: fetches blocks for a forked process, in which obstore does not work.

It is a new interpreter that opens the same block cache. The table of blocks and the files of chunks are shared, so what
it fetches is there for the process that asks. It ends with its pipe.
"""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmstore.errors import RemoteUnavailable
from warmstore.replicate.remote_chunk import PAGES
from warmstore.storage.array_types import Int64

if TYPE_CHECKING:
    from warmstore.storage.files import Files


class FetchProcess:
    """The process that fetches for this one, started with the first fetch. Safe to use from several threads.

    Args:
        files: the `RemoteFiles` of the block caches.
    """

    _process: subprocess.Popen[bytes] | None = None  # also where the constructor was interrupted

    def __init__(self, files: "Files") -> None:
        self._files = files
        self._lock = threading.Lock()

    def fetch(self, folder: Path, pages: Int64, *, ahead: bool) -> None:
        """`BlockCache.fetch` of the cache in a folder.

        Raises:
            What it raises there. RemoteUnavailable: the process has died.
        """
        with self._lock:
            try:
                process = self._running()
                assert process.stdin is not None
                assert process.stdout is not None
                pickle.dump((folder, pages, ahead), process.stdin)
                process.stdin.flush()
                error = pickle.load(process.stdout)
            except (OSError, EOFError) as broken:
                self.close()
                raise RemoteUnavailable(f"the process that fetches for this forked one has ended: {broken}") from None
            except BaseException:
                self.close()  # an interrupt: the next answer would be that of this question
                raise
        try:
            if error is not None:
                raise error
        finally:
            del error  # it would keep this frame, and those of the callers

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            try:
                files = pickle.dumps(self._files)
            except Exception as error:  # what a user's class raises
                raise RemoteUnavailable(
                    "a forked process fetches through another one, to which the options of this remote cannot be sent "
                    f"({error}); use a credential_provider that can be pickled, or start workers by spawn"
                ) from None
            path = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                process_group=0,  # Ctrl-C is for the program; the end of stdin ends this process
            )
            assert self._process.stdin is not None
            self._process.stdin.write(files)
        return self._process

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def __del__(self) -> None:
        self.close()


def serve() -> None:
    """Fetch what is asked for on stdin, and answer on stdout, until stdin ends."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not disturb the answers
    files: Any = pickle.load(questions)
    try:
        while True:
            try:
                folder, pages, ahead = pickle.load(questions)
            except EOFError:
                return
            error: Exception | None = None
            try:
                source = files.block_source(folder)
                for number in set((pages // PAGES).tolist()):
                    source.base_index(number)  # the chunk may be new to this process
                source.fetch(pages, ahead=ahead)
            except Exception as raised:
                error = raised
            pickle.dump(error, answers)
            answers.flush()
    finally:
        files.release()


if __name__ == "__main__":
    serve()
