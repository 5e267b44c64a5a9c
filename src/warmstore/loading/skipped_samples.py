"""The bad samples that a loader leaves out."""

import logging
import warnings

_log = logging.getLogger("warmstore")


class SkippedSamples:
    """Counts bad samples, logs each, and warns of the first. count: how many there were so far."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, skipped: list[tuple[int, str]]) -> None:
        """Take the positions and errors of the samples that a batch leaves out. The loop over a loader calls this."""
        if skipped and not self.count:
            position, error = skipped[0]
            warnings.warn(
                f"left out the bad sample {position:,}: {error}. `skipped` counts further ones, and each is logged",
                RuntimeWarning,
                stacklevel=3,
            )
        self.count += len(skipped)
        for position, error in skipped:
            _log.info("left out the bad sample %d: %s", position, error)
