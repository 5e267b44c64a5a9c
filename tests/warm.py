"""Processes for programs that need one of their own, without the seconds of imports: forks of a warm interpreter.

`popen` and `run` take what `subprocess.Popen` and `subprocess.run` take. The interpreter has imported torch and
warmstore, and has searched them for patches. It forks a child for each program, for all workers of a run of tests. The
child has the arguments, environment, folder and streams that it is given, runs the program as `__main__` and ends as an
interpreter does, but for the last step: it does not take its modules apart. A fork does not show another seed of
hashes, other addresses, and what happens while torch is imported, or as the last objects go. Tests of those start
interpreters, and with `--fresh` every program has one.
"""

import atexit
import contextlib
import errno
import functools
import gc
import hashlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COMMON = ("pytest", "torch", "torch.utils.data", "warmstore", "warmstore.pipeline.pipeline")
"""What is imported ahead. A program that must not find one of these imported needs an interpreter of its own."""

HASH_SEED = "0"
"""Of the warm interpreters: a program that needs another seed of hashes needs an interpreter of its own."""


def popen(
    command: Sequence[Any],
    *,
    preload: tuple[str, ...] = COMMON,
    settings: tuple[str, ...] = (),
    **options: Any,
) -> "subprocess.Popen[Any]":
    """Start a program.

    Args:
        command: `[sys.executable, ...]`, with a file, `-c` or `-m`, and `-W` before it.
        preload: modules that the warm interpreter has imported.
        settings: names of variables that these modules read as they are imported. Programs whose environments have
            other values of these have an interpreter of their own.
        options: of `subprocess.Popen`.
    """
    from tests.slow import is_fresh

    if is_fresh():
        return subprocess.Popen([*map(str, command)], **options)
    environment = options.get("env") or os.environ
    values = tuple((name, environment[name]) for name in settings if name in environment)
    return _Forked([*map(str, command)], _interpreter(preload, values), **options)


def run(
    command: Sequence[Any], *, check: bool = False, timeout: float | None = None, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run a program to its end, as `subprocess.run` does."""
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, **options) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A child of a warm interpreter. The interpreter is its parent, and sends the status with which it ends."""

    def __init__(self, command: list[str], interpreter: "_Interpreter", **options: Any) -> None:
        self._interpreter = interpreter
        self._status: io.FileIO | None = None
        super().__init__(command, **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[:13]
        assert preexec_fn is None
        task = {
            "command": args,
            "cwd": str(Path(cwd or ".").resolve()),
            "environment": dict(os.environ if env is None else env),
            "session": bool(rest[18]),
        }
        streams = [given if given >= 0 else own for given, own in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))]
        self.pid, self._status = self._interpreter.fork(task, streams)
        for theirs, ours in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
            if theirs >= 0 and ours >= 0:
                os.close(theirs)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        assert self._status is not None
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        (status,) = struct.unpack("<q", self._status.read(8) or b"\0\1\0\0\0\0\0\0")  # the interpreter has died
        self._status.close()
        return self.pid, status

    def _internal_poll(self, *ignored: Any, **also: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


class _Interpreter:
    """A connection to a process that imports modules and forks children. It ends when nobody is connected."""

    def __init__(self, preload: tuple[str, ...], settings: dict[str, str]) -> None:
        names = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._environment = {**names, "PYTHONHASHSEED": HASH_SEED, **settings}
        self._preload = preload
        self._process: subprocess.Popen[bytes] | None = None
        told = json.dumps([os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())), preload, settings])
        name = hashlib.sha256(told.encode()).hexdigest()[:32]
        if sys.platform == "linux":
            self._address = f"\0warmstore-tests-{name}"  # one that is no file
        else:
            self._address = str(Path(tempfile.mkdtemp(), name))  # each worker has its own
        while True:
            self._connection = socket.socket(socket.AF_UNIX)
            self._start_unless_there()
            with contextlib.suppress(ConnectionError):
                self._connection.connect(self._address)
                if self._connection.recv(1):
                    break
            self._connection.close()  # the name was just taken, or the last of those that were connected went
            if self._process is not None:
                raise RuntimeError("the warm interpreter has died")
            time.sleep(0.01)
        self._owner = os.getpid()

    def _start_unless_there(self) -> None:
        """Start the process, unless another worker of this run has done so: only one can take the address."""
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(self._address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno()), *self._preload],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=[listener.fileno()],
            )

    def fork(self, task: dict[str, Any], streams: list[int]) -> tuple[int, io.FileIO]:
        """Start a child: its process id, and a pipe from which its status comes when it ends."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as file, open(writing, "wb"):
            file.write(json.dumps(task).encode())
            file.flush()
            socket.send_fds(self._connection, [b"."], [file.fileno(), writing, *streams])
            answer = self._connection.recv(8)
        if not answer:
            raise RuntimeError("the warm interpreter has died")
        return struct.unpack("<q", answer)[0], open(reading, "rb", buffering=0)

    def leave(self) -> None:
        if os.getpid() == self._owner:  # and not a fork of it
            self._connection.shutdown(socket.SHUT_RDWR)  # also where forks have it still
            self._connection.close()

    def wait(self) -> None:
        """Wait for the end of the process, if this one started it: other workers may still use it."""
        if os.getpid() == self._owner and self._process is not None:
            self._process.wait()


_interpreters: list[_Interpreter] = []


@functools.cache
def _interpreter(preload: tuple[str, ...], settings: tuple[tuple[str, str], ...]) -> _Interpreter:
    if not _interpreters:
        atexit.register(_end_interpreters)
    _interpreters.append(_Interpreter(preload, dict(settings)))
    return _interpreters[-1]


def _end_interpreters() -> None:
    for interpreter in _interpreters:  # all, before it waits for one that another worker uses, which may wait too
        interpreter.leave()
    for interpreter in _interpreters:
        interpreter.wait()


# In the warm interpreter


class _Program(Exception):
    """Unwinds the child of a fork to the bottom of the stack, where its program runs."""


def _serve(listener: socket.socket) -> None:
    """Fork children for those that connect, until all of them have left."""
    statuses: dict[int, int] = {}
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *ignored: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connections = {_greet(listener)}
    while connections:
        ready, _, _ = select.select([listener, waking, *connections], [], [])
        if waking in ready:
            os.read(waking, 4096)
            _reap(statuses)
        if listener in ready:
            connections.add(_greet(listener))
        for connection in connections.intersection(ready):
            data, files = b"", []
            with contextlib.suppress(ConnectionError):  # a worker that was killed
                data, files, _, _ = socket.recv_fds(connection, 1, 5)
            if not data:
                connections.remove(connection)
                connection.close()
                continue
            child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sockets = [each.detach() for each in (listener, *connections)]
                for descriptor in (waking, wake, *sockets, files[1], *statuses.values()):
                    os.close(descriptor)
                raise _Program(files[0], files[2:])
            statuses[child] = files[1]
            for descriptor in (files[0], *files[2:]):
                os.close(descriptor)
            with contextlib.suppress(ConnectionError):
                connection.sendall(struct.pack("<q", child))


def _greet(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    with contextlib.suppress(ConnectionError):
        connection.sendall(b".")
    return connection


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with contextlib.suppress(BrokenPipeError), open(statuses.pop(child), "wb", buffering=0) as writing:
            writing.write(struct.pack("<q", status))  # unless nobody waits for it


def search_for_patches() -> None:
    """Search the imported modules for patches, as the first identity of a process does, once for all children.

    A child searches what it imports, and what it has changed.
    """
    from warmstore.identity.patches.search import Patches

    patches = Patches().look()
    for distribution in patches.distributions:
        patches.of(distribution)


def spare_searches() -> None:
    """Search for patches for the last time in this process, in which nobody makes any: a look takes milliseconds."""
    from warmstore.identity.patches import search

    found = search._namespaces.by_distribution()
    search._namespaces.by_distribution = lambda: found  # type: ignore[method-assign]


def _spare_endings() -> None:
    """Leave out what only an interpreter that takes its modules apart needs: two thirds of the time of a small program.

    These are the finalizers of torch's libraries of operators, and the end of what was found of patches.
    """
    import torch.library

    from warmstore.identity.patches import search

    atexit.unregister(search._forget)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        alive = finalizer.peek()
        if alive is not None and alive[1] is torch.library._del_library:
            finalizer.atexit = False


def _become(task: int, streams: Sequence[int]) -> Callable[[], object]:
    """Make this process what `command` starts, and return what it runs."""
    for descriptor, number in zip(streams, range(3), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Those of the warm interpreter know whether what they wrote to could seek.
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False, errors=sys.stdout.errors)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, closefd=False, errors="backslashreplace")  # type: ignore[misc]
    with open(task, "rb") as file:
        file.seek(0)
        told = json.load(file)
    if told["session"]:
        os.setsid()
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    executable, *arguments = told["command"]
    sys.orig_argv[:] = [executable, *arguments]
    sys.warnoptions[:] = []
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        del arguments[:2]
    warnings.resetwarnings()
    warnings.filters[:] = _FILTERS
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()
    tempfile.tempdir = None
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind, *sys.argv = arguments if arguments[0] in ("-c", "-m") else ["", *arguments]
    if kind == "-m":
        sys.path[:] = [told["cwd"], *paths, *_BASE]
        return functools.partial(runpy._run_module_as_main, sys.argv[0])  # type: ignore[attr-defined]
    if kind == "-c":
        text, name, folder = sys.argv[0], "<string>", ""
        sys.argv[0] = "-c"
    else:
        name = str(Path(sys.argv[0]).absolute())
        folder = str(Path(name).resolve().parent)
        main.__file__ = name
        text = Path(name).read_text()
    sys.path[:] = [folder, *paths, *_BASE]
    return lambda: exec(compile(text, name, "exec", dont_inherit=True), vars(main))


def _end(status: int) -> None:
    """Wait for threads, call the functions of `atexit` and write what is buffered, as an interpreter does.

    It would then take its modules apart, which takes a fork of one that has imported torch a quarter of a second. So a
    file that a program has left open loses what is buffered.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:
        return  # the program's own streams may have their own way to end
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _BASE, _FILTERS = sys.path[1:], [*warnings.filters]
    sys.path[:] = [str(Path(__file__).parents[1] / "src"), *_BASE]  # not another checkout that is installed
    for module in sys.argv[2:]:
        importlib.import_module(module)
    if "warmstore.identity.identity" in sys.modules:
        search_for_patches()
        _spare_endings()
    gc.collect()
    gc.freeze()
    _this = sys.modules["__main__"]  # must live on when the program takes its name
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    except _Program as told:
        _start = _become(*told.args)
    else:
        sys.exit()
    _status: Any = None
    try:
        _start()
    except SystemExit as _exit:
        _status = _exit.code
    if isinstance(_status, int | None):  # outside of `except`: the error has the frames of the program
        _end(_status or 0)
    sys.exit(_status)
