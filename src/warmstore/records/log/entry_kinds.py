"""The kinds of log entries, and where an entry has its chunk, its rows and its kind. Imports nothing, so that commands
can count the records of a thousand stores before NumPy would be imported."""

import struct

BATCH, SEALED, UPDATE, DELETE, CLOSED, EVICTED, ADOPTED = 1, 2, 3, 4, 5, 6, 7
"""Kinds of entries. UPDATE and DELETE occur in formats 1 to 3 only; their positions are in the chunk."""
STAGED, UPDATED, DELETED, COPIED, MERGED = 8, 9, 10, 11, 12
"""Kinds of entries of format 4."""
COUNTS = struct.Struct("<II12xI40x")
"""The chunk, the rows and the kind of an entry of 64 bytes; `log_entries.ENTRY` has all of it."""
