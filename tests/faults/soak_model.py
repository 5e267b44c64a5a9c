"""The model of a soak: which state of each slot a reader may see, in memory that all processes of the soak share.

A slot is a record that comes and goes. Its state is a number that only rises: its incarnation, its version and whether
it was deleted. One process at a time may change a slot: its writer while it is deleted or new, its editor while it is
alive. That process notes the new state before the change (`begun`) and after its acknowledgement (`acked`). So a reader
judges each row alone: its state is at least what was acknowledged before the refresh, at most what had begun after the
read, and its values follow from slot and state.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from warmstore.records.format.fields import Fields
from warmstore.storage.array_types import Bools, Int64

WIDTH = 8
"""Numbers of a record."""
CACHED_WIDTH = 32
"""Numbers of a sample of the cache."""
FIELDS: Fields = {
    "slot": ws.Array("int64"),
    "state": ws.Array("int64"),
    "values": ws.Array("int64", (WIDTH,)),
    "blob": ws.Bytes("lz4"),
}
WORKERS = 64
"""The most workers of a soak."""
PHASES = ("work", "commit", "refresh")
"""What workers do in turn: they work; before a rest they commit what they have; when all is merged they refresh."""
_HEAD = 8
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


class Wrong(AssertionError):
    """A reader saw what it must not see."""


def appended(states: Int64) -> Int64:
    """The first state of the next incarnation."""
    return ((states >> 32) + 1) << 32


def updated(states: Int64) -> Int64:
    """The next version."""
    return states + 2


def deleted(states: Int64) -> Int64:
    """The last state of an incarnation."""
    return states | 1


def are_alive(states: Int64) -> Bools:
    """Which states are those of a record: bool [n]."""
    alive: Bools = (states > 0) & ((states & 1) == 0)
    return alive


def values_of(slots: Any, states: Any, width: int = WIDTH) -> Int64:
    """The numbers of some slots in some states, int64 [n, width]."""
    mixed = np.asarray(slots).astype(np.uint64)[:, None] * _FACTORS[0]
    mixed = mixed + np.asarray(states).astype(np.uint64)[:, None] * _FACTORS[1]
    mixed = mixed + np.arange(width, dtype=np.uint64) * _FACTORS[2]
    found: Int64 = ((mixed ^ (mixed >> np.uint64(31))) * _FACTORS[1]).view(np.int64)
    return found


def blobs_of(values: Int64) -> list[bytes]:
    """The bytes that belong to the numbers of some records: of any length, empty ones too."""
    return [row.tobytes()[: int(row[0]) % (8 * len(row) + 1)] for row in values]


def columns_of(slots: Int64, states: Int64) -> dict[str, Any]:
    """Records as `extend` takes them."""
    values = values_of(slots, states)
    return {"slot": slots, "state": states, "values": values, "blob": blobs_of(values)}


@dataclass(frozen=True)
class Sizes:
    """How many slots, in equal parts for each writer, and how many ids the cache is asked for."""

    writers: int
    editors: int
    each: int = 256
    ids: int = 40_000

    @property
    def slots(self) -> int:
        return self.writers * self.each

    def owned_by_writer(self, number: int) -> Int64:
        return np.arange(number * self.each, (number + 1) * self.each)

    def edited_by(self, number: int) -> Int64:
        """The slots that an editor edits. Every third slot is edited by its writer."""
        slots = np.arange(self.slots)
        edited: Int64 = slots[(slots % 3 != 0) & (slots // 3 % self.editors == number)]
        return edited


class Table:
    """The shared memory of a soak.

    counts: the operations of each worker. seen: the last phase that each has seen. begun, acked: the states of each
    slot.
    """

    def __init__(self, path: Path, slots: int) -> None:
        length = _HEAD + 2 * WORKERS + 2 * slots
        if not path.exists():
            path.write_bytes(bytes(8 * length))
        memory: Int64 = np.memmap(path, np.int64, "r+", shape=(length,)).view(np.ndarray)
        self._head, workers = memory[:_HEAD], memory[_HEAD : -2 * slots].reshape(2, WORKERS)
        self.counts, self.seen = workers
        self.begun, self.acked = memory[-2 * slots :].reshape(2, slots)

    @property
    def stopped(self) -> bool:
        return bool(self._head[0])

    def stop(self) -> None:
        self._head[0] = 1

    @property
    def phase(self) -> int:
        """The number of the phase: they take turns."""
        return int(self._head[1])

    def next_phase(self) -> None:
        self._head[1] += 1

    @property
    def operations(self) -> int:
        return int(self.counts.sum())


def judge(columns: dict[str, Any], known: Int64, begun: Int64) -> None:
    """Raise Wrong if rows are not exact, or in states that they cannot have.

    Args:
        known: what was acknowledged before the refresh, by slot.
        begun: what had begun after the read.
    """
    slots, states = np.asarray(columns["slot"]), np.asarray(columns["state"])
    if len(slots) and not 0 <= slots.min() <= slots.max() < len(known):
        raise Wrong(f"slots {slots.min()} to {slots.max()} were read; there are {len(known)}")
    for is_wrong, what in (
        (~are_alive(states), "have no state of a record"),
        (states < known[slots], "are older than what was acknowledged before the refresh"),
        (states > begun[slots], "are newer than what anybody has written"),
    ):
        if is_wrong.any():
            at = int(np.flatnonzero(is_wrong)[0])
            slot = int(slots[at])
            raise Wrong(
                f"{is_wrong.sum()} of {len(slots)} rows {what}: slot {slot} in state {states[at]:#x}, acknowledged "
                f"{known[slot]:#x}, begun {begun[slot]:#x}"
            )
    if "values" in columns:
        values = values_of(slots, states)
        found = np.asarray(columns["values"])
        if not np.array_equal(found, values):
            bad = np.flatnonzero((found != values).any(axis=1))
            raise Wrong(
                f"values of {len(bad)} of {len(slots)} rows are wrong: slots {slots[bad].tolist()} in states "
                f"{states[bad].tolist()} have {found[bad].tolist()} and not {values[bad].tolist()}"
            )
        if "blob" in columns and [bytes(blob) for blob in columns["blob"]] != blobs_of(values):
            raise Wrong(f"bytes are not those of slots {slots.tolist()} in states {states.tolist()}")


def judge_all(columns: dict[str, Any], known: Int64, begun: Int64) -> None:
    """`judge` for all rows of a store: each slot at most once, and each once that was there all the time."""
    judge(columns, known, begun)
    counts = np.bincount(columns["slot"], minlength=len(known))
    if counts.max(initial=0) > 1:
        raise Wrong(f"slots {np.flatnonzero(counts > 1).tolist()} were read more than once")
    lost = np.flatnonzero((counts == 0) & are_alive(known) & are_alive(begun) & (known >> 32 == begun >> 32))
    if len(lost):
        slot = int(lost[0])
        raise Wrong(f"{len(lost)} acknowledged rows are lost: slot {slot}, acknowledged {known[slot]:#x}")


def judge_cached(ids: Int64, found: Any, missing: Int64) -> None:
    """Raise Wrong if samples of the cache are not those of their ids."""
    present = np.delete(ids, missing)
    if len(present) and not np.array_equal(found, values_of(present, np.ones_like(present), CACHED_WIDTH)):
        raise Wrong(f"the cache has other values for some of {present.tolist()}")
