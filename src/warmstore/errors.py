"""Every error warmstore raises on purpose. Each is also the builtin a caller would expect; both ways of catching work.

WarmstoreError
├── NotAStore        (FileNotFoundError)  the folder holds no store
├── StoreExists      (FileExistsError)    create() on a folder that holds something already
├── NewerFormat      (ValueError)         written by a newer warmstore than this one
├── SchemaMismatch   (ValueError)         values that do not fit the fields of a store or cache
├── UnsupportedType  (TypeError)          a dtype or value that cannot be kept bit for bit
├── PositionError    (IndexError)         a position outside [0, N)
├── Damaged          (OSError)            stored bytes that do not match their checksum
├── WriteFailed      (OSError)            the disk refused a write; rows are still pending
├── ReadOnly         (PermissionError)    a write to something opened or mounted read-only
├── Closed           (ValueError)         used after close()
├── BadIds           (ValueError)         ids missing, too few, too many, or None
├── BadIdType        (TypeError)          ids that are neither str nor int
├── StaleCache       (ValueError)         cached under other weights, code or arguments
├── NoFingerprint    (ValueError)         something about a function, module or argument cannot be told
├── NotStateless     (RuntimeError)       a module whose output may change between calls
├── AmbiguousBatch   (ValueError)         which values are per sample cannot be told
├── NoSource         (FileNotFoundError)  what was to be converted or loaded is not there
├── BadSource        (ValueError)         what was to be converted or loaded is empty, uneven, broken or has nulls
├── UnknownFormat    (ValueError)         a format that is not known, or cannot be told
├── NotInstalled     (ImportError)        an optional package that a format needs
├── NotPicklable     (TypeError)          a step that cannot be sent to worker processes
├── TargetExists     (FileExistsError)    export() to a file or folder that is there already
├── BadState         (ValueError)         a loader's state that belongs to other samples or another order
├── BadRank          (ValueError)         a rank outside its world
├── BadBudget        (ValueError)         memory or disk below zero, or more than there is
├── NoKey            (ValueError)         a graph or an input that no key can be made of
├── NoArtifact       (LookupError)        nothing is stored under that name
├── Incompatible     (ValueError)         a compiled artifact that must not be used in this environment
├── StorageFailed    (OSError)            the store of compiled artifacts cannot be written or locked
├── TooLarge         (ValueError)         an artifact larger than its whole store may be
├── BadArtifact      (ValueError)         bytes that are not what they should be, or cannot be made into bytes
├── BadBundle        (ValueError)         a bundle that is damaged, hostile or no bundle; nothing of it was taken
├── NotTrusted       (PermissionError)    a signature that is missing or wrong, or a key anybody could read
├── Diverged         (ValueError)         two copies of a store that went different ways
├── RemoteUnavailable (ConnectionError)   a remote cache that does not answer, or not in time
├── RemoteRefused    (PermissionError)    a remote that says no: credentials that are missing or wrong
└── CompilationFailed (RuntimeError)      the cache had nothing, and nowhere is there room to compile
"""


class WarmstoreError(Exception):
    """The root of the tree above."""


class NotAStore(WarmstoreError, FileNotFoundError):
    """The folder holds no store."""


class StoreExists(WarmstoreError, FileExistsError):
    """`create` was asked for a folder that holds something already."""


class NewerFormat(WarmstoreError, ValueError):
    """The store was written by a newer warmstore than this one."""


class SchemaMismatch(WarmstoreError, ValueError):
    """Values do not fit the fields of a store or the outputs a cache already holds."""


class UnsupportedType(WarmstoreError, TypeError):
    """A dtype or value that cannot be kept bit for bit."""


class PositionError(WarmstoreError, IndexError):
    """A position outside [0, N)."""


class Damaged(WarmstoreError, OSError):
    """Stored bytes do not match their checksum."""


class WriteFailed(WarmstoreError, OSError):
    """The disk refused a write. `errno` says why; the rows are still pending and the next flush tries them again."""


class ReadOnly(WarmstoreError, PermissionError):
    """A write to something that was opened, or is mounted, read-only."""


class Closed(WarmstoreError, ValueError):
    """A store or cache was used after `close`."""


class BadIds(WarmstoreError, ValueError):
    """Ids are missing, too few, too many, or None."""


class BadIdType(WarmstoreError, TypeError):
    """Ids are neither str nor int."""


class StaleCache(WarmstoreError, ValueError):
    """The cache was filled by other weights, other code or other arguments than the ones at hand."""


class NoFingerprint(WarmstoreError, ValueError):
    """It cannot be told whether a function, module or argument changes. The message names the places and what to do."""


class NotStateless(WarmstoreError, RuntimeError):
    """A module whose output for the same sample may change between calls."""


class AmbiguousBatch(WarmstoreError, ValueError):
    """Which values belong to single samples, and which to the whole batch, cannot be told apart."""


class NoSource(WarmstoreError, FileNotFoundError):
    """What was to be converted or loaded is not there."""


class BadSource(WarmstoreError, ValueError):
    """What was to be converted or loaded is empty, of unequal lengths, broken, of no known kind, or holds nulls."""


class UnknownFormat(WarmstoreError, ValueError):
    """A format that is not known, or one that cannot be told from the source or target."""


class NotInstalled(WarmstoreError, ImportError):
    """A format needs an optional package that is not installed."""


class NotPicklable(WarmstoreError, TypeError):
    """A step of a pipeline, or its arguments, cannot be sent to worker processes."""


class TargetExists(WarmstoreError, FileExistsError):
    """`export` was asked for a file or folder that is there already."""


class BadState(WarmstoreError, ValueError):
    """The state of a loader is no such state, or belongs to other samples or to another order."""


class BadRank(WarmstoreError, ValueError):
    """A rank outside its world, or a rank without one."""


class BadBudget(WarmstoreError, ValueError):
    """Memory or disk below zero, more than the machine has, or on no folder."""


class NoKey(WarmstoreError, ValueError):
    """No key that means the same everywhere can be made of a graph or an input."""


class NoArtifact(WarmstoreError, LookupError):
    """Nothing is stored under that key, or no job has that name."""


class Incompatible(WarmstoreError, ValueError):
    """A compiled artifact was made for another environment than this one."""


class StorageFailed(WarmstoreError, OSError):
    """The store of compiled artifacts could not be written, locked or read. `errno` says why; nothing was changed."""


class TooLarge(WarmstoreError, ValueError):
    """An artifact is larger than its whole store may be."""


class BadArtifact(WarmstoreError, ValueError):
    """Bytes are not what they should be, or something cannot be made into bytes."""


class BadBundle(WarmstoreError, ValueError):
    """A bundle is damaged, hostile or no bundle at all; nothing of it was taken."""


class NotTrusted(WarmstoreError, PermissionError):
    """A signature is missing or wrong, or the key to sign with lies where anybody could read it."""


class Diverged(WarmstoreError, ValueError):
    """Two copies of a store, or a store and its remote, were written to separately, and neither continues the other."""


class RemoteUnavailable(WarmstoreError, ConnectionError):
    """A remote cache does not answer, or not in time."""


class RemoteRefused(WarmstoreError, PermissionError):
    """A remote says no: the credentials are missing, wrong, or not enough."""


class CompilationFailed(WarmstoreError, RuntimeError):
    """The cache had nothing to offer, and nowhere is there room to compile. Other errors of a compiler are its own."""
