"""Errors between the lines of a function, as where there is no memory."""

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_OF_BLOCKS = ("with", "try", "except", "finally", "raise", "return")


def fails_at(function: Callable[..., Any], line: int, call: Callable[[], object]) -> bool:
    """Call, and raise MemoryError before the line number `line` of those of a function that are run, counted from 0.

    Lines that begin or end a block do not count: the interpreter needs no memory between a lock and its block.

    Returns:
        Whether as many lines were run.
    """
    code, lines = function.__code__, inspect.getsource(function).splitlines()
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        text = lines[frame.f_lineno - code.co_firstlineno].strip()
        if event == "line" and not text.startswith(_OF_BLOCKS):
            left -= 1
            if left < 0:
                raise MemoryError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except MemoryError:
        return True
    finally:
        sys.settrace(before)
    return False
