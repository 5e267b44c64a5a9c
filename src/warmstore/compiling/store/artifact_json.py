"""The metadata of artifacts as JSON, for bundles and remotes. Everything that is read is validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment, check_value
from warmstore.errors import BadArtifact


def describe(artifacts: Sequence[Artifact], jobs: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """The metadata of artifacts, and jobs. `read` is the inverse."""
    return {
        "artifacts": [_described(artifact) for artifact in artifacts],
        "environments": {artifact.environment.digest: artifact.environment.to_json() for artifact in artifacts},
        "jobs": {name: list(keys) for name, keys in jobs.items()},
    }


def read(found: Any) -> tuple[list[Artifact], dict[str, list[str]]]:
    """The artifacts and jobs of a description, with safe keys. Raises BadArtifact for an invalid description."""
    try:
        environments = {}
        for digest, text in found["environments"].items():
            environments[digest] = Environment.from_json(text)
            if environments[digest].digest != digest:
                raise BadArtifact("an environment does not match its hash")
        artifacts = [
            Artifact(
                key=_key(record["key"]),
                kind=_text(record["kind"]),
                digest=_digest(record["digest"]),
                size=_count(record["size"]),
                environment=environments[record["environment"]],
                requirements=_requirements(record["requirements"]),
                created=float(record["created"]),
                host=_text(record["host"]),
                seconds=float(record["seconds"]),
            )
            for record in found["artifacts"]
        ]
        jobs = {_text(name): [_key(key) for key in keys] for name, keys in found["jobs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, BadArtifact):
            raise
        raise BadArtifact(f"not a description of artifacts ({error!r})") from error
    return artifacts, jobs


def _described(artifact: Artifact) -> Mapping[str, Any]:
    names = ("key", "kind", "digest", "size", "created", "host", "seconds")
    plain = {name: getattr(artifact, name) for name in names}
    return plain | {"environment": artifact.environment.digest, "requirements": dict(artifact.requirements)}


def _requirements(found: Any) -> dict[str, Any]:
    """Requirements whose values are of the types of the fields of an environment that they replace."""
    for name, value in found.items():
        if name in Environment.__dataclass_fields__:
            check_value(name, value)
    return dict(found)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096 or "\0" in value:
        raise ValueError(f"{value!r} is no name")
    return value


def _key(value: Any) -> str:
    """A key that is a safe path below the scratch directory."""
    key = _text(value)
    if key.startswith("/") or "\\" in key or ".." in key.split("/"):
        raise ValueError(f"{key!r} is a path to another folder")
    return key


def _digest(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{value!r} is no digest")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value
