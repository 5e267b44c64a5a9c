"""The locks of files that the threads of this process hold.

The kernel gives a lock of `flock` to an open file. A thread that waits for the lock of a file, and holds it through
another descriptor, would wait for itself for ever.
"""

import errno
import os
import threading

from warmstore.errors import WriteFailed

_holders: dict[int, int] = {}
"""The threads that hold locks, by the descriptors that have them."""
os.register_at_fork(after_in_child=_holders.clear)


def add(descriptor: int) -> None:
    """This thread has taken a lock."""
    _holders[descriptor] = threading.get_ident()


def discard(descriptor: int) -> None:
    """The lock is given up, if there was one."""
    _holders.pop(descriptor, None)


def held() -> list[int]:
    """The descriptors by which this thread holds locks: it is amid a write."""
    me = threading.get_ident()
    return [descriptor for descriptor, thread in list(_holders.items()) if thread == me]


def check_not_held(descriptor: int) -> None:
    """Raise WriteFailed if this thread holds the lock of an open file through another descriptor.

    A function that a store calls for its records may write to the store through another handle.
    """
    if any(_is_same(descriptor, other) for other in held()):
        raise WriteFailed(errno.EDEADLK, "this thread writes through another handle, and would wait for itself")


def _is_same(descriptor: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(descriptor, other)
    except OSError:  # closed by other means
        return False
