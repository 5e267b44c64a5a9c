"""Which processes of a distributed job write to a cache."""

import os
import sys
from collections.abc import Collection


class WriterRanks:
    """The ranks that may write; None for all.

    The rank of this process is that of torch.distributed, which may be initialised after the cache was opened, else the
    environment variable RANK, which torchrun sets, else 0.
    """

    def __init__(self, ranks: Collection[int] | None) -> None:
        self._ranks = ranks
        self._initialised: int | None = None

    def include_this(self) -> bool:
        """Whether this process may write."""
        return self._ranks is None or self._rank() in self._ranks

    def _rank(self) -> int:
        distributed = sys.modules.get("torch.distributed")  # a program that initialised it has imported it
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._initialised = distributed.get_rank()
        # A cache may be closed after the process group was destroyed. The last rank then still applies.
        return int(os.environ.get("RANK") or 0) if self._initialised is None else self._initialised
