"""LoaderIteration: one `for` over a loader, which can be ended from outside.

A loader ends its iterations when it is closed or takes a new state. The next batch that is asked for then raises.
"""

from warmstore.loading.prefetch.thread_prefetcher import ThreadPrefetcher


class LoaderIteration:
    """One `for` over a loader.

    prefetcher: the threads that work for it, if any. is_forked: it was copied into a forked child, whose threads and
    prefetched batches stay with the parent. has_begun: its first batch was asked for.
    """

    def __init__(self) -> None:
        self.prefetcher: ThreadPrefetcher | None = None
        self.is_forked = False
        self.has_begun = False
        self._reason: Exception | None = None

    def end(self, reason: str, kind: type[Exception] = RuntimeError) -> None:
        """Stop the threads, and have `check` raise from now on."""
        self._reason = kind(reason)
        prefetcher, self.prefetcher = self.prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def check(self) -> None:
        """Raise the reason if the iteration was ended."""
        if self._reason is not None:
            raise self._reason
