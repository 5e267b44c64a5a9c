"""Limits on the time that a program waits for a remote: limits of a request, a circuit breaker, and a total budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from warmstore.storage.conditions import Condition

_FLOW = 16 << 10  # bytes that show that data flows
_FREE_GAP = 0.25  # seconds between two pieces of data that are not charged


@dataclass(frozen=True)
class RequestLimits:
    """The limits of one request. Times are in seconds.

    Attributes:
        connect: The time to connect.
        read_timeout: The time between two pieces of data.
        retries: The number of retries after a server error, a timeout or a broken connection.
        backoff: The pause before the first retry, doubled before each later one, with jitter.
        request: The time until the first piece of data, with retries. A transfer in which data flows has no limit.
        sending: The time until the answer to a request that sends a part of an object. The progress of a request body
            cannot be observed, so this must be long enough for slow networks.
        failures: The number of consecutive failed requests after which the remote is treated as dead.
        cooldown: The pause before a dead remote is tried again, doubled each time that it fails.
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
    """Rejects requests to a dead remote. After a cooldown one request is allowed, and all others if it succeeds."""

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
        """Whether the remote is treated as dead."""
        with self._lock:
            return self._failed >= self._most and self._clock() < self._until

    def allows(self) -> bool:
        """Whether a request may be sent now."""
        with self._lock:
            if self._failed < self._most:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self._pause
            return True

    def succeeded(self) -> None:
        with self._lock:
            self._failed, self._pause = 0, self._cooldown

    def failed(self) -> bool:
        """Record a failure. Returns whether the remote is treated as dead from now on, and was not before."""
        with self._lock:
            self._failed += 1
            if self._failed < self._most:
                return False
            self._until = self._clock() + self._pause
            self._pause = min(2 * self._pause, 600.0)
            return self._failed == self._most


class StallBudget:
    """The seconds that a program may wait for a remote in total while no data arrives. Many threads may wait.

    Only the part of a gap between two pieces of data beyond 0.25 s is charged. So waiting for flowing data is free, and
    a dead remote costs the budget once, after any number of requests.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        self._left = seconds
        self._changed = Condition()
        self._waiting = 0
        self._since = 0.0
        self._bytes = 0

    @property
    def left(self) -> float:
        """The remaining seconds."""
        with self._changed.lock:
            return max(0.0, self._left)

    def allow(self, seconds: float) -> None:
        """Add to the budget, unless it is spent."""
        with self._changed.lock:
            if self._left > 0:
                self._left += seconds

    def flowed(self, size: int) -> None:
        """Record that `size` bytes arrived; 0 after a complete answer, which may be smaller than 16 KiB."""
        with self._changed.lock:
            self._bytes += size
            if size == 0 or self._bytes >= _FLOW:
                self._bytes = 0
                self._charge(_FREE_GAP)

    def notify(self) -> None:
        """Wake the waiting threads, which then check their conditions."""
        with self._changed.lock:
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> bool:
        """Wait until `done` returns True, which is checked after each `notify`. False if the budget is spent before."""
        with self._changed.lock:
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
