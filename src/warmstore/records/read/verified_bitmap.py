"""VerifiedBitmap: which rows this process has compared with their checksums.

The first read of a row finds damage on the disk. Later reads skip the check, so they cost nothing more.
"""

import numpy as np

from warmstore.records.read.snapshot import Snapshot
from warmstore.storage.array_types import Bytes, Int64

_BIT = np.array([1 << bit for bit in range(8)], np.uint8)


class VerifiedBitmap:
    """One bit per row: set once this process has compared the row with its checksum.

    Threads may overwrite each other's bits. A lost bit costs one more check; no bit is set without one.
    """

    def __init__(self) -> None:
        self._bytes = np.zeros(1024, np.uint8)
        self._complete = (0, 0)  # rows and edits of the last snapshot whose live rows were all set
        self._idle = 0  # calls of `unset` in a row that found every bit set

    def covers(self, snapshot: Snapshot) -> bool:
        """Whether every live row of a snapshot is known to be set."""
        rows, edits = self._complete
        return rows >= snapshot.rows and edits == snapshot.edits

    def unset(self, rows: Int64, snapshot: Snapshot) -> Int64:
        """The indices into `rows` whose bits are not set, int64."""
        bits = self._grown(snapshot.rows)
        fresh = np.flatnonzero((bits[rows >> 3] & _BIT[rows & 7]) == 0)
        if len(fresh):
            self._idle = 0
        else:
            # All bits are tested after 1, 2, 4, 8 ... gathers that checked nothing. Once all are set, never again.
            self._idle += 1
            if not self._idle & (self._idle - 1) and self._all_set(bits, snapshot):
                self._complete = (snapshot.rows, snapshot.edits)
                self._idle = 0
        return fresh

    @staticmethod
    def _all_set(bits: Bytes, snapshot: Snapshot) -> bool:
        if snapshot.order is not None:
            return bool((bits[snapshot.order >> 3] & _BIT[snapshot.order & 7]).all())
        rest = np.arange(snapshot.rows >> 3 << 3, snapshot.rows)
        return bool((bits[: snapshot.rows >> 3] == 255).all() and (bits[rest >> 3] & _BIT[rest & 7]).all())

    def set_run(self, first: int, last: int) -> None:
        """Set the bits of rows [first, last)."""
        bits = self._grown(last)
        full_bytes = slice(-(-first // 8), last // 8)
        if full_bytes.start < full_bytes.stop:
            bits[full_bytes] = 255
        if last - first < 16:
            rest = np.arange(first, last)
        else:
            rest = np.r_[first : 8 * full_bytes.start, 8 * full_bytes.stop : last]
        np.bitwise_or.at(bits, rest >> 3, _BIT[rest & 7])

    def set(self, rows: Int64, total: int) -> None:
        """Set the bits of some rows of a store of `total` rows."""
        if len(rows) > 16 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
            self._grown(total)
            self.set_run(int(rows[0]), int(rows[-1]) + 1)
        else:
            np.bitwise_or.at(self._grown(total), rows >> 3, _BIT[rows & 7])

    def _grown(self, total: int) -> Bytes:
        bits = self._bytes
        if total > 8 * len(bits):
            grown = np.zeros(max(2 * len(bits), (total >> 3) + 1), np.uint8)
            grown[: len(bits)] = bits
            self._bytes = bits = grown
        return bits
