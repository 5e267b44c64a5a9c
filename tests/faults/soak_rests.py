"""The rests of a soak: its workers commit and wait, all is merged, they refresh, and idle threads end.

What processes have swings between two merges, by more than a leak would show in minutes. At rest it is the same each
time.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from tests.faults.soak_roles import Place, fill

import warmstore as ws


def rest(
    place: Place, workers: Sequence[int], look: Callable[[], None], is_alive: Callable[[], bool], hang: float
) -> None:
    """Have all workers rest, and look.

    Raises:
        TimeoutError: Some of them still work.
    """
    table = place.table()

    def next_phase() -> None:
        table.next_phase()
        until = time.monotonic() + hang
        while (is_late := table.seen[workers] != table.phase).any() and is_alive():
            if time.monotonic() > until:
                raise TimeoutError(f"workers {np.array(workers)[is_late].tolist()} do not rest")
            time.sleep(0.05)

    next_phase()
    with ws.RecordStore.open(place.store, "a") as store, place.cache() as cache:
        fill(cache, place.sizes.ids)
        store.rebalance(progress=False)
        cache.rebalance(progress=False)
    next_phase()
    if is_alive():
        look()
    table.next_phase()
