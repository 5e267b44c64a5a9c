"""Kernels of notebooks, which the tests drive as a front end does: cells, interrupts and restarts."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests import warm

pytest.importorskip("ipykernel")
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.connect import write_connection_file

PRELOAD = (*warm.COMMON, "ipykernel.kernelapp", "ipywidgets", "tqdm.std")
_SECONDS = 60


@dataclass
class Cell:
    """What a cell showed. text: of streams. shown: by MIME type, the data of results and displays."""

    text: str = ""
    shown: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    """The name of the exception that ended the cell."""
    trace: str = ""

    @property
    def html(self) -> str:
        """All HTML of results."""
        return "".join(data.get("text/html", "") for data in self.shown)


class Kernel:
    """A kernel in a process of its own, with a session of its own, as notebook servers start it."""

    def __init__(self, folder: Path) -> None:
        # Sockets in the folder: another kernel, which starts at the same time, may take a port that was free.
        file, _ = write_connection_file(str(folder / "kernel.json"), ip=str(folder / "kernel"), transport="ipc")
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", file, "--HistoryManager.enabled=False"]
        self.process = warm.popen(
            command,
            preload=PRELOAD,
            cwd=folder,
            env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.client = BlockingKernelClient(connection_file=file)
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(_SECONDS)

    def run(self, code: str, *, while_running: Callable[[str], None] | None = None) -> Cell:
        """Run a cell to its end.

        Args:
            while_running: called with every text that the cell prints.
        """
        number = self.client.execute(code)
        cell = Cell()
        while True:
            message = self.client.get_iopub_msg(timeout=_SECONDS)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                cell.text += content["text"]
                if while_running is not None:
                    while_running(content["text"])
            elif kind in ("display_data", "execute_result"):
                cell.shown.append(content["data"])
            elif kind == "error":
                cell.error, cell.trace = content["ename"], "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        self.client.get_shell_msg(timeout=_SECONDS)
        return cell

    def check(self, code: str) -> Cell:
        """Run a cell that must not fail."""
        cell = self.run(code)
        assert not cell.error, cell.trace
        return cell

    def interrupted(self, code: str) -> Cell:
        """Run a cell, and interrupt it once it prints "now": the whole process group gets a SIGINT."""

        def interrupt(text: str) -> None:
            if "now" in text:
                os.killpg(self.process.pid, signal.SIGINT)

        cell = self.run(code, while_running=interrupt)
        assert cell.error == "KeyboardInterrupt", (cell.error, cell.trace, cell.text)
        return cell

    def kill(self) -> None:
        """Restart does this to a kernel that does not end by itself."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.client.stop_channels()

    def close(self) -> None:
        """Shut the kernel down, as a notebook does."""
        self.client.shutdown()
        self.process.wait(_SECONDS)
        self.client.stop_channels()


@contextmanager
def kernel(folder: Path) -> Iterator[Kernel]:
    """A kernel that is shut down in the end."""
    made = Kernel(folder)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.close()
