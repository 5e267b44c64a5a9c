"""Cases: an edit in a place, met by a system at a time; how a case is run, and what its answers mean.

Version 1 of a program fills the cache. A neutral version of it (other comments, docstrings, unrelated code) must be
answered from the cache. Version 2 must give what it gives without a cache.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tests.identity.programs import Program
from tests.identity.server import Reply, Task
from tests.identity.systems import Use


class Verdict(Enum):
    """What a case's answers mean. The last four fail it."""

    RIGHT = "right"
    REFUSED = "refused"
    STALE = "stale"
    FALSE_ALARM = "false alarm"
    NOT_ALLOWED = "refused what must be answered"
    BROKEN = "broken"


@dataclass(frozen=True)
class Case:
    """A case.

    Args:
        group: what kind of edit it is, for the summary. when: "next process", "same process" or "before first use".
        first, neutral, second: versions of the program.
        change: code that makes the edit in a living program, for the last two of `when`.
        again: whether a changed program is wrapped again before the cache must notice.
        refusable: whether the system may refuse to answer.
        layout: the edit is of what compiled calls take as inputs, so that their keys may be equal.
        differs: whether both versions give different outputs.
    """

    edit: str
    group: str
    place: str
    system: str
    when: str
    first: Program
    neutral: Program
    second: Program
    change: str = ""
    again: bool = False
    refusable: bool = False
    layout: bool = False
    differs: bool = True
    slow: bool = False
    needs: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its name in pytest."""
        return f"{self.system}: {self.edit} | {self.place} | {self.when}"


@dataclass(frozen=True)
class Outcome:
    """A verdict, and in words what led to it."""

    verdict: Verdict
    words: str = ""

    @property
    def is_allowed(self) -> bool:
        """Whether a case may end so."""
        return self.verdict in (Verdict.RIGHT, Verdict.REFUSED)


class Runner(Protocol):
    """Runs tasks, each in a fresh process."""

    def run(self, task: Task) -> Reply: ...


def run_case(case: Case, runner: Runner) -> Outcome:
    """Run a case in a folder of its own, and judge it."""
    with tempfile.TemporaryDirectory(prefix="warmstore-identity-") as name:
        return _RUNS[case.when](case, runner, Path(name))


def _next_process(case: Case, runner: Runner, folder: Path) -> Outcome:
    versions = (case.first, case.neutral, case.second)
    replies = [_run(case, runner, folder, version, "build", "use", "plain") for version in versions]
    return _broken(replies) or judge(case, *(use for reply in replies for use in reply.uses))


def _same_process(case: Case, runner: Runner, folder: Path) -> Outcome:
    again = ("again",) if case.again else ()
    before = ("use", "plain", "use", "plain")
    if case.system == "compiled":  # it remembers no state from before the program's own calls
        before = ("use", "use", "plain", "plain")
    reply = _run(case, runner, folder, case.first, "build", *before, case.change, *again, "use", "plain")
    if reply.error:
        return Outcome(Verdict.BROKEN, reply.error)
    uses = list(reply.uses)
    if case.system == "compiled":
        uses[1], uses[2] = uses[2], uses[1]
    return judge(case, *uses)


def _before_first_use(case: Case, runner: Runner, folder: Path) -> Outcome:
    """A change between building a system and its first use; the unchanged program comes after it."""
    changed = _run(case, runner, folder, case.first, "build", "open", case.change, "use", "plain")
    filled, found = (_run(case, runner, folder, case.first, "build", "use", "plain") for _ in range(2))
    return _broken([changed, filled, found]) or judge(case, *filled.uses, *found.uses, *changed.uses)


def _run(case: Case, runner: Runner, folder: Path, version: Program, *actions: str) -> Reply:
    """Put a version into the case's folder, and run it in a fresh process."""
    root = folder / "program"
    version.write(root)
    return runner.run(
        Task(
            case.system,
            str(root),
            str(folder / "cache"),
            actions,
            str(root / version.cwd),
            dict(version.environment),
            str(root / version.site) if version.site else "",
            version.main,
        )
    )


_RUNS = {
    "next process": _next_process,
    "same process": _same_process,
    "before first use": _before_first_use,
}


def judge(case: Case, use: Use, plain: Use, again: Use, plain_again: Use, edited: Use, plain_edited: Use) -> Outcome:
    """What the answers mean: of version 1, of its neutral version, of version 2, each with the cache and without."""
    if plain.values != plain_again.values:
        return Outcome(Verdict.BROKEN, "the neutral version gives other outputs")
    if case.differs == (plain.values == plain_edited.values):
        return Outcome(Verdict.BROKEN, "the edit changes nothing" if case.differs else "the edit changes the outputs")
    if case.system == "compiled":
        return _judge_keys(case, use, again, edited)
    pairs = {"version 1": (use, plain), "the neutral version": (again, plain), "version 2": (edited, plain_edited)}
    for name, (one, wanted) in pairs.items():
        if not one.refused and one.values != wanted.values:
            return Outcome(Verdict.STALE, f"{name}: {_shown(one.values)}, uncached {_shown(wanted.values)}")
    if use.refused or edited.refused or again.refused:
        return _refusal(case, use.refused or edited.refused or again.refused)
    if again.calls:
        if _may_refuse(case, use.said):
            return Outcome(Verdict.REFUSED, "; ".join(use.said))
        return Outcome(Verdict.FALSE_ALARM, "; ".join((f"the code ran {again.calls} times again", *again.said)))
    if not use.calls and case.when != "before first use":
        return Outcome(Verdict.BROKEN, "the first version was not counted")
    return Outcome(Verdict.RIGHT)


def _judge_keys(case: Case, use: Use, again: Use, edited: Use) -> Outcome:
    if use.refused or again.refused:
        return _refusal(case, use.refused or again.refused)
    if use.values != again.values:
        return Outcome(Verdict.FALSE_ALARM, "the neutral version has another key")
    if case.differs and not edited.refused and use.values == edited.values and not case.layout:
        return Outcome(Verdict.STALE, "version 2 has the same key")
    return Outcome(Verdict.RIGHT)


def _refusal(case: Case, words: str) -> Outcome:
    return Outcome(Verdict.REFUSED if _may_refuse(case, [words]) else Verdict.NOT_ALLOWED, words)


def _may_refuse(case: Case, said: Sequence[str]) -> bool:
    """Whether a system may refuse to answer. Cached functions keep no result that random numbers decide."""
    return case.refusable or (case.system == "function" and any("random" in one for one in said))


def _broken(replies: Sequence[Reply]) -> Outcome | None:
    return next((Outcome(Verdict.BROKEN, reply.error) for reply in replies if reply.error), None)


def _shown(values: Any) -> str:
    """The first numbers of encoded outputs."""
    while isinstance(values, tuple) and values and isinstance(values[-1], tuple) and values[-1]:
        values = values[-1][0]
    if isinstance(values, tuple) and isinstance(values[-1], bytes):
        numbers = np.frombuffer(values[-1], values[1].removeprefix("torch."))
        return f"{values[0]} {values[1]} {values[2]} [{', '.join(f'{one:.6g}' for one in numbers[:3])}, ...]"
    return f"{values!s:.100}"
