"""How long a remote may keep a program waiting: limits of a request, a breaker for a dead remote, and one budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_FLOW = 16 << 10  # bytes that show that data flows
_BREATH = 0.25  # seconds between signs of life that cost nothing


@dataclass(frozen=True)
class RequestLimits:
    """What one request may take, in seconds.

    Attributes:
        connect: To get a connection.
        read_timeout: Between two pieces of data.
        retries: How often a request is tried again after a server error, a timeout or a cut connection.
        backoff: Before the first of them, twice as long before each later one, with jitter.
        request: In all, with retries, until the first piece of data; a transfer that flows has no end.
        sending: Until the answer to a request that sends a part of an object. A body on its way cannot be watched, so
            this must do for slow lines too.
        failures: After so many failed requests in a row the remote counts as dead.
        cooldown: How long nobody asks a dead remote, twice as long each time that it still is.
    """

    connect: float = 2.0
    read_timeout: float = 5.0
    retries: int = 3
    backoff: float = 0.1
    request: float = 15.0
    sending: float = 300.0
    failures: int = 3
    cooldown: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name}={value!r} must be 0 or more")


class CircuitBreaker:
    """Says whether a remote may be asked: not after some failures in a row, and again after a cooldown, by one."""

    def __init__(self, failures: int, cooldown: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = failures
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._pause = cooldown
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the remote counts as dead."""
        with self._lock:
            return self._failed >= self._most and self._clock() < self._until

    def may_ask(self) -> bool:
        """Whether to ask now. After a cooldown one may, and the others when that went well."""
        with self._lock:
            if self._failed < self._most:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self._pause
            return True

    def went_well(self) -> None:
        with self._lock:
            self._failed, self._pause = 0, self._cooldown

    def failed(self) -> bool:
        """Returns whether the remote counts as dead from now on, and did not before."""
        with self._lock:
            self._failed += 1
            if self._failed < self._most:
                return False
            self._until = self._clock() + self._pause
            self._pause = min(2 * self._pause, 600.0)
            return self._failed == self._most


class StallBudget:
    """What a program may wait for a remote in all, counted in seconds in which no data came. Many threads may wait.

    A gap between two pieces of data costs what it is longer than a quarter of a second. So waiting for data that flows
    costs nothing, and a remote that is dead costs the budget once, however often it is asked.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        self._left = seconds
        self._changed = threading.Condition()
        self._waiting = 0
        self._since = 0.0
        self._bytes = 0

    @property
    def left(self) -> float:
        """Seconds; 0 when nobody waits any more."""
        with self._changed:
            return max(0.0, self._left)

    def allow(self, seconds: float) -> None:
        """Have so much more, unless it is spent."""
        with self._changed:
            if self._left > 0:
                self._left += seconds

    def flowed(self, size: int) -> None:
        """So many bytes came. Those of answers that are small count as soon as they are whole: say 0 then."""
        with self._changed:
            self._bytes += size
            if size == 0 or self._bytes >= _FLOW:
                self._bytes = 0
                self._charge(_BREATH)

    def notify(self) -> None:
        """Have those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> bool:
        """Wait until it is done, or the budget is spent; returns which. `notify` has it looked at."""
        with self._changed:
            if done():
                return True
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1
            try:
                while not done():
                    rest = self._left - (time.monotonic() - self._since)
                    if rest <= 0:
                        return False
                    self._changed.wait(rest)
                return True
            finally:
                self._waiting -= 1
                if not self._waiting:
                    self._charge(0.0)

    def _charge(self, free: float) -> None:
        now = time.monotonic()
        if self._waiting or free == 0.0:
            self._left -= max(0.0, now - self._since - free)
        self._since = now
