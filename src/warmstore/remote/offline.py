"""The switch that keeps warmstore off the network."""

import os

OFFLINE = "WARMSTORE_OFFLINE"
_YES, _NO = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def is_offline() -> bool:
    """Whether WARMSTORE_OFFLINE says that no network may be touched.

    Raises:
        ValueError: it says neither yes nor no.
    """
    said = os.environ.get(OFFLINE, "").strip().lower()
    if said not in _YES | _NO:
        raise ValueError(f"{OFFLINE}={said!r} is neither yes nor no; set it to 1 or 0")
    return said in _YES
