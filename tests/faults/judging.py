"""Judges that run in forked children, so that a crash of the interpreter and a hang show, and fail only one of many."""

import faulthandler
import logging
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import IO, Any

from tests.faults.children import Ended, in_child

SECONDS = 120
"""Time that one judgement may take."""

Failures = list[tuple[int, str]]
"""The numbers of what failed, and why. A text that begins with HANG or CRASH is of a child that was killed; after HANG
comes where its threads stood."""

HANG, CRASH = "a hang", "a crash"


def judge_all(
    numbers: Iterable[int], judge: Callable[[int], Any], prepare: Callable[[], None] = lambda: None
) -> tuple[dict[int, Any], Failures]:
    """Judge some numbers, and return what each judgement returned, and those that failed.

    A child judges one after the other. After one that has ended the child, another child goes on.

    Args:
        prepare: called in each child before the first judgement.
    """
    found: dict[int, Any] = {}
    failures: Failures = []
    left = list(numbers)
    with tempfile.TemporaryFile() as stacks:
        while left:
            stacks.seek(0)  # children share the place in the file
            stacks.truncate()
            ended = in_child(lambda say, listed=tuple(left): _judge(say, listed, judge, prepare, stacks))  # type: ignore[misc]
            at = left[0]
            for number, what, told in ended.said:
                at = number
                if what == "well":
                    found[number] = told
                elif what == "failed":
                    failures.append((number, told))
                if what != "began":
                    left.remove(number)
            if not (why := wrong(ended)):
                break
            stacks.seek(0)
            failures.append((at, f"{why}\n{stacks.read().decode()}".strip()))
            if at in left:
                left.remove(at)
    return found, failures


def quiet() -> None:
    """Make this process say nothing."""
    logging.disable()
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # files fail to close in finalizers too


def wrong(ended: Ended) -> str:
    """How a child ended that should have ended well; "" if it did."""
    if ended.signal:
        return HANG if ended.signal == signal.SIGALRM else f"{CRASH} by signal {ended.signal}"
    return ended.error or ("" if ended.code == 0 else f"it ended with {ended.code}")


def _judge(
    say: Callable[[Any], None],
    numbers: Iterable[int],
    judge: Callable[[int], Any],
    prepare: Callable[[], None],
    stacks: IO[bytes],
) -> None:
    quiet()
    faulthandler.register(signal.SIGALRM, file=stacks, chain=True)
    prepare()
    for number in numbers:
        signal.alarm(SECONDS)
        say((number, "began", None))
        try:
            found = judge(number)
        except Exception:
            say((number, "failed", traceback.format_exc()[-2500:]))
        else:
            say((number, "well", found))
