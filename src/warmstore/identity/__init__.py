"""Whether two functions, classes, values, modules, packages or files are the same. All caches use this package."""

from warmstore.identity.identity import Identity, identify
from warmstore.identity.kinds import Versioned, register

__all__ = ["Identity", "Versioned", "identify", "register"]
