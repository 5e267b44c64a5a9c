"""Limits the threads of BLAS and OpenMP, which NumPy, SciPy, OpenCV, scikit-learn and torch use.

The last bits of a matrix product depend on the number of threads, and workers with one thread per core slow each other
down. So every process that makes samples uses the same number.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


class _Pools:
    """The thread pools of this process, and how many callers limit them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self._limit: Any = None
        self._controller: Any = None
        self._modules = 0

    def hold(self, count: int) -> None:
        if self._modules != len(sys.modules):  # an import may have loaded another library
            self._controller, self._modules = ThreadpoolController(), len(sys.modules)
            self._limit = None
        if _in_worker():
            os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
        if self._limit is None or not _in_worker():
            self._limit = self._controller.limit(limits=count)

    def release(self) -> None:
        if not _in_worker():
            self._limit.restore_original_limits()


_pools = _Pools()


def _forked() -> None:
    global _pools
    _pools = _Pools()


os.register_at_fork(after_in_child=_forked)


def _in_worker() -> bool:
    """Whether this is a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


@contextmanager
def native_threads(count: int) -> Iterator[None]:
    """Limit BLAS and OpenMP to `count` threads. Of several limits at once the first one applies.

    A loader's worker process keeps its first limit, also for libraries that it imports later.
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
