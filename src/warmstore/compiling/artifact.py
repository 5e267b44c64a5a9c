"""One compiled thing as the store knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmstore.compiling.environment import Environment


@dataclass(frozen=True)
class Artifact:
    """The metadata of a stored artifact; `ArtifactStore.read` has its bytes.

    `key` is what was compiled and `kind` into what (see `rules.KINDS`). `digest` is the BLAKE3 of the bytes, in hex.
    Times are seconds since 1970; `seconds` is what it took to make. `requirements` replace what the rules would ask of
    the environment it is used in: a value instead of the one of `environment`, or None for "nothing".
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
        """What it asks of an environment's field: the requirement if there is one, else the field it was made under."""
        return self.requirements[name] if name in self.requirements else getattr(self.environment, name)
