"""Kills: a story runs in a real process, on the real file system, and the process is killed.

Either a SIGKILL comes at an operation of the file operations, a write half done or not; or another process sends a
SIGKILL, SIGTERM or SIGINT after a time, to the story's process or to one of its children; or the kernel kills one of
these processes, as their control group has no more memory. The story tells through a pipe what it has acknowledged, as
it goes. Two other processes judge what is there, as after a power cut.

Each kill has a supervisor, which is the parent of whatever the killed process leaves behind: all of it has to end.
"""

import contextlib
import ctypes
import faulthandler
import logging
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil
from tests.faults.children import in_child, well
from tests.faults.io_campaign import Failing, judge, prepared
from tests.faults.judging import HANG, SECONDS, quiet, wrong
from tests.faults.memory_cgroup import MemoryCgroup
from tests.faults.power import Promise
from tests.faults.power_campaign import SHARED, Story
from tests.faults.recording import everywhere

from warmstore.storage import lifecycle

_BATCH = 24
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Kill:
    """How a story is killed.

    operation: the one, from 0 on, at which it kills itself; is_torn: in the middle of it, if it is a write. Or None:
    another process sends `signal` when a `part` of the story's time has passed; to `child`: a child of the story.
    more: or nothing is sent, but from then on the story and its children have so many bytes more of memory, and the
    kernel kills; a `child` first.
    """

    operation: int | None
    is_torn: bool
    signal: signal.Signals
    part: float
    child: bool
    more: int | None = None

    def __str__(self) -> str:
        what = f"{self.signal.name} to {'a child' if self.child else 'it'}"
        if self.more is not None:
            what = f"{self.more:,} more bytes of memory{', children first,' if self.child else ''}"
        if self.operation is not None:
            return f"{what} {'in the middle of' if self.is_torn else 'before'} operation {self.operation}"
        return f"{what} after {self.part:.0%} of its time"


@dataclass
class KillResult:
    """What came of a story. kills: how many processes were killed, of all that were `tried`; others ended before.

    failures: how some failed, of which so many `lost` acknowledged rows, had a `wrong` value, and so on.
    """

    story: str
    operations: int = 0
    tried: int = 0
    kills: int = 0
    lost: int = 0
    wrong: int = 0
    crashes: int = 0
    hangs: int = 0
    others: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Whole:
    """A story that nobody kills: its operations, seconds, promises, and the states of its data."""

    operations: int
    seconds: float
    promises: list[Promise]
    states: list[Any]

    def allowed(self, said: list[Any], *, flushes: bool) -> list[Any]:
        """The states that may be there when so much was acknowledged. flushes: the signal flushes pending rows."""
        last = next((one for one in reversed(said) if isinstance(one, Promise)), Promise(0, 0))
        most = last.most
        if flushes:  # what was pending is of the next step
            most = next((one.most for one in self.promises if one.most > most), most)
        return self.states[last.least : most + 1]


class Telling:
    """Takes what a story says, in place of a recorder, and tells it at once."""

    def __init__(self, say: Callable[[Any], None]) -> None:
        self.states: list[Any] = []
        self._say = say

    def promise(self, least: int, most: int) -> None:
        self._say(Promise(least, most))

    def acknowledge(self, what: Any) -> None:
        """For stories of several processes: what is there from now on. Each process may call it."""
        self._say(("acknowledged", what))

    def fail(self, why: str) -> None:
        """An error of a child."""
        self._say(("failed", why))


class Deadly(Failing):
    """Files below a folder. At one operation, or in the middle of it, `end` is called."""

    def __init__(self, root: Path, kill: Kill, end: Callable[[], None]) -> None:
        super().__init__(root)
        self._kill = kill
        self._end = end
        self._is_tearing = False

    def before(self, name: str) -> bool:
        if len(self.seen) == self._kill.operation:
            self._is_tearing = name == "write" and self._kill.is_torn
            if not self._is_tearing:
                self._end()
        return super().before(name) or self._is_tearing

    def write(self, descriptor: int, buffers: Any, offset: int) -> int:
        taken = super().write(descriptor, buffers, offset)
        if self._is_tearing:
            self._end()
        return taken


def kill_of(story: Story, operations: int, number: int, seed: int = 0) -> Kill:
    """A story's kill of a number: every third at an operation, the others from outside."""
    rng = random.Random(f"{seed} {story.name} {number}")
    has_children = bool(getattr(story, "has_children", False))
    at_operation = not has_children and number % 3 == 0
    child = has_children and number % 2 == 0
    return Kill(
        rng.randrange(operations) if at_operation else None,
        rng.random() < 0.5,
        signal.SIGKILL if at_operation or child else rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)),
        rng.random(),
        child,
    )


def shortage_of(story: Story, operations: int, number: int, seed: int = 0) -> Kill:
    """A story's lack of memory of a number: every second from an operation on, the others from outside."""
    rng = random.Random(f"{seed} {story.name} {number}")
    has_children = bool(getattr(story, "has_children", False))
    at_operation = not has_children and number % 2 == 0
    return Kill(
        rng.randrange(operations) if at_operation else None,
        is_torn=False,
        signal=signal.SIGKILL,
        part=rng.random(),
        child=has_children and number % 2 == 0,
        more=int(2 ** rng.uniform(10, 22)),
    )


def shortages(story: Story, first: int, last: int, seed: int = 0) -> KillResult:
    """Judge the lacks of memory `first` to `last` of a story, as `campaign` does with kills.

    Raises:
        OSError: no control groups can be made here.
    """
    return campaign(story, first, last, seed, shortage_of)


def campaign(
    story: Story, first: int, last: int, seed: int = 0, draw: Callable[[Story, int, int, int], Kill] = kill_of
) -> KillResult:
    """Judge the kills `first` to `last` of a story, which the seed gives."""
    result = KillResult(story.name)
    with tempfile.TemporaryDirectory(prefix="warmstore-kills-", dir=SHARED if SHARED.is_dir() else None) as name:
        folder = Path(name)
        whole = _whole(story, folder / "whole")
        result.operations = whole.operations
        for start in range(first, last, _BATCH):
            kills = [draw(story, whole.operations, at, seed) for at in range(start, min(start + _BATCH, last))]
            for kill, why in _judge(story, folder, kills, whole, result):
                kind = kind_of(why)
                setattr(result, kind, getattr(result, kind) + 1)
                result.failures.append(f"{story.name}, {kill}: {kind}: {why}")
            result.tried += len(kills)
    return result


def kind_of(why: str) -> str:
    """Which count of a `KillResult` a failure is one of."""
    if why.startswith(HANG):
        return "hangs"
    if why.startswith("a crash"):
        return "crashes"
    if "promised" in why or "were flushed" in why:
        return "lost"
    return "wrong" if "AssertionError" in why else "others"


def _whole(story: Story, folder: Path) -> _Whole:
    """Run a story in which nobody is killed."""

    def count(say: Callable[[Any], None]) -> None:
        quiet()
        root = prepared(story, folder)
        files = Failing(root)
        promises: list[Any] = []
        with everywhere(files):
            began = time.monotonic()
            states = story.run(root, Telling(promises.append))  # type: ignore[arg-type]
            _close_all()
            took = time.monotonic() - began
        say(_Whole(len(files.seen), took, [one for one in promises if isinstance(one, Promise)], states))

    (found,) = well(in_child(count))
    assert isinstance(found, _Whole)
    shutil.rmtree(folder)
    return found


def _judge(story: Story, folder: Path, kills: list[Kill], whole: _Whole, result: KillResult) -> list[tuple[Kill, str]]:
    """Run a story with each of some kills. Returns those after which something was wrong, and what."""
    failures: list[tuple[Kill, str]] = []
    allowed: dict[int, list[Any]] = {}
    for number, kill in enumerate(kills):
        place = folder / str(number)
        ended = in_child(lambda say, place=place, kill=kill: _supervise(story, place, kill, whole.seconds, say))  # type: ignore[misc]
        if why := next((one for one in ended.said if isinstance(one, str)), "") or wrong(ended):
            failures.append((kill, why))
            continue
        if hasattr(story, "settle") and (why := wrong(in_child(lambda say, root=place / "root": story.settle(root)))):  # type: ignore[misc]
            failures.append((kill, why))
            continue
        was_killed, said = ended.said[-1]
        result.kills += was_killed
        acknowledged = [one[1] for one in said if isinstance(one, tuple) and one[0] == "acknowledged"]
        tells = bool(getattr(story, "has_children", False))
        allowed[number] = acknowledged if tells else whole.allowed(said, flushes=kill.signal != signal.SIGKILL)
    failures += [(kills[number], why) for number, why in judge(story, folder, allowed)]
    for number in range(len(kills)):
        shutil.rmtree(folder / str(number), ignore_errors=True)
    return failures


def _supervise(story: Story, folder: Path, kill: Kill, seconds: float, say: Callable[[Any], None]) -> None:
    """Run a story in a child, which is killed. Says what is wrong, or whether it was killed and what it has said."""
    stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as this process

    def give_up(number: int, frame: object) -> NoReturn:
        for process in reversed(psutil.Process().children(recursive=True)):  # one whose parent has ended would end too
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGALRM)
            time.sleep(0.5)  # one after the other writes where it stands
        stacks.seek(0)
        say(f"{HANG}: it, or what it has left behind, runs for {SECONDS} seconds\n{stacks.read().decode()[-8000:]}")
        os.killpg(0, signal.SIGKILL)
        raise AssertionError

    def run(tell: Callable[[Any], None]) -> None:
        faulthandler.unregister(signal.SIGALRM)  # a parent may have registered it, before it was handled here
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=stacks, chain=True)
        _run(story, folder, kill, seconds, group, tell)

    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    with MemoryCgroup.made() if kill.more is not None else contextlib.nullcontext() as group:
        ended = in_child(run)  # until the last process has closed the pipe
        while psutil.Process().children():
            os.waitpid(-1, 0)
        killed = "interrupted" in ended.said or "a child was killed" in ended.said or bool(group and group.killed)
    was_killed = killed or ended.signal == kill.signal
    errors = [one[1] for one in ended.said if isinstance(one, tuple) and one[0] == "failed"]
    if ended.signal not in (0, kill.signal):
        say(f"a crash by signal {ended.signal}")
    elif ended.error or errors:
        say("\n".join([ended.error, *errors]))
    else:
        assert ended.signal or not ended.code, f"it ended with {ended.code}"
        say((was_killed, ended.said))


class _Errors(logging.Handler):
    """Tells the errors that warmstore logs."""

    def __init__(self, say: Callable[[Any], None]) -> None:
        super().__init__(logging.ERROR)
        self._say = say
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        self._say(("failed", self._formatter.format(record)[-3000:]))


def _run(
    story: Story, folder: Path, kill: Kill, seconds: float, group: MemoryCgroup | None, say: Callable[[Any], None]
) -> None:
    """Run a story as a program of its own. group: the control group that it enters."""
    quiet()
    logging.disable(logging.NOTSET)
    logging.getLogger("warmstore").addHandler(_Errors(say))
    lifecycle._owners.clear()  # of this process's parent
    lifecycle._owners.forked = False  # so that SIGTERM is handled as in a program that is nobody's child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root = prepared(story, folder)
    killer = 0
    try:
        if kill.operation is None:
            killer = _killer(kill, kill.part * seconds, group, say)
        if group:
            group.enter()
        with _deadly(root, kill, group):
            story.run(root, Telling(say))  # type: ignore[arg-type]
        _close_all()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the story is over
    except KeyboardInterrupt:
        say("interrupted")
        _close_all()
    finally:
        if killer:
            os.kill(killer, signal.SIGKILL)
            os.waitpid(killer, 0)


def _close_all() -> None:
    """Close what is open, as the end of a program does."""
    for owner in list(lifecycle._owners):
        owner.close()


def _deadly(root: Path, kill: Kill, group: MemoryCgroup | None) -> AbstractContextManager[None]:
    """File operations of which one kills this process, if the kill is one of those."""

    def end() -> None:
        if group:
            group.leave(kill.more or 0)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return contextlib.nullcontext() if kill.operation is None else everywhere(Deadly(root, kill, end))


def _killer(kill: Kill, seconds: float, group: MemoryCgroup | None, say: Callable[[Any], None]) -> int:
    """Start the process that kills this one, or a child of it, or takes their memory, after so many seconds."""
    victim = os.getpid()
    killer = os.fork()
    if killer:
        return killer
    time.sleep(seconds)
    while os.getppid() == victim:
        children = [one.pid for one in psutil.Process(victim).children(recursive=True) if one.pid != os.getpid()]
        if kill.child and not children:
            time.sleep(0.001)
            continue
        if group:
            for child in children if kill.child else ():
                with contextlib.suppress(FileNotFoundError):  # it has ended
                    Path(f"/proc/{child}/oom_score_adj").write_text("1000")
            group.leave(kill.more or 0)
        elif kill.child:
            os.kill(sorted(children)[int(kill.part * 1000) % len(children)], kill.signal)
            say("a child was killed")
        else:
            os.kill(victim, kill.signal)
        break
    os._exit(0)
