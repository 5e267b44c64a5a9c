"""The threads beneath steps: those of BLAS and OpenMP, which NumPy, SciPy, OpenCV, scikit-learn and torch call.

Workers that each start one per core hinder each other more than they gain, and a matrix product's last bits depend on
how many there are. So every process that makes samples has the same number.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

from warmstore.loading.prefetch.shared_memory import in_worker

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


class _Pools:
    """The thread pools of this process, and who holds them to a number."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self._limit: Any = None
        self._controller: Any = None
        self._modules = 0

    def hold(self, count: int) -> None:
        if self._modules != len(sys.modules):  # an import may have brought another library
            self._controller, self._modules = ThreadpoolController(), len(sys.modules)
            self._limit = None
        if in_worker():
            os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
        if self._limit is None or not in_worker():
            self._limit = self._controller.limit(limits=count)

    def release(self) -> None:
        if not in_worker():
            self._limit.restore_original_limits()


_pools = _Pools()


def _forked() -> None:
    global _pools
    _pools = _Pools()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def native_threads(count: int) -> Iterator[None]:
    """Hold the pools of BLAS and OpenMP to so many threads. Of several holders at once the first one's number counts.

    A loader's worker process stays at its first number, libraries that it imports later included.
    """
    pools = _pools
    with pools.lock:
        if not pools.holders:
            pools.hold(count)
        pools.holders += 1
    try:
        yield
    finally:
        with pools.lock:
            pools.holders -= 1
            if not pools.holders:
                pools.release()
