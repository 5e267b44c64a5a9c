"""The switch that keeps warmstore off the network."""

import os

OFFLINE = "WARMSTORE_OFFLINE"
_YES, _NO = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def is_offline() -> bool:
    """Whether WARMSTORE_OFFLINE forbids the use of the network. Raises ValueError for another value than yes and no."""
    value = os.environ.get(OFFLINE, "").strip().lower()
    if value not in _YES | _NO:
        raise ValueError(f"{OFFLINE}={value!r} is neither yes nor no; set it to 1 or 0")
    return value in _YES
