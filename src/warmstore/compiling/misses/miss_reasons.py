"""Reasons for misses: the differences between a missing key and the nearest compiled one, of the same job if possible.

The description of a key is an artifact beside the compiled ones. Descriptions are read only on a miss: this takes some
milliseconds, before a compilation of seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """What the keys of one process were made of. Paths are relative to a live folder, as everywhere."""

    def __init__(self, store: ArtifactStore, environment: Environment, job: str, requirements: dict[str, Any]) -> None:
        self._store = store
        self._environment = environment
        self._job = job
        self._requirements = requirements
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
        if any(one.key == _key(path) and one.environment == self._environment for one in candidates):
            return ("it was compiled here before, and evicted or dropped since",)
        nearest = max(
            ((details.likeness(other), -len(changes), changes) for one in candidates for other, changes in [
                self._changes(details, one)
            ]),
            default=None,
        )  # fmt: skip
        if nearest is None:
            return ()
        likeness, _, changes = nearest
        if likeness < _ALIKE:
            return (NEW,)
        return summary(changes) or ("the same operators, connected otherwise or of other sizes",)

    def keep(self, path: str) -> str | None:
        """Store the description of the key that a file was compiled under, once. Returns its key.

        Raises:
            TooLarge, WriteFailed, ReadOnly: as `ArtifactStore.put`.
        """
        looked_up = next((one for one in self._unkept if path.startswith(one)), None)
        if looked_up is None:
            return None
        details = self._unkept.pop(looked_up)
        self._store.put(
            _key(looked_up),
            "details",
            details.to_bytes(),
            environment=self._environment,
            requirements=self._requirements,
            job=self._job,
        )
        return _key(looked_up)

    def _changes(self, details: KeyDescription, candidate: Artifact) -> tuple[KeyDescription, list[str]]:
        other = self._read.get(candidate.digest)
        if other is None:
            try:
                other = KeyDescription.from_bytes(self._store.read(candidate))
            except (OSError, LookupError, ValueError):
                other = KeyDescription({}, {"unreadable": 1})
            self._read[candidate.digest] = other
        return other, [*self._environment.changes_from(candidate.environment), *details.changes_from(other)]


def _key(path: str) -> str:
    return f"{_below(path, everything=True)}{path.rstrip('/')}"


def _below(path: str, *, everything: bool = False) -> str:
    """The path below which comparable descriptions are stored: of the same kind; of packages, of the same program."""
    if path.startswith(_PACKAGES) and not everything:
        return f"details/package/{'/'.join(path.split('/')[:2])}/"
    kind = "package" if path.startswith(_PACKAGES) else kind_of(_file_of(path))
    return f"details/{kind}/"


def _file_of(path: str) -> str:
    """A file below a folder that is looked up, or the file itself."""
    return f"{path}file" if path.endswith("/") else path
