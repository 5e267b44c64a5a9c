"""The bits that remember which rows were checked."""

import numpy as np

from warmstore.records.read.snapshot import Snapshot
from warmstore.records.read.verified_bitmap import VerifiedBitmap


def test_bits_remember_rows_and_when_all_are_set() -> None:
    bits = VerifiedBitmap()
    total = 20_001
    snapshot = Snapshot(rows=total)
    rows = np.random.default_rng(0).permutation(total)
    assert bits.unset(rows, snapshot).tolist() == list(range(total))
    bits.set(rows[: total // 2], total)
    assert bits.unset(rows, snapshot).tolist() == list(range(total // 2, total))
    bits.set(rows[total // 2 : -1], total)
    for _ in range(1000):
        bits.unset(rows[:1], snapshot)
    assert not bits.covers(snapshot)
    bits.set(rows, total)
    for _ in range(1000):
        bits.unset(rows[:1], snapshot)
    assert bits.covers(snapshot)
    assert bits.covers(Snapshot(rows=5))
    assert not bits.covers(Snapshot(rows=total + 1))
    assert bits.unset(np.array([total]), Snapshot(rows=total + 1)).tolist() == [0]


def test_only_live_rows_need_their_bit() -> None:
    bits = VerifiedBitmap()
    edited = Snapshot(rows=1000, order=np.arange(0, 1000, 2), edits=1)
    bits.set(edited.order, 1000)
    bits.unset(np.array([0]), edited)
    assert bits.covers(edited)
    # What another snapshot holds to be alive may never have been looked at.
    assert not bits.covers(Snapshot(rows=1000))
    assert not bits.covers(Snapshot(rows=1000, order=np.arange(500), edits=2))


def test_bits_serve_two_snapshots_of_different_age() -> None:
    bits = VerifiedBitmap()
    old, new = Snapshot(rows=9_000), Snapshot(rows=20_000)
    bits.unset(np.array([new.rows - 1]), new)
    bits._bytes = np.zeros(2048, np.uint8)  # as a thread leaves it that grew it for the old snapshot meanwhile
    bits.set(np.array([new.rows - 1]), new.rows)
    assert not len(bits.unset(np.array([new.rows - 1]), new))
    assert len(bits.unset(np.array([old.rows - 1]), old)) == 1
