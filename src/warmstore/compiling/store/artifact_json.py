"""What is known of artifacts, as JSON: how bundles and remotes describe what they hold. Nothing read is believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.errors import BadArtifact


def describe(artifacts: Sequence[Artifact], jobs: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Everything that is known of some artifacts and jobs; `read` takes it back."""
    return {
        "artifacts": [_described(one) for one in artifacts],
        "environments": {one.environment.digest: one.environment.to_json() for one in artifacts},
        "jobs": {name: list(keys) for name, keys in jobs.items()},
    }


def read(found: Any) -> tuple[list[Artifact], dict[str, list[str]]]:
    """The artifacts and jobs of a description, all of it checked: names never lead elsewhere.

    Raises:
        BadArtifact: it is no such description.
    """
    try:
        environments = {}
        for digest, record in found["environments"].items():
            environments[digest] = Environment.from_json(record)
            if environments[digest].digest != digest:
                raise BadArtifact("it describes an environment that is not the one it names")
        artifacts = [
            Artifact(
                key=_key(one["key"]),
                kind=_text(one["kind"]),
                digest=_digest(one["digest"]),
                size=_count(one["size"]),
                environment=environments[one["environment"]],
                requirements=_mapping(one["requirements"]),
                created=float(one["created"]),
                host=_text(one["host"]),
                seconds=float(one["seconds"]),
            )
            for one in found["artifacts"]
        ]
        jobs = {_text(name): [_key(key) for key in keys] for name, keys in found["jobs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, BadArtifact):
            raise
        raise BadArtifact(f"not a description of artifacts ({error!r})") from error
    return artifacts, jobs


def _described(one: Artifact) -> Mapping[str, Any]:
    plain = {name: getattr(one, name) for name in ("key", "kind", "digest", "size", "created", "host", "seconds")}
    return plain | {"environment": one.environment.digest, "requirements": dict(one.requirements)}


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096 or "\0" in value:
        raise ValueError(f"{value!r} is no name")
    return value


def _key(value: Any) -> str:
    """A key. Many are paths below the folder of a framework, so none may lead out of it."""
    key = _text(value)
    if key.startswith("/") or "\\" in key or ".." in key.split("/"):
        raise ValueError(f"{key!r} leads elsewhere")
    return key


def _digest(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{value!r} is no digest")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return value
