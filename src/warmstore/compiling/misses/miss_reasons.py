"""Reasons for misses: the differences between a missing key and the nearest compiled one, of the same job if possible.

The description of a key is an artifact beside the compiled ones. Descriptions are read only on a miss: this takes some
milliseconds, before a compilation of seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.misses.key_descriptions import KeyDescription, summary
from warmstore.compiling.scratch.compiler_files import kind_of
from warmstore.compiling.store.artifact_store import ArtifactStore

NEW = "nothing like it was compiled here before"

_COMPARED = 32  # the newest of the same kind
_PACKAGES = "package/"
_ALIKE = 0.5  # least share of common operators of two versions of one program


class MissReasons:
    """The descriptions of the keys of one process. Paths are relative to the scratch directory."""

    def __init__(self, store: ArtifactStore, environment: Environment, job: str) -> None:
        self._store = store
        self._environment = environment
        self._job = job
        self._makers: dict[str, Callable[[], KeyDescription | None]] = {}
        self._unkept: dict[str, KeyDescription] = {}
        self._read: dict[str, KeyDescription] = {}

    def describe(self, path: str, make: Callable[[], KeyDescription | None]) -> None:
        """Register a function that makes the description of the key that is looked up next. It runs only on a miss."""
        self._makers[path] = make

    def forget(self, path: str) -> None:
        """Drop the registered function after a hit."""
        self._makers.pop(path, None)

    def why(self, path: str) -> tuple[str, ...]:
        """The differences from the nearest key; empty without a description or another key."""
        make = self._makers.pop(path, None)
        details = make() if make is not None else None
        if details is None:
            return ()
        self._unkept[path] = details
        below = _below(path)
        candidates = self._store.newest("details", below, _COMPARED, job=self._job)
        candidates = candidates or self._store.newest("details", below, _COMPARED)
        if any(stored.key == _key(path) and stored.environment == self._environment for stored in candidates):
            return ("it was compiled here before, and evicted or dropped since",)
        if not candidates:
            return ()
        likeness, _, changes = max(self._difference(details, candidate) for candidate in candidates)
        if likeness < _ALIKE:
            return (NEW,)
        return summary(changes) or ("the same operators, connected otherwise or of other sizes",)

    def keep(self, path: str) -> str | None:
        """Store the description of the key that a file was compiled under, once, and return its key. Raises as
        `ArtifactStore.put`."""
        unkept = list(self._unkept)  # a copy: other threads look up meanwhile
        looked_up = next((prefix for prefix in unkept if path.startswith(prefix)), None)
        if looked_up is None:
            return None
        details = self._unkept.pop(looked_up)
        self._store.put(
            _key(looked_up),
            "details",
            details.to_bytes(),
            environment=self._environment,
            job=self._job,
        )
        return _key(looked_up)

    def _difference(self, details: KeyDescription, candidate: Artifact) -> tuple[float, int, list[str]]:
        """Likeness, minus the number of changes, and the changes. The nearest candidate has the maximum."""
        other = self._read.get(candidate.digest)
        if other is None:
            try:
                other = KeyDescription.from_bytes(self._store.read(candidate))
            except (OSError, LookupError, ValueError):
                other = KeyDescription({}, {"unreadable": 1})
            self._read[candidate.digest] = other
        changes = [*self._environment.changes_from(candidate.environment), *details.changes_from(other)]
        return details.likeness(other), -len(changes), changes


def _key(path: str) -> str:
    kind = "package" if path.startswith(_PACKAGES) else kind_of(f"{path}file" if path.endswith("/") else path)
    return f"details/{kind}/{path.rstrip('/')}"


def _below(path: str) -> str:
    """The prefix of the keys of comparable descriptions: of the same kind; of packages, of the same program."""
    return "/".join(_key(path).split("/")[: 4 if path.startswith(_PACKAGES) else 2]) + "/"
