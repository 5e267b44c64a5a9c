"""What a child does with a random program: call it cached and uncached, edit it meanwhile, and say what was wrong."""

import functools
import gc
import importlib
import json
import re
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.identity import systems
from tests.identity.live_edits import Edits
from tests.identity.random_programs import MODULES

import warmstore as ws
from warmstore.errors import NoFingerprint, NotStateless, UnsupportedType
from warmstore.identity.patches import Patches

SECONDS = 60.0  # after which a program that an edit made endless is left alone


_RUINED = re.compile("reading it raised|cannot be read|UnsupportedType")
"""Refusals of what an edit may leave: an object that cannot be read, or a result that is no number."""


class _TimedOut(BaseException):
    """A program that does not end. Not an `Exception`, so that it does not catch this."""


class Run:
    """One cached function of a program, whose calls are compared with uncached ones."""

    def __init__(self, program: types.ModuleType, folder: str, arguments: str, form: int, *, remembers: bool) -> None:
        self.program, self.wrong, self.refusals = program, list[str](), list[str]()
        self._arguments = arguments
        self.differing = 0
        self._remembers, self._has_run = remembers, False
        self.is_lax = False  # whether calls may be computed again
        self._first: Any = None
        function = program.step
        if form == 1:
            function = lambda x, y=None: program.step(x, y)  # noqa: E731
        elif form == 2:
            function = functools.partial(program.step)
        self._plain = function
        self.cached = ws.cached(folder)(function)

    def modules(self) -> list[types.ModuleType]:
        return [sys.modules[name] for name in MODULES if name in sys.modules]

    def arguments(self) -> Any:
        return eval(f"(lambda *a, **k: (a, k))({self._arguments})", dict(vars(self.program)))

    def _call(self, function: Callable[..., Any]) -> Any:
        try:
            args, options = self.arguments()
            return systems.encoded(function(*args, **options))
        except (NoFingerprint, NotStateless, UnsupportedType) as error:
            return Refused(f"{type(error).__name__}: {error}")
        except Exception as error:
            return f"{type(error).__name__}: {str(error).partition(' at 0x')[0]}"

    def plain(self) -> Any:
        return self._call(self._plain)

    def check(self, words: str, *, hits: bool = False, memos: Any = ()) -> Any:
        """Compare a cached call with an uncached one; the next one must hit.

        Args:
            memos: functions that forget what calls of the program have computed.
        """
        answers = []
        for forget in memos:
            forget()
        for _ in range(2):
            before = systems.calls[0]
            found = self._call(self.cached)
            computed = systems.calls[0] - before
            if isinstance(found, Refused):
                if not _RUINED.search(found.words):
                    self.refusals.append(f"{words}: {found.words}")
                return found
            answers.append((found, computed))
        for forget in memos:
            forget()
        plain = self.plain()
        for at, (found, computed) in enumerate(answers):
            if found != plain:
                self.wrong.append(f"STALE {words} ({at}, computed {computed}): cached {found}, uncached {plain}")
            if computed and (at or (hits and not self._has_run)) and not isinstance(plain, str) and not self.is_lax:
                self.wrong.append(f"COMPUTED {words}, call {at}: {self.cached.cache._warned}")
        self._first = plain if self._first is None else self._first
        self.differing += plain != self._first
        self._has_run = self._remembers  # the program has changed what it remembers
        return plain


def warm() -> None:
    """Load in this process what every child needs, so that its fork has it."""
    Patches().look()
    gc.collect()
    gc.freeze()


class Refused:
    def __init__(self, words: str) -> None:
        self.words = words


def main(program: types.ModuleType) -> None:
    """Do what the file `plan.json` beside the program says, and write into `report.json` what was wrong."""
    root = Path(program.__file__ or "").parent
    plan = json.loads((root / "plan.json").read_text())
    report: dict[str, Any] = {"wrong": [], "refusals": [], "edits": [], "differing": 0}

    def stop(number: int, frame: Any) -> None:
        raise _TimedOut

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        run = Run(program, plan["cache"], plan["arguments"], plan["form"], remembers=plan["remembers"])
    except _TimedOut:
        report["edits"].append("timed out")
    else:
        try:
            memos = Edits(run.modules(), run.arguments()).memos
            run.check("the program as it is", hits=plan.get("hits", False), memos=memos)
            for number, undone in plan.get("live", []):
                report["edits"].append(_edit(run, number, undone))
            for name, text in plan.get("reloads", []):
                report["edits"].append(_reload(run, name, text))
        except _TimedOut:
            report["edits"].append("timed out")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        report |= {
            "wrong": run.wrong,
            "refusals": run.refusals,
            "differing": run.differing,
            "names": run.cached.cache.name,
        }
        run.cached.cache.close()
    (root / "report.json").write_text(json.dumps(report))


def _edit(run: Run, number: int, undone: bool) -> str:
    try:
        edits = Edits(run.modules(), run.arguments())
    except Exception as error:
        return f"(no: {error!r:.80})"
    edit = edits.found[number % len(edits.found)]
    try:
        undo = edit.do()
    except Exception as error:
        return f"{edit.words} (no: {error!r:.80})"
    wrong = len(run.wrong)
    run.is_lax |= edit.words.startswith("sys.modules")  # the next walk names what is in a module by another name
    run.check(edit.words, memos=edits.memos)
    if undone:
        undo()
        if not run.refusals:
            run.check(f"undone: {edit.words}", hits=edit.is_exact, memos=edits.memos)
    return edit.words + (" !!" if len(run.wrong) > wrong else "")


def _reload(run: Run, name: str, text: str) -> str:
    """Reload a module with another text, and then with its own."""
    module = sys.modules.get(name)
    if module is None:
        return f"reloaded {name} (no: it is not imported)"
    path = Path(module.__file__ or "")
    own = path.read_text()
    for words, now in (("another text", text), ("its text", own)):
        path.write_text(now)
        try:
            importlib.reload(module)
        except Exception as error:
            words += f", which raises {error!r:.80}"
        run.check(f"{name} is reloaded with {words}")
    return f"reloaded {name}"
