"""Every error warmstore raises on purpose. Each is also the builtin a caller would expect; both ways of catching work.

Between the root and the errors stand nine kinds, named by what a caller does about them; their names end in `Error`.
`message_of` is how the command line and logs say any error.

WarmstoreError
├── UsageError                                the call is wrong: change the program
│   ├── BadIds            (ValueError)        ids missing, too few, too many, or None
│   ├── BadIdType         (TypeError)         ids that are neither str nor int
│   ├── PositionError     (IndexError)        a position outside [0, N)
│   ├── BadRank           (ValueError)        a rank outside its world
│   ├── BadBudget         (ValueError)        memory or disk below zero, or more than there is
│   └── Closed            (ValueError)        used after close()
├── NotSupportedError                         warmstore cannot do this here: install, upgrade or convert
│   ├── UnsupportedType   (TypeError)         a dtype or value that cannot be kept bit for bit
│   ├── UnknownFormat     (ValueError)        a format that is not known, or cannot be told
│   ├── NewerFormat       (ValueError)        written by a newer warmstore than this one
│   ├── NotInstalled      (ImportError)       an optional package that a format needs
│   └── NotPicklable      (TypeError)         a step that cannot be sent to worker processes
├── NotFoundError                             nothing is there: check the path or the name
│   ├── NotAStore         (FileNotFoundError) the folder holds no store
│   ├── NoSource          (FileNotFoundError) what was to be converted or loaded is not there
│   └── NoArtifact        (LookupError)       nothing is stored under that name
├── MismatchError                             does not fit what is stored: begin anew, or give what belongs to it
│   ├── SchemaMismatch    (ValueError)        values that do not fit the fields of a store or cache
│   ├── StaleCache        (ValueError)        cached under other weights, code or arguments
│   ├── BadState          (ValueError)        a loader's state that belongs to other samples or another order
│   └── Diverged          (ValueError)        two copies of a store that went different ways
├── DataError                                 the data is broken: repair it, or restore it from a copy
│   ├── Damaged           (OSError)           stored bytes that do not match their checksum
│   └── BadSource         (ValueError)        what was to be converted or loaded is empty, uneven, broken or has nulls
├── IdentityError                             nothing can be kept safely: say more, or compute without a cache
│   ├── NoFingerprint     (ValueError)        something about a function, module, graph or argument cannot be told
│   ├── NotStateless      (RuntimeError)      a module whose output may change between calls
│   └── AmbiguousBatch    (ValueError)        which values are per sample cannot be told
├── StorageError                              cannot be written: make room, give rights, or choose another place
│   ├── WriteFailed       (OSError)           the disk refused a write or a lock; nothing is lost
│   ├── ReadOnly          (PermissionError)   a write to something opened or mounted read-only
│   ├── TooLarge          (ValueError)        an artifact larger than its whole store may be
│   ├── CompilationFailed (RuntimeError)      the cache had nothing, and nowhere is there room to compile
│   ├── StoreExists       (FileExistsError)   create() on a folder that holds something already
│   └── TargetExists      (FileExistsError)   export() to a file or folder that is there already
├── ArtifactError                             something compiled must not be used: compile, or ask for another one
│   ├── BadArtifact       (ValueError)        bytes that are not what they should be, or cannot be made into bytes
│   ├── BadBundle         (ValueError)        a bundle that is damaged, hostile or no bundle; nothing of it was taken
│   ├── Incompatible      (ValueError)        a compiled artifact that must not be used in this environment
│   └── NotTrusted        (PermissionError)   a signature that is missing or wrong, or a key anybody could read
└── RemoteError                               a remote does not serve: go on without it, or try again
    ├── RemoteUnavailable (ConnectionError)   a remote that does not answer, or not in time
    └── RemoteRefused     (PermissionError)   a remote that says no: credentials that are missing or wrong
"""

import os


class WarmstoreError(Exception):
    """The root of the tree above."""


class UsageError(WarmstoreError):
    """The call is wrong, whatever is stored: the program has to change."""


class BadIds(UsageError, ValueError):
    """Ids are missing, too few, too many, or None."""


class BadIdType(UsageError, TypeError):
    """Ids are neither str nor int."""


class PositionError(UsageError, IndexError):
    """A position outside [0, N)."""


class BadRank(UsageError, ValueError):
    """A rank outside its world, or a rank without one."""


class BadBudget(UsageError, ValueError):
    """Memory or disk below zero, more than the machine has, or on no folder."""


class Closed(UsageError, ValueError):
    """A store or cache was used after `close`."""


class NotSupportedError(WarmstoreError):
    """Warmstore cannot do this, or not in this installation: install something, upgrade, or convert the data."""


class UnsupportedType(NotSupportedError, TypeError):
    """A dtype or value that cannot be kept bit for bit."""


class UnknownFormat(NotSupportedError, ValueError):
    """A format that is not known, or one that cannot be told from the source or target."""


class NewerFormat(NotSupportedError, ValueError):
    """The store was written by a newer warmstore than this one."""


class NotInstalled(NotSupportedError, ImportError):
    """A format needs an optional package that is not installed."""


class NotPicklable(NotSupportedError, TypeError):
    """A step of a pipeline, or its arguments, cannot be sent to worker processes."""


class NotFoundError(WarmstoreError):
    """Nothing is stored, or lies, under that path or name."""


class NotAStore(NotFoundError, FileNotFoundError):
    """The folder holds no store."""


class NoSource(NotFoundError, FileNotFoundError):
    """What was to be converted or loaded is not there."""


class NoArtifact(NotFoundError, LookupError):
    """Nothing is stored under that key, or no job has that name."""


class MismatchError(WarmstoreError):
    """What was given does not fit what is stored: begin anew, or give what belongs to it."""


class SchemaMismatch(MismatchError, ValueError):
    """Values do not fit the fields of a store or the outputs a cache already holds."""


class StaleCache(MismatchError, ValueError):
    """The cache was filled by other weights, other code or other arguments than the ones at hand."""


class BadState(MismatchError, ValueError):
    """The state of a loader is no such state, or belongs to other samples or to another order."""


class Diverged(MismatchError, ValueError):
    """Two copies of a store, or a store and its remote, were written to separately, and neither continues the other."""


class DataError(WarmstoreError):
    """Data is broken, in a store or where it comes from: repair it, or restore it from a copy."""


class Damaged(DataError, OSError):
    """Stored bytes do not match their checksum."""


class BadSource(DataError, ValueError):
    """What was to be converted or loaded is empty, of unequal lengths, broken, of no known kind, or holds nulls."""


class IdentityError(WarmstoreError):
    """Nothing can be kept safely: say what warmstore cannot tell (the message names it), or compute without a cache."""


class NoFingerprint(IdentityError, ValueError):
    """It cannot be told whether a function, module, graph or argument changes. The message names places and advises."""


class NotStateless(IdentityError, RuntimeError):
    """A module whose output for the same sample may change between calls."""


class AmbiguousBatch(IdentityError, ValueError):
    """Which values belong to single samples, and which to the whole batch, cannot be told apart."""


class StorageError(WarmstoreError):
    """Nothing can be written in that place: make room, give rights, or choose another place."""


class WriteFailed(StorageError, OSError):
    """The disk refused a write, a lock or an index. `errno` says why.

    Rows are still pending, and the next flush tries them again; in a store of compiled artifacts nothing was changed.
    """


class ReadOnly(StorageError, PermissionError):
    """A write to something that was opened, or is mounted, read-only."""


class TooLarge(StorageError, ValueError):
    """An artifact is larger than its whole store may be."""


class CompilationFailed(StorageError, RuntimeError):
    """The cache had nothing to offer, and nowhere is there room to compile. Other errors of a compiler are its own."""


class StoreExists(StorageError, FileExistsError):
    """`create` was asked for a folder that holds something already."""


class TargetExists(StorageError, FileExistsError):
    """`export` was asked for a file or folder that is there already."""


class ArtifactError(WarmstoreError):
    """Something that was compiled elsewhere or earlier must not be used: compile, or ask for another one."""


class BadArtifact(ArtifactError, ValueError):
    """Bytes are not what they should be, or something cannot be made into bytes."""


class BadBundle(ArtifactError, ValueError):
    """A bundle is damaged, hostile or no bundle at all; nothing of it was taken."""


class Incompatible(ArtifactError, ValueError):
    """A compiled artifact was made for another environment than this one."""


class NotTrusted(ArtifactError, PermissionError):
    """A signature is missing or wrong, or the key to sign with lies where anybody could read it."""


class RemoteError(WarmstoreError):
    """A remote does not serve: go on without it, or try again later."""


class RemoteUnavailable(RemoteError, ConnectionError):
    """A remote cache does not answer, or not in time."""


class RemoteRefused(RemoteError, PermissionError):
    """A remote says no: the credentials are missing, wrong, or not enough."""


def message_of(error: BaseException) -> str:
    """What an error says to a person: without numbers of the system's errors, and the file first."""
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        return ": ".join([*names, error.strerror])
    return str(error) or type(error).__name__
