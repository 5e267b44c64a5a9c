"""Logs each kind of error once as a warning: a full disk stays full for hours."""

import logging

from warmstore.errors import message_of

_log = logging.getLogger("warmstore")


class WarnOnce:
    """The warnings of one process. Later ones of the same kind are logged at level DEBUG."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, message: str, name: str, error: Exception) -> None:
        """Log an error. `message` is its kind, with a %s for the name."""
        level = logging.DEBUG if message in self._logged else logging.WARNING
        self._logged.add(message)
        _log.log(level, f"compile cache: {message}: %s", name, message_of(error))
        _log.debug("compile cache", exc_info=True)
