"""OpenCache: the attributes of a `FeatureCache` that modules, filling and merging use."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from warmstore.features.keyed.cache_session import CacheSession
from warmstore.features.keyed.cache_versions import Fingerprint

if TYPE_CHECKING:
    from warmstore.features.module_changes import ModuleChangeDetector


class OpenCache(Protocol):
    """`FeatureCache` implements it. The modules that `FeatureCache` imports cannot import `FeatureCache`."""

    id: str
    read_only: bool
    _session: CacheSession
    _detectors: "WeakSet[ModuleChangeDetector]"

    @property
    def path(self) -> Path:
        """The folder of the version that is open."""

    @property
    def writes(self) -> bool:
        """Whether this process may write to it."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of its outputs."""

    def _bind(self, fingerprint: Fingerprint, /) -> "OpenCache":
        """Its version for outputs of a fingerprint."""

    def flush(self) -> None:
        """Commit everything it accepted."""
