"""An index in memory of the artifacts in a remote's manifests, so that lookups need no requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Set
from operator import attrgetter

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.remote.signed_manifests import SignedManifest
from warmstore.compiling.rules import choose


class RemoteIndex:
    """The artifacts and jobs of some manifests."""

    def __init__(self, manifests: Iterable[SignedManifest] = ()) -> None:
        self._artifacts: dict[str, list[Artifact]] = defaultdict(list)
        self.jobs: dict[str, set[str]] = defaultdict(set)
        every: list[Artifact] = []
        for manifest in manifests:
            every += manifest.artifacts
            for job, keys in manifest.jobs.items():
                self.jobs[job].update(keys)
        for artifact in merged([], sorted(every, key=attrgetter("created"))):
            self._artifacts[artifact.key].append(artifact)
        self._keys = sorted(self._artifacts)

    def below(self, path: str, environment: Environment) -> list[Artifact]:
        """The best usable artifact of the key `path`, or of every key below it if it ends with a slash."""
        if not path.endswith("/"):
            return self._best([path], environment)
        first = bisect_left(self._keys, path)
        return self._best(self._keys[first : bisect_left(self._keys, path[:-1] + "0", first)], environment)

    def job(self, name: str, environment: Environment) -> list[Artifact]:
        """The best usable artifact of each key that a job used."""
        return self._best(self.jobs.get(name, ()), environment)

    def has(self, artifact: Artifact, bad: Set[str]) -> bool:
        """Whether an artifact of the same key, kind, environment and requirements is published, and its digest is none
        of `bad`: what is compiled again need not have the same bytes."""
        same = [known for known in self._artifacts.get(artifact.key, ()) if _identity(known) == _identity(artifact)]
        return any(known.digest not in bad for known in same)

    def _best(self, keys: Iterable[str], environment: Environment) -> list[Artifact]:
        found = (choose(self._artifacts.get(key, ()), environment)[0] for key in keys)
        return [artifact for artifact in found if artifact is not None]


def merged(old: Iterable[Artifact], new: Iterable[Artifact]) -> list[Artifact]:
    """All artifacts, sorted by key. Of several with the same key, kind, environment and requirements the last stays."""
    last = {_identity(artifact): artifact for artifact in [*old, *new]}
    return [last[identity] for identity in sorted(last)]


def _identity(artifact: Artifact) -> tuple[str, str, str, str]:
    requirements = sorted((name, str(value)) for name, value in artifact.requirements.items())
    return artifact.key, artifact.kind, artifact.environment.digest, str(requirements)
