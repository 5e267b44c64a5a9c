"""What `staleness` runs in fresh processes: all programs of a contestant in one round, each in a forked child.

The process imports torch and the contestant once. A child has its own modules, working directory and environment, and
runs `main.py` as the script `__main__`. A profile hook counts calls, so that functions stay as they are.
"""

from __future__ import annotations

import builtins
import json
import os
import pkgutil
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, MethodType
from typing import Any, Self

from benchmarks.programs import CASES, Case
from benchmarks.programs.case import SITE
from benchmarks.side_by_side import describe
from benchmarks.staleness_peers import PEERS, UNCACHED, Peer, Program, RefusedError

ROUNDS = {"fill": 1, "again": 1, "edited": 2}
"""The rounds in order, and the version of the program that runs in each."""
_CHILD_SECONDS = 120
_VALUES = [1, 2, 3]

Answer = dict[str, Any]
"""values: what the contestant answered; calls: of the program's function. Or why there is no answer: refused, where the
contestant raises or warns that it keeps nothing; failed, where warmstore raises anything else."""


def command(name: str, round_name: str, folder: Path, quick: bool) -> list[str]:
    """The command line of a process. The module `__main__` is left to the programs."""
    start = "import sys; from benchmarks.staleness_process import main; main(*sys.argv[1:])"
    return [sys.executable, "-c", start, name, round_name, str(folder), "quick" if quick else "full"]


def main(name: str, round_name: str, folder: str, sizes: str) -> None:
    """Write a contestant's answers of one round, or why there are none, to `folder`/`round_name`.json."""
    peer, place = PEERS[name], Path(folder)
    try:
        for needed in peer.imports:
            pkgutil.resolve_name(needed)
    except ImportError as error:
        result: dict[str, Any] = {"missing": describe(error)}
    else:
        result = {"answers": answer_all(peer, round_name, place, cases_of(peer, sizes == "quick"))}
    (place / f"{round_name}.json").write_text(json.dumps(result))


def cases_of(peer: Peer, quick: bool) -> dict[int, Case]:
    """The programs a contestant is given, by number."""
    cases = {number: case for number, case in enumerate(CASES) if case.module or not peer.modules}
    return {number: case for number, case in cases.items() if case.quick or not quick}


def answer_all(peer: Peer, round_name: str, place: Path, cases: dict[int, Case]) -> dict[int, Answer]:
    import torch
    import torch.fx

    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    answers = {}
    for number, case in cases.items():
        folder = place / str(number)
        case.write(folder, ROUNDS[round_name])
        answers[number] = in_child(partial(answer, peer, case, round_name, folder), folder)
        if round_name == "edited":
            shutil.rmtree(folder)
    return answers


def in_child(work: Callable[[], Answer], folder: Path) -> Answer:
    """What `work` returns in a forked child, whose output goes to `folder`/log.

    Raises:
        RuntimeError: the child ended without an answer.
    """
    result, log = folder / "answer.json", folder / "log"
    result.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(_CHILD_SECONDS)
            with open(log, "wb", buffering=0) as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            result.write_text(json.dumps(work()))
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{folder.name}: a child ended with {status}: {log.read_text()[-2000:]}")
    found: Answer = json.loads(result.read_text())
    return found


def answer(peer: Peer, case: Case, round_name: str, folder: Path) -> Answer:
    """Run the program in this process, for good, and ask the contestant."""
    program = load(case, ROUNDS[round_name], folder)
    calls = Calls(program.model if peer.modules else program.step)
    try:
        values = peer.answer(program, folder / "cache", calls)
    except RefusedError as error:
        return {"refused": str(error)}
    except Exception as error:
        if peer is PEERS[UNCACHED]:
            raise
        return {"failed" if peer.ours else "refused": describe(error)}
    return {"values": values, "calls": calls.count}


def load(case: Case, version: int, folder: Path) -> Program:
    """Run `main.py` of that version as a script."""
    checkout = folder / case.checkout(version)
    script, site = checkout / "main.py", checkout / SITE
    os.chdir(checkout / case.folders[version - 1])
    os.environ.update(case.environment[version - 1])
    sys.dont_write_bytecode = True  # an edit of the same size within a second would not be seen
    sys.path[:] = [str(checkout), *filter(None, sys.path), *([str(site)] if site.exists() else [])]
    # The module stays the same object: dill holds a reference to it.
    space = vars(sys.modules["__main__"])
    space.clear()
    space.update(__name__="__main__", __file__=str(script), __builtins__=builtins, __spec__=None, __doc__=None)
    exec(compile(script.read_text(), str(script), "exec"), space)
    return Program(space["step"], space.get("ARGUMENTS", {}), space.get("VALUES", _VALUES), space.get("model"))


class Calls:
    """Counts the calls of a function or of a module made while it is entered, also in threads that start later."""

    def __init__(self, target: Any) -> None:
        self.count = 0
        self._counting = False
        self._is_call = _call_of(target)
        threading.setprofile(self._profile)

    def __enter__(self) -> Self:
        self._counting = True
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        self._counting = False

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if self._counting and event == "call" and self._is_call(frame):
            self.count += 1


def _call_of(target: Any) -> Callable[[FrameType], bool]:
    import torch

    if isinstance(target, torch.nn.Module):
        module_call = torch.nn.Module._call_impl.__code__
        return lambda frame: frame.f_code is module_call and frame.f_locals.get("self") is target
    while isinstance(target, partial):
        target = target.func
    function = target.__func__ if isinstance(target, MethodType) else target
    code = function.__code__ if hasattr(function, "__code__") else type(function).__call__.__code__
    # Equal, not identical: dask rebuilds the methods of classes that it pickles.
    return lambda frame: frame.f_code.co_name == code.co_name and frame.f_code == code
