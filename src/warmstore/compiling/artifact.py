"""The metadata of a compiled artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmstore.compiling.environment import Environment


@dataclass(frozen=True)
class Artifact:
    """The metadata of a stored artifact; `ArtifactStore.read` has its bytes.

    `key` identifies what was compiled, and `kind` the form of the result (see `rules.KINDS`). `digest` is the BLAKE3 of
    the bytes, in hex. Times are seconds since 1970; `seconds` is the time that compiling took. `requirements` replace
    fields of `environment` in the checks of the rules; None stands for no requirement.
    """

    key: str
    kind: str
    digest: str
    size: int
    environment: Environment
    requirements: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    host: str = ""
    seconds: float = 0.0
    hits: int = 0
    last_used: float = 0.0

    def needs(self, name: str) -> Any:
        """The required value of a field of the environment: from `requirements`, else from `environment`."""
        return self.requirements[name] if name in self.requirements else getattr(self.environment, name)
