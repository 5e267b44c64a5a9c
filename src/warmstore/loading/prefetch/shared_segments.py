"""Shared memory between a worker process and its consumer that is used again and again.

New shared memory costs a page fault per page in the worker, and a descriptor that is sent through a socket: for a batch
of 38 MB that takes longer than the copy of its bytes. So a worker keeps its segments. A flag at the end of a segment
says whether the consumer still refers to the batch in it. The consumer maps a segment once, when it first comes.

A forked child of the consumer may refer to a batch that the consumer has, and never says that it does not any more.
Such a segment is not used again, and both sides drop it after the consumer's last reference: the child has its own
mapping.
"""

import os
import resource
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from warmstore.storage.array_types import Bytes

_FLAG = 64  # bytes at the end of a segment: a cache line of their own
_SPARE = 16  # descriptors that are left for connections, and for what a source opens
_IN_USE, _LEFT_TO_CHILD = 1, 2  # of the flag, which is 0 in a segment that may be used again
_SLACK = 4  # a segment has room for a batch that is larger by one part in so many

SegmentName = tuple[int, int]
"""The worker's process and the segment's number there."""


class _Memory:
    """The memory of a segment, with a flag that is zero if the consumer and its forked children do not refer to it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor  # uint8 [n], over the whole segment
        whole: Bytes = tensor.numpy()
        self.data = whole[:-_FLAG]
        self.flag = whole[-_FLAG:].view(np.int64)
        self.lent = False  # whether this process refers to it
        self.is_forked = False  # whether a forked child may refer to it


class _Lent:
    """Holds the memory of a segment for the arrays over it; `release` is called after the last of them."""

    _pid = -1  # also where the constructor was interrupted

    def __init__(self, memory: _Memory, length: int, *, by_flag: bool) -> None:
        self._memory = memory
        self._by_flag = by_flag
        self._pid = os.getpid()
        memory.lent = True
        data = (memory.data.ctypes.data, False)
        self.__array_interface__ = {"data": data, "shape": (length,), "typestr": "|u1", "version": 3}

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A default argument: at exit, modules are emptied before the last array is freed.
        if getpid() == self._pid:  # a forked child has copies of the arrays, and no say
            self._memory.lent = False
            if self._by_flag:
                self._memory.flag[0] = _LEFT_TO_CHILD if self._memory.is_forked else 0


@dataclass(frozen=True)
class SentArray:
    """An array in a segment, on its way to the consumer, where it arrives as a `ReceivedArray`.

    tensor: over the whole segment when it is sent first. dropped: segments that the worker does not use any more.
    """

    name: SegmentName
    tensor: Any
    shape: tuple[int, ...]
    type: np.dtype[Any]
    dropped: list[SegmentName]

    device = dtype = None  # what a map over arrays takes for an array has these

    def __reduce__(self) -> Any:
        return _received, (self.name, self.tensor, self.shape, self.type, self.dropped)


@dataclass(frozen=True)
class ReceivedArray:
    """An array in a segment of a worker. Its memory goes back to the worker after the last reference to it."""

    array: np.ndarray[Any, Any]

    device = dtype = None


@final
class WorkerSegments:
    """The segments of one worker process."""

    def __init__(self) -> None:
        self._segments: dict[int, _Memory] = {}  # by number
        self._by_address: dict[int, int] = {}
        self._unknown: set[int] = set()  # those that the consumer has not mapped
        self._dropped: list[SegmentName] = []
        self._next = 0
        self._notes: list[str] = []
        self._is_told = False
        self._to_send = 0  # tensors of this message that are sent by a descriptor

    def notes(self) -> list[str]:
        """What the user should know since the last call. Ends a message."""
        notes, self._notes, self._to_send = self._notes, [], 0
        return notes

    def shares(self, tensor: Any) -> bool:
        """Move a tensor to shared memory. Returns whether there was enough."""
        try:
            self._count_descriptors()
            tensor.share_memory_()
        except RuntimeError as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: RuntimeError) -> None:
        if not self._is_told:
            self._is_told = True
            self._notes.append(
                f"{error}: batches of worker processes travel through pipes, which takes longer. Give the container "
                "a larger /dev/shm (docker run --shm-size), or raise the limit of open files (ulimit -n)"
            )

    def take(self, nbytes: int) -> Bytes | None:
        """uint8 [nbytes], not initialised: the smallest free segment that is large enough, or a new one. None where
        there is not enough shared memory."""
        for number, memory in list(self._segments.items()):
            if memory.flag[0] == _LEFT_TO_CHILD and not memory.lent:
                self._remove(number)
        free = {number: memory for number, memory in self._segments.items() if not (memory.lent or memory.flag[0])}
        fitting = {number: memory for number, memory in free.items() if nbytes <= len(memory.data) <= 2 * nbytes}
        if fitting:
            memory = min(fitting.values(), key=lambda found: len(found.data))
        else:
            self._drop(free)
            try:
                self._count_descriptors()
                memory = self._new(nbytes)
            except RuntimeError as error:
                self._tell(error)
                return None
        return np.asarray(_Lent(memory, nbytes, by_flag=False))

    def _count_descriptors(self) -> None:
        """Count one more tensor to send. Raise RuntimeError if so few descriptors are left that this could need more.

        Without one, the thread of multiprocessing that hands them out tries again and again, and the consumer waits.
        """
        try:
            lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError("no descriptors of open files are left") from error
        os.close(lowest)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if lowest + _SPARE + 2 * self._to_send > limit:
            raise RuntimeError("few descriptors of open files are left")
        self._to_send += 1

    def sent(self, array: np.ndarray[Any, Any]) -> SentArray | None:
        """An array of `take` as it is sent; None for any other array, and for a second one in the same segment."""
        number = self._by_address.get(array.ctypes.data)
        if number is None or not array.flags.c_contiguous:
            return None
        memory = self._segments[number]
        if not memory.lent or memory.flag[0] or array.nbytes > len(memory.data):
            return None
        memory.flag[0] = _IN_USE
        tensor = memory.tensor if number in self._unknown else None
        self._unknown.discard(number)
        dropped, self._dropped = self._dropped, []
        return SentArray((os.getpid(), number), tensor, array.shape, array.dtype, dropped)

    def _new(self, nbytes: int) -> _Memory:
        torch: Any = sys.modules["torch"]
        storage = torch.UntypedStorage._new_shared(nbytes + nbytes // _SLACK // 64 * 64 + 64 - nbytes % 64 + _FLAG)
        memory = _Memory(torch.empty(0, dtype=torch.uint8).set_(storage))
        memory.flag[0] = 0
        self._segments[self._next] = memory
        self._by_address[memory.data.ctypes.data] = self._next
        self._unknown.add(self._next)
        self._next += 1
        return memory

    def _drop(self, free: dict[int, _Memory]) -> None:
        """Drop free segments, oldest first, until they take no more than those in use."""
        unused = sum(len(memory.data) for memory in free.values())
        used = sum(len(memory.data) for memory in self._segments.values()) - unused
        for number, memory in free.items():
            if unused <= used:
                break
            unused -= len(memory.data)
            self._remove(number)

    def _remove(self, number: int) -> None:
        """Drop a segment, here and with the next message to the consumer, if that has mapped it."""
        del self._by_address[self._segments.pop(number).data.ctypes.data]
        if number in self._unknown:
            self._unknown.discard(number)
        else:
            self._dropped.append((os.getpid(), number))


_received_segments: dict[SegmentName, _Memory] = {}
"""The segments of all workers that this process has mapped. A batch that nobody takes is received all the same."""


def _received(
    name: SegmentName, tensor: Any, shape: tuple[int, ...], dtype: np.dtype[Any], dropped: list[SegmentName]
) -> ReceivedArray:
    for old in dropped:
        _received_segments.pop(old, None)
    if tensor is not None:
        _received_segments[name] = _Memory(tensor)
    length = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    array: np.ndarray[Any, Any] = np.asarray(_Lent(_received_segments[name], length, by_flag=True))
    return ReceivedArray(array.view(dtype).reshape(shape))


def _before_fork() -> None:
    for memory in list(_received_segments.values()):
        memory.is_forked |= memory.lent


os.register_at_fork(before=_before_fork)


def forget_segments(workers: Collection[int]) -> None:
    """Unmap the segments of worker processes that have ended. Arrays over them stay valid."""
    for name in [name for name in _received_segments if name[0] in workers]:
        del _received_segments[name]


_of_worker: list[WorkerSegments] = []


def start_worker() -> WorkerSegments:
    """The segments of this worker process, made at the first call. `taken` uses them from then on."""
    if not _of_worker:
        _of_worker.append(WorkerSegments())
    return _of_worker[0]


def taken(nbytes: int) -> Bytes | None:
    """Memory of this worker's segments; None in any other process."""
    return _of_worker[0].take(nbytes) if _of_worker else None
