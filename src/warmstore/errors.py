"""The errors that warmstore raises. Each is also a subclass of a builtin exception, so callers can catch either.

Nine kinds of errors, whose names end in `Error`, say what a caller can do. `message_of` formats an error for the
command line and logs.

WarmstoreError
├── UsageError                                the call is wrong: change the program
│   ├── BadIds            (ValueError)        ids missing, too few, too many, or None
│   ├── BadIdType         (TypeError)         ids of a type that is not stable, such as float
│   ├── PositionError     (IndexError)        a position outside [0, N)
│   ├── BadRank           (ValueError)        a rank outside its world
│   ├── BadBudget         (ValueError)        memory or disk below zero, or more than there is
│   └── Closed            (ValueError)        used after close()
├── NotSupportedError                         warmstore cannot do this here: install, upgrade or convert
│   ├── UnsupportedType   (TypeError)         a dtype or value that cannot be kept bit for bit
│   ├── UnknownFormat     (ValueError)        a format that is not known, or cannot be inferred
│   ├── NewerFormat       (ValueError)        written by a newer warmstore than this one
│   ├── NotInstalled      (ImportError)       an optional package that is needed
│   └── NotPicklable      (TypeError)         a step that cannot be sent to worker processes
├── NotFoundError                             nothing was found: check the path or the name
│   ├── NotAStore         (FileNotFoundError) the folder has no store
│   ├── NoSource          (FileNotFoundError) the source of a conversion or a loader does not exist
│   └── NoArtifact        (LookupError)       no artifact is stored under that name
├── MismatchError                             does not fit the stored data: start over, or pass data that fits
│   ├── SchemaMismatch    (ValueError)        values that do not fit the fields of a store or cache
│   ├── StaleCache        (ValueError)        cached under other weights, code or arguments
│   ├── BadState          (ValueError)        a loader's state that belongs to other samples or another order
│   └── Diverged          (ValueError)        two copies of a store that were written to separately
├── DataError                                 the data is broken: repair it, or restore it from a copy
│   ├── Damaged           (OSError)           stored bytes that do not match their checksum
│   ├── BadSource         (ValueError)        the source of a conversion or loader is empty, uneven, broken or has nulls
│   └── SampleSkipped     (RuntimeError)      a step skips a sample where none can be left out
├── IdentityError                             results cannot be cached safely: add information, or compute uncached
│   ├── NoFingerprint     (ValueError)        changes of a part of a function, module, graph or argument are invisible
│   ├── NotStateless      (RuntimeError)      a module whose output may change between calls
│   └── AmbiguousBatch    (ValueError)        a batch does not show which values are per sample
├── StorageError                              cannot be written: make room, give rights, or choose another place
│   ├── WriteFailed       (OSError)           the disk refused a write or a lock; nothing is lost
│   ├── ReadOnly          (PermissionError)   a write to something opened or mounted read-only
│   ├── TooLarge          (ValueError)        an artifact that exceeds the size limit of its store
│   ├── CompilationFailed (RuntimeError)      no cached artifact, and no folder with room to compile
│   ├── StoreExists       (FileExistsError)   a folder that is not empty, or holds something else than expected
│   └── TargetExists      (FileExistsError)   export() to an existing file or folder
├── ArtifactError                             something compiled must not be used: compile, or request another artifact
│   ├── BadArtifact       (ValueError)        invalid bytes, or an object that cannot be serialised
│   ├── BadBundle         (ValueError)        a bundle that is damaged, hostile or no bundle; nothing was imported
│   ├── Incompatible      (ValueError)        a compiled artifact for another environment
│   └── NotTrusted        (PermissionError)   a missing or wrong signature, or a key that others can read
└── RemoteError                               a remote does not serve: continue without it, or try again
    ├── RemoteUnavailable (ConnectionError)   a remote that does not answer in time
    └── RemoteRefused     (PermissionError)   a remote that refuses: missing or wrong credentials
"""

import os


class WarmstoreError(Exception):
    """The base class of all errors of warmstore."""


class UsageError(WarmstoreError):
    """The call is wrong: change the program."""


class BadIds(UsageError, ValueError):
    """Ids are missing, too few, too many, or None."""


class BadIdType(UsageError, TypeError):
    """An id is no str, int, bytes, path, UUID or tuple of these."""


class PositionError(UsageError, IndexError):
    """A position outside [0, N)."""


class BadRank(UsageError, ValueError):
    """A rank outside its world, or a rank without one."""


class BadBudget(UsageError, ValueError):
    """A budget of memory or disk is negative, exceeds the machine, or has no folder."""


class Closed(UsageError, ValueError):
    """A store or cache was used after `close`."""


class NotSupportedError(WarmstoreError):
    """Warmstore cannot do this, or not in this installation: install something, upgrade, or convert the data."""


class UnsupportedType(NotSupportedError, TypeError):
    """A dtype or value that cannot be kept bit for bit."""


class UnknownFormat(NotSupportedError, ValueError):
    """A format is not known, or cannot be inferred from the source or target."""


class NewerFormat(NotSupportedError, ValueError):
    """The store was written by a newer warmstore than this one."""

    @classmethod
    def of(cls, what: object, version: object, known: int) -> "NewerFormat":
        """The error for `what`, whose format is `version` where this warmstore reads up to `known`."""
        return cls(f"{what} has format {version}; this warmstore reads up to {known}. Upgrade warmstore to use it")


class NotInstalled(NotSupportedError, ImportError):
    """Something needs an optional package that is not installed."""


class NotPicklable(NotSupportedError, TypeError):
    """A step of a pipeline, or the source or transform of a loader, cannot be sent to worker processes."""


class NotFoundError(WarmstoreError):
    """Nothing was found under a path or name."""


class NotAStore(NotFoundError, FileNotFoundError):
    """The folder has no store."""


class NoSource(NotFoundError, FileNotFoundError):
    """The source of a conversion or a loader does not exist."""


class NoArtifact(NotFoundError, LookupError):
    """No artifact is stored under that key, or no job has that name."""


class MismatchError(WarmstoreError):
    """Data does not fit the stored data: start over, or pass data that fits."""


class SchemaMismatch(MismatchError, ValueError):
    """Values do not fit the fields of a store or the outputs in a cache."""


class StaleCache(MismatchError, ValueError):
    """The cache was filled with other weights, code or arguments than the current ones."""


class BadState(MismatchError, ValueError):
    """The state of a loader is invalid, or belongs to other samples or another order."""


class Diverged(MismatchError, ValueError):
    """Two copies of a store, or a store and its remote, were written to separately, and neither continues the other."""


class DataError(WarmstoreError):
    """Data in a store or a source is broken: repair it, or restore it from a copy."""


class Damaged(DataError, OSError):
    """Stored bytes do not match their checksum."""


class BadSource(DataError, ValueError):
    """The source of a conversion or a loader is empty, of unequal lengths, broken, of an unknown kind, or has nulls."""


class SampleSkipped(DataError, RuntimeError):
    """A step with on_error="skip" fails on a sample, where no sample can be left out. `__cause__` is its error."""


class IdentityError(WarmstoreError):
    """Results cannot be cached safely: add the information that the message names, or compute without a cache."""


class NoFingerprint(IdentityError, ValueError):
    """Changes of a part of a function, module, graph or argument cannot be noticed. The message names the part."""


class NotStateless(IdentityError, RuntimeError):
    """The output of a module for the same sample may change between calls."""


class AmbiguousBatch(IdentityError, ValueError):
    """A batch does not show which values belong to single samples and which to the whole batch."""


class StorageError(WarmstoreError):
    """A place cannot be written: make room, give rights, or choose another place."""


class WriteFailed(StorageError, OSError):
    """The disk refused a write, a lock or an index. `errno` has the reason.

    Rows are still pending, and the next flush writes them again. A store of compiled artifacts is unchanged.
    """


class ReadOnly(StorageError, PermissionError):
    """A write to something that was opened, or is mounted, read-only."""


class TooLarge(StorageError, ValueError):
    """An artifact exceeds the size limit of its store."""


class CompilationFailed(StorageError, RuntimeError):
    """The cache has no artifact, and no folder has room to compile. Other errors of a compiler are not converted."""


class StoreExists(StorageError, FileExistsError):
    """The folder of a new store is not empty, or a folder or remote holds data of another kind."""


class TargetExists(StorageError, FileExistsError):
    """The target of `export` exists already."""


class ArtifactError(WarmstoreError):
    """Something that was compiled elsewhere or earlier must not be used: compile, or request another artifact."""


class BadArtifact(ArtifactError, ValueError):
    """The bytes of an artifact are invalid, or an object cannot be serialised."""


class BadBundle(ArtifactError, ValueError):
    """A bundle is damaged, hostile or no bundle. Nothing was imported."""


class Incompatible(ArtifactError, ValueError):
    """A compiled artifact was made for another environment than this one."""


class NotTrusted(ArtifactError, PermissionError):
    """A signature is missing or wrong, or others can read the signing key."""


class RemoteError(WarmstoreError):
    """A remote does not serve: continue without it, or try again later."""


class RemoteUnavailable(RemoteError, ConnectionError):
    """A remote does not answer in time."""


class RemoteRefused(RemoteError, PermissionError):
    """A remote refuses a request: credentials are missing, wrong or insufficient."""


def message_of(error: BaseException) -> str:
    """The text of an error for a person. Errors of the system start with the file, and have no error number."""
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        return ": ".join([*names, error.strerror])
    return str(error) or type(error).__name__
