"""A server of fresh processes: it has imported torch and warmstore, and forks a child for every run of a program.

A child loads the program from its folder, does the task's actions in order, sends back what each use gave, and ends.
Nothing of it is left in the server. `python -m tests.identity.server` talks by pickles over its standard streams: a
task in, a reply out. With `--once` it runs a single task in itself, as a fresh interpreter.
"""

import importlib
import linecache
import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from tests import warm

LIMIT = 120  # seconds after which a child that hangs is killed
ROOT = Path(__file__).parents[2]
_cells = [0]


@dataclass(frozen=True)
class Task:
    """A run of a program. system: a name. program, cache: folders. cwd: where the program runs.

    site: a folder of installed packages. main: "" loads the program as a module, "script" as `__main__`, "notebook" as
    a cell in `__main__`.

    actions: "build" makes the system, "open" its loader, "use" and "plain" run it with the cache and without, "in
    threads" uses it in two threads, "again" builds it anew on the same objects, "fill" fills the cache of a module
    ahead, "reload" imports the program again, "rerun" runs its text again in the same module; anything else is code
    that is run in the program.
    """

    system: str
    program: str
    cache: str
    actions: tuple[str, ...]
    cwd: str
    environment: dict[str, str] = field(default_factory=dict)
    site: str = ""
    main: str = ""


@dataclass(frozen=True)
class Reply:
    """What a run gave: a `Use` for each use and plain run; error: how it failed, or ""."""

    uses: tuple[Any, ...]
    error: str = ""


def perform(task: Task) -> Reply:
    """Run a task in this process, which is spoilt for any other."""
    from tests.identity import systems

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("warmstore").addHandler(handler)
    uses: list[Any] = []
    refused = ""
    try:
        sys.dont_write_bytecode = True  # bytecode is found by whole seconds and sizes, and edits are faster than that
        os.environ.update(task.environment)
        os.chdir(task.cwd)
        sys.path[:0] = [task.program, task.site] if task.site else [task.program]
        program = _load(task) if task.main else importlib.import_module("program")
        system: Any = None
        for action in task.actions:
            if action == "plain" and system is None:  # it was refused, and the program goes on without
                from tests.identity import torch_systems

                uses.append(systems.Use(torch_systems.uncached(program), 0))
            elif action in ("use", "plain"):
                uses.append(systems.run(system, action, said) if system else systems.Use(None, 0, refused))
            elif action == "in threads":
                uses.extend(_in_threads(system, said))
            elif action in ("build", "again"):
                try:
                    system, refused = systems.system_of(task.system)(program, Path(task.cache)), ""
                except systems.REFUSALS as error:
                    system, refused = None, str(error)
            elif action == "open":
                if system:
                    system.open()
            elif action == "fill":
                from tests.identity import torch_systems

                torch_systems.ModuleSystem.fill(program, Path(task.cache))
            elif action == "reload":
                program = importlib.reload(program)
            elif action == "rerun":
                _run_again(program, task)
            else:
                exec(compile(action, "<cell>", "exec"), vars(program))
        return Reply(tuple(uses))
    except BaseException:
        return Reply(tuple(uses), systems.trace())


def _load(task: Task) -> Any:
    """The program as `__main__`: a script with its file, or a cell of a notebook."""
    main = types.ModuleType("__main__")
    if task.main == "script":
        main.__file__ = str(Path(task.program) / "program.py")
    sys.modules["__main__"] = main
    _run_again(main, task)
    return main


def _run_again(main: Any, task: Task) -> None:
    """Run the program's text in a module: a script by its file's name, a cell by one that no file has."""
    text = (Path(task.program) / "program.py").read_text()
    _cells[0] += 1
    name = main.__file__ if task.main == "script" else f"<ipython-input-{_cells[0]}-0123456789ab>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), vars(main))


def _in_threads(system: Any, said: list[str]) -> list[Any]:
    """Use a system in two threads, one after the other."""
    from tests.identity import systems

    uses: list[Any] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: uses.append(systems.run(system, "use", said)))
        thread.start()
        thread.join()
    return uses


class Server:
    """A running server. A context manager.

    Args:
        without_torch: its children have not imported torch.
    """

    def __init__(self, *, hash_seed: str = "0", without_torch: bool = False) -> None:
        start: Any = warm.popen if hash_seed == warm.HASH_SEED and not without_torch else subprocess.Popen
        self._process: subprocess.Popen[bytes] = start(
            [sys.executable, "-m", "tests.identity.server", *(["--without-torch"] if without_torch else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=_environment(hash_seed),
        )

    def run(self, task: Task) -> Reply:
        """Run a task in a fresh child.

        Raises:
            EOFError: the server has died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(self._process.stdin, task)
        reply = _receive(self._process.stdout)
        assert isinstance(reply, Reply)
        return reply

    def close(self) -> None:
        """End the server. Twice is fine."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FreshInterpreters:
    """Runs each task in an interpreter of its own. Has the methods of a `Server`."""

    def __init__(self, *, hash_seed: str = "random") -> None:
        self._hash_seed = hash_seed

    def run(self, task: Task) -> Reply:
        done = subprocess.run(
            [sys.executable, "-m", "tests.identity.server", "--once"],
            input=pickle.dumps(task),
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=_environment(self._hash_seed),
            check=True,
        )
        reply = pickle.loads(done.stdout)
        assert isinstance(reply, Reply)
        return reply


def _environment(hash_seed: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError("the other side has gone")
    return pickle.loads(stream.read(*struct.unpack("<q", head)))


def _fork(task: Task) -> Reply:
    """Run a task in a child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(LIMIT)
            os.close(reading)
            with open(writing, "wb") as stream:
                stream.write(pickle.dumps(perform(task)))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else Reply((), f"the child ended with status {status}")


def _serve() -> None:
    tasks = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a program prints is no reply
    import warnings

    warnings.simplefilter("ignore")
    from tests.identity import systems

    systems.count_calls()
    if "--once" in sys.argv:
        replies.write(pickle.dumps(perform(pickle.load(tasks))))
        replies.flush()
        os._exit(0)
    if "--without-torch" in sys.argv:
        from tests.identity import random_runs

        random_runs.warm()
    else:
        from tests.identity import torch_systems

        torch_systems.warm()
    while True:
        try:
            task = _receive(tasks)
        except EOFError:
            return
        _send(replies, _fork(task))


if __name__ == "__main__":
    # Pickles name the classes as others import them.
    from tests.identity import server

    server._serve()
