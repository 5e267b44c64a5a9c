"""Worker processes whose parent dies: they end, whatever they do.

Torch's workers look between tasks whether their parent is another one than at their first look. That is not enough: the
parent may die before that look; and a worker may wait for ever, for the rest of a message that the parent was sending,
or until somebody reads what it has sent, through a pipe that other workers have, too.
"""

import os
import signal
import time
from contextlib import suppress
from multiprocessing.util import Finalize

from warmstore.storage.threads import Thread

_SECONDS = 1.0  # between two looks
_GRACE = 10.0
"""Seconds for a worker that ends by itself: it writes what it has kept."""

_BEFORE_QUEUES = -4
"""Of what multiprocessing does at the end of a process: just before it waits for the threads of queues, at -5."""


def begin_worker(parent: int | None, worker: int) -> None:
    """Leave interrupts to the parent, and end if that dies, or has died meanwhile.

    Ctrl-C, and a notebook's interrupt, send SIGINT to workers, too. They end if the parent says so, or ends itself. The
    handler is a function, and not SIG_IGN, which programs that a step starts would inherit.

    Args:
        parent: its process id; None if workers are children of a server.
    """
    signal.signal(signal.SIGINT, lambda number, frame: None)
    if parent is None:
        parent = os.getppid()
    _end_without(parent)
    Finalize(None, _end_without, args=(parent,), exitpriority=_BEFORE_QUEUES)
    with suppress(RuntimeError):  # there is no memory for a thread
        Thread(target=_watch, args=(parent,), name="warmstore-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    time.sleep(_GRACE)
    os._exit(1)


def _end_without(parent: int) -> None:
    """End this process if its parent has died."""
    if os.getppid() != parent:
        os._exit(1)
