"""An index in memory of all that the manifests of a remote name, so that lookups need no requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.remote.signed_manifests import SignedManifest
from warmstore.compiling.rules import choose


class RemoteIndex:
    """The artifacts and jobs of some manifests."""

    def __init__(self, manifests: Iterable[SignedManifest] = ()) -> None:
        self._artifacts: dict[str, list[Artifact]] = defaultdict(list)
        self.jobs: dict[str, set[str]] = defaultdict(set)
        for manifest in manifests:
            for artifact in manifest.artifacts:
                self._artifacts[artifact.key].append(artifact)
            for job, keys in manifest.jobs.items():
                self.jobs[job].update(keys)
        self._keys = sorted(self._artifacts)

    def below(self, path: str, environment: Environment) -> list[Artifact]:
        """The best usable artifact of each key that is `path`, or that starts with it where it ends with a slash."""
        if not path.endswith("/"):
            return self._best([path], environment)
        first = bisect_left(self._keys, path)
        return self._best(self._keys[first : bisect_left(self._keys, path[:-1] + "0", first)], environment)

    def job(self, name: str, environment: Environment) -> list[Artifact]:
        """The best usable artifact of each key that a job used."""
        return self._best(self.jobs.get(name, ()), environment)

    def has(self, artifact: Artifact) -> bool:
        """Whether an artifact of the same key, kind, environment and requirements is published."""
        return any(_same(artifact, one) for one in self._artifacts.get(artifact.key, ()))

    def _best(self, keys: Iterable[str], environment: Environment) -> list[Artifact]:
        found = (choose(self._artifacts.get(key, ()), environment)[0] for key in keys)
        return [one for one in found if one is not None]


def merged(old: Iterable[Artifact], new: Iterable[Artifact]) -> list[Artifact]:
    """Both lists in one, by key. Of several with the same key, kind, environment and requirements, the last stays."""
    rows = sorted([*old, *new], key=_identity)  # stable: the later of equals stays later
    return [list(group)[-1] for _, group in groupby(rows, key=_identity)]


def _same(one: Artifact, other: Artifact) -> bool:
    return _identity(one) == _identity(other)


def _identity(one: Artifact) -> tuple[str, str, str, str]:
    wanted = sorted((name, str(value)) for name, value in one.requirements.items())
    return one.key, one.kind, one.environment.digest, str(wanted)
