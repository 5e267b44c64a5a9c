"""Is it the same? One engine for all that is cached: steps, modules, compiled calls, and functions kept by `cached`."""

from warmstore.identity.identity import Identity, identify
from warmstore.identity.kinds import Versioned, register

__all__ = ["Identity", "Versioned", "identify", "register"]
