"""Pages of the documentation as programs: their blocks of code, and a run of them in the order of the page.

A block starts with comments that say what is special about it. `# needs: grain, a GPU`, always the first line, names
packages that warmstore does not bring, or what only some machines have. `# train.py` makes it a file, which runs as a
program of its own; `# train.py, run by: COMMAND` runs it by that command. All other blocks of Python of a page share
one process, as if they were pasted into an interpreter, and a page has a folder of its own, which is empty at first.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from tests import warm

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NEEDS = re.compile(r"# needs: (.+)")
_FILE = re.compile(r"# ([\w-]+\.py)(?:, run by: (.+))?")
_SHELL_SYNTAX = re.compile(r"[|&;<>`]|\$\(")


class PageError(AssertionError):
    """A block of a page does not run as it stands."""


@dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    page: str
    line: int  # of its first line of code, from 1
    language: str
    code: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages by the name of their import, and other things as `a bucket`."""
        found = _NEEDS.fullmatch(self.code.partition("\n")[0])
        return tuple(found[1].split(", ")) if found else ()

    @property
    def file(self) -> tuple[str, str] | None:
        """The name of the file that the block is, and the command that runs it."""
        lines = self.code.splitlines()[1 if self.needs else 0 :]
        found = _FILE.fullmatch(lines[0]) if lines else None
        return (found[1], found[2] or f"python {found[1]}") if found else None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def is_possible(self, libraries: bool) -> bool:
        """Whether this machine has all that the block needs.

        Without `libraries` the answer is no if it needs any, or is run by a command that takes seconds to start.
        """
        quick = self.file is None or self.file[1].startswith("python ")
        return (libraries or quick) and all(libraries and _is_installed(name) for name in self.needs)


def _is_installed(name: str) -> bool:
    try:
        return " " not in name and find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def pages() -> list[str]:
    """All pages, relative to the root."""
    return sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks_of(page: str, root: Path = ROOT) -> list[Block]:
    """The blocks of code of a page, in order, whatever their language."""
    text = (root / page).read_text()
    return [Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2]) for found in _FENCE.finditer(text)]


def run_page(
    page: str,
    folder: Path,
    *,
    libraries: bool = False,
    strict: bool = True,
    root: Path = ROOT,
    environment: dict[str, str] | None = None,
) -> str:
    """Run the blocks of a page in order, and return what they print.

    Args:
        page: relative to `root`.
        folder: an empty folder, in which the page runs.
        libraries: also blocks that need packages besides warmstore's own, if those are installed.
        strict: a warning is an error.

    Raises:
        PageError: a block fails. The message has its place and what it said.
    """
    with tempfile.TemporaryFile("w+") as log:
        run = _Run(folder, strict, environment or {}, log)
        try:
            for block in blocks_of(page, root):
                if block.language in ("python", "sh") and block.is_possible(libraries):
                    run.block(block)
            run.close()
        finally:
            run.kill()
        return run.output()


class _Run:
    """The process of a page's Python, and what its shell has exported."""

    def __init__(self, folder: Path, strict: bool, environment: dict[str, str], log: TextIO) -> None:
        self._folder = folder
        self._options = ["-W", "error", "-W", "ignore::DeprecationWarning:torch.jit._script"] if strict else []
        home = folder.parent / f"{folder.name}-home"  # what users have elsewhere: neither theirs nor in the folder
        home.mkdir(exist_ok=True)
        self._environment = {
            **os.environ,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_STATE_HOME": str(home / ".state"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            **environment,
        }
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._place = ""

    def block(self, block: Block) -> None:
        self._place = block.place
        if block.language == "sh":
            for line in _joined(block.code):
                self._shell(line)
        elif block.file:
            name, command = block.file
            (self._folder / name).write_text(block.code)
            self._program(shlex.split(command))
        else:
            self._python(block)

    def close(self) -> None:
        """End the process of the page as an interpreter ends."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._check(self._process.wait())

    def kill(self) -> None:
        if self._process is not None:
            with self._process:
                self._process.kill()

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _python(self, block: Block) -> None:
        if self._process is None:
            self._process = warm.popen(
                [sys.executable, *self._options, Path(__file__).with_name("page_program.py")],
                cwd=self._folder,
                env=self._environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"code": block.code, "line": block.line, "environment": self._environment}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        self._check(0 if self._process.stdout.readline() == "done\n" else 1)

    def _shell(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if not words or words[0] == "make" or words[:2] == ["pip", "install"]:  # of a checkout, or an environment
            return
        if words[0] == "export":
            for word in words[1:]:
                name, _, value = word.partition("=")
                self._environment[name] = value.replace("~", self._environment["HOME"])
        elif words[0] == "warmstore" and not _SHELL_SYNTAX.search(line):
            home = self._environment["HOME"]
            self._program([word.replace("~", home) if word.startswith("~") else word for word in words])
        else:
            self._check(self._call(subprocess.run, ["bash", "-ec", line]))

    def _program(self, words: Sequence[str]) -> None:
        """Run a command. Python and warmstore start in a fork of a warm interpreter."""
        if words[0] == "warmstore":
            words = ["python", "-m", *words]
        if words[0] == "python":
            self._check(self._call(warm.run, [sys.executable, *self._options, *words[1:]]))
        else:
            self._check(self._call(subprocess.run, [*words]))

    def _call(self, run: Any, command: list[str]) -> int:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
        status: int = run(command, cwd=self._folder, env=self._environment, check=False, **options).returncode
        return status

    def _check(self, status: int) -> None:
        if status:
            raise PageError(f"{self._place}: status {status}\n{self.output()[-4000:]}")


def _joined(code: str) -> list[str]:
    return code.replace("\\\n", " ").splitlines()
