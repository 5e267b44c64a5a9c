"""Outputs that are accepted and not committed yet. They are found by key and written in the background.

A block stays in the queue until the key index has its rows, so a lookup in the queue and then in the index misses
nothing. The queue is bounded in bytes: `put` waits for the disk when it is full.
"""

import bisect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from warmstore.errors import Closed, SchemaMismatch, StaleCache, UnsupportedType
from warmstore.features.outputs.leaves import Leaf, nbytes_of
from warmstore.records.index.sample_keys import Keys
from warmstore.storage.conditions import Condition
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.threads import Thread

_log = logging.getLogger("warmstore")


@dataclass(frozen=True)
class Block:
    """Keys and leaves of some samples. The block owns the memory of its leaves."""

    keys: Keys
    leaves: tuple[Leaf, ...]
    nbytes: int

    @classmethod
    def of(cls, keys: Keys, leaves: tuple[Leaf, ...]) -> "Block":
        """A block that takes over the memory of its leaves."""
        return cls(keys, leaves, sum(nbytes_of(leaf.values) for leaf in leaves))

    def __len__(self) -> int:
        return len(self.keys)

    def larger_than(self, limit: int) -> int:
        """The bytes of the largest sample if they are more than `limit`, else 0."""
        if self.nbytes <= limit:
            return 0
        fixed = sum(nbytes_of(leaf.values[:1]) for leaf in self.leaves if leaf.stacked)
        varying = [[nbytes_of([value]) for value in leaf.values] for leaf in self.leaves if not leaf.stacked]
        largest = fixed + max(map(sum, zip(*varying, strict=True)), default=0)
        return largest if largest > limit else 0


Commit = Callable[[Sequence[Block]], None]


class _Accepted(NamedTuple):
    """A block in the queue, and the number of its first sample."""

    block: Block
    first: int


class WriteBehindQueue:
    """The queue and, with `background`, the thread that empties it. nbytes: pending bytes.

    Args:
        commit: a method that commits blocks, each in `refusing`. If it raises, the blocks stay, and it is called again
            later. The queue has a weak reference to it, so that the thread does not keep an unused cache open.
        flush_every: number of pending samples that starts a commit.
        limit: the most pending bytes.
    """

    def __init__(self, commit: Commit, flush_every: int, limit: int, background: bool) -> None:
        self._commit = weakref.WeakMethod(commit)
        self._flush_every = flush_every
        self._limit = limit
        self._background = background
        self.after_fork()

    def after_fork(self) -> None:
        """Start empty. In a forked child, the blocks and the thread stay with the parent."""
        self._queue: list[_Accepted] = []
        self._accepted = 0  # number of the next sample
        # The numbers of samples by key, in waiting blocks and in blocks that are being committed.
        # Ints, unlike tuples, cost the garbage collector nothing.
        self._waiting: dict[bytes, int] = {}
        self._in_commit: dict[bytes, int] = {}
        self._samples = 0
        self.nbytes = 0
        self._closing = 0  # calls of `closing` that have begun and have not raised
        self._wanted = False  # start a commit before `flush_every` samples wait
        self._error: BaseException | None = None  # of a commit in the background
        self._refused: Exception | None = None  # of a block that the running commit leaves out
        self._lost: BaseException | None = None  # of a commit in the background that dropped blocks
        self._thread: threading.Thread | None = None
        self._changed = Condition()
        self._committing = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_commit)

    def find(self, keys: Keys) -> dict[int, tuple[Block, int]]:
        """By position: the block and row of each key that is pending."""
        if not self._waiting and not self._in_commit:
            return {}
        packed = keys.packed
        with self._changed.lock:
            # In this order, newer samples win.
            pending = [known for known in (self._in_commit, self._waiting) if not known.keys().isdisjoint(packed)]
            numbers = [(at, number) for known in pending for at, number in enumerate(map(known.get, packed))]
            return {at: self._sample(number) for at, number in numbers if number is not None}

    def _sample(self, number: int) -> tuple[Block, int]:
        block, first = self._queue[bisect.bisect_right(self._queue, number, key=attrgetter("first")) - 1]
        return block, number - first

    def put(self, block: Block) -> None:
        """Accept a block; wait while the queue is full.

        Raises:
            Closed: the queue is closed, or is being closed. The block was not accepted.
            Exception: raised by the last commit in the background. The block was accepted, unless the queue is full.
        """
        packed = block.keys.packed
        with self._changed.lock:
            while self._background and self._queue and self.nbytes + block.nbytes > self._limit and not self._closing:
                self._raise_locked()
                self._start()
                self._wanted = True
                self._changed.notify_all()
                while self._error is None and self._wanted and not self._closing:
                    self._changed.wait()
            with uninterrupted():
                if self._closing:
                    raise Closed("the cache was closed before it took these samples; open it again with FeatureCache")
                # In this order, an error (there may be no memory) leaves no key with the number of another sample.
                first = self._accepted
                self._accepted += len(block)
                self._queue.append(_Accepted(block, first))
                self._samples += len(block)
                self.nbytes += block.nbytes
                self._waiting.update(zip(packed, range(first, first + len(block)), strict=True))
            due = self._samples >= self._flush_every or (not self._background and self.nbytes > self._limit)
            if due and self._background:
                self._start()
                self._changed.notify_all()
        if due and not self._background:
            self._drain_now()
        self.raise_error()

    def flush(self, commit: Commit) -> None:
        """Commit all pending blocks.

        Args:
            commit: the method given to the constructor, whose weak reference may be dead during collection.

        Raises:
            Exception: raised by a commit. The next flush retries, except for blocks that can never be written.
        """
        self._drain(commit)
        with self._changed.lock:
            # Earlier failures are written now, unless their blocks were dropped.
            lost, self._lost, self._error = self._lost, None, None
        try:
            if lost is not None:
                raise lost
        finally:
            del lost  # else it would keep this frame, and those of the callers

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Take no more blocks from here on, unless the context raises: then take blocks again.

        Every block that was accepted before is in the queue, so that a flush in this context commits it.
        """
        begun = 0
        try:
            with uninterrupted(), self._changed.lock:
                self._closing += 1
                begun = 1
                self._changed.notify_all()
            yield
        except BaseException:
            with uninterrupted(), self._changed.lock:
                self._closing -= begun
            raise

    def stop(self) -> None:
        """End the thread. Pending blocks stay. Where the wait is interrupted, the thread ends later."""
        with self._changed.lock:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():  # which may drop the last reference
            thread.join()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """For a commit: leave out the block that is written in this context if it never fits, and raise its error when
        the others are committed."""
        try:
            yield
        except (SchemaMismatch, UnsupportedType) as error:
            self._refused = self._refused or error

    def raise_error(self) -> None:
        """Raise, once, the error of a commit in the background."""
        if self._error is not None:
            with self._changed.lock:
                self._raise_locked()

    def _raise_locked(self) -> None:
        error, self._error = self._error, None
        self._lost = None
        try:
            if error is not None:
                raise error
        finally:
            del error  # as above

    def waiting(self) -> list[Block]:
        """The pending blocks, oldest first."""
        with self._changed.lock:
            return [block for block, _ in self._queue]

    def _drain_now(self, *, in_background: bool = False) -> None:
        commit = self._commit()
        if commit is not None:
            self._drain(commit, in_background=in_background)

    def _drain(self, commit: Commit, *, in_background: bool = False) -> None:
        with self._committing:
            blocks: list[Block] = []
            try:
                with uninterrupted(), self._changed.lock:
                    blocks = self.waiting()
                    # An interrupt may have left blocks that were committed and not forgotten: they are written again.
                    self._in_commit, self._waiting = {**self._in_commit, **self._waiting}, {}
                if not blocks:
                    return
                commit(blocks)
            except (SchemaMismatch, StaleCache) as error:
                self._forget(blocks)  # another process filled the cache with other outputs: these blocks never fit
                if in_background:
                    self._lost = error  # also for a flush before the thread has set _error
                raise
            except BaseException:
                with uninterrupted(), self._changed.lock:  # they stay pending
                    self._in_commit, self._waiting = {}, {**self._in_commit, **self._waiting}
                raise
            self._forget(blocks)
            refused, self._refused = self._refused, None
            try:
                if refused is not None:
                    if in_background:
                        self._lost = refused
                    raise refused
            finally:
                del refused  # as above

    def _forget(self, blocks: Sequence[Block]) -> None:
        with uninterrupted(), self._changed.lock:
            committed, self._in_commit = self._in_commit, {}  # first: its numbers are those of blocks in the queue
            del self._queue[: len(blocks)]
            self._samples = sum(len(block) for block, _ in self._queue)
            self.nbytes = sum(block.nbytes for block, _ in self._queue)
            self._changed.notify_all()
        del committed  # freed outside of the lock

    def _start(self) -> None:
        if self._thread is None:
            thread = Thread(target=self._run, name="warmstore-writer", daemon=True)
            thread.start()
            self._thread = thread

    def _is_due(self) -> bool:
        return self._error is None and bool(self._queue) and (self._samples >= self._flush_every or self._wanted)

    def _run(self) -> None:
        thread = threading.current_thread()
        while True:
            with self._changed.lock:
                while self._thread is thread and not self._is_due():
                    self._changed.wait()
                if self._thread is not thread:
                    return
            try:
                # This may drop the last reference to the cache, which closes it: no lock is held.
                self._drain_now(in_background=True)
            except Exception as error:
                _log.warning("writing cached features failed; they stay pending in memory: %s", error)
                with self._changed.lock:
                    self._error = error
            with self._changed.lock:
                self._wanted = False
                self._changed.notify_all()
