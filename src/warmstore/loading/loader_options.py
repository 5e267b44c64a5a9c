"""Checks and defaults of a loader's options, made when the loader is constructed."""

import multiprocessing
from typing import Any

import numpy as np

from warmstore.loading.prefetch.batch_builder import VALID, BatchBuilder, OnError
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.samplers.sampler_argument import sampler_of
from warmstore.loading.samplers.sequential import Sequential
from warmstore.loading.sources.combined.mixture import MixtureSource
from warmstore.loading.sources.iterable import IterableSource
from warmstore.loading.validation import integer
from warmstore.storage.threads import thread_count

_CHEAP = 4 << 20
"""Bytes of a batch up to which a copy takes less time than passing the batch from another thread."""
_MOST_THREADS = 4
MOST_COUNT = 2**16
"""The most threads, processes or batches ahead that may be asked for."""


def check_options(
    transform: Any, *, random: Any, seed: Any, workers: Any, processes: Any, start_method: Any, **flags: Any
) -> None:
    """Raise TypeError or ValueError for options that are invalid, or that have no effect together.

    Args:
        flags: options that must be bools, by name.
    """
    for name, value in {"random": random, **flags}.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False; got {value!r:.80}")
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be a function of a batch; got {transform!r:.80}")
    if random and transform is None:
        raise ValueError("random=True passes a generator to the transform, and there is none: pass transform=")
    if seed is not None and not random:
        raise ValueError(f"seed={seed!r:.40} has an effect with random=True only; pass sampler=ws.Shuffle(seed=...)")
    if processes and workers:
        raise ValueError(f"pass workers or processes; got workers={workers!r:.40} and processes={processes!r:.40}")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ValueError(f"start_method must be one of {methods}; got {start_method!r:.40}")


def order_of(sampler: Any, source: Any) -> Sampler:
    """The order of the samples of a source, for the `sampler` argument.

    Raises:
        ValueError, TypeError: no sampler, or a sampler that needs positions, of an iterable source.
    """
    order = sampler_of(sampler)
    if isinstance(source, IterableSource) and not isinstance(order, Sequential):
        raise ValueError(f"an iterable has no positions, so {order!r} cannot order it: shuffle the iterable itself")
    return source.mixture.sampler(source.lengths, order) if isinstance(source, MixtureSource) else order


def check_on_error(on_error: Any, source: Any) -> str | OnError:
    """The policy for samples that cannot be read.

    Raises:
        ValueError: not a policy, or a policy that needs positions, of an iterable source.
    """
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise ValueError(f"on_error must be 'raise', 'skip' or a function of error and position; got {on_error!r:.80}")
    if on_error != "raise" and isinstance(source, IterableSource):
        raise ValueError("an iterable that raised has ended, so on_error cannot go on with it: skip samples in it")
    return on_error  # type: ignore[no-any-return]


def check_first_samples(build: BatchBuilder) -> None:
    """Read one sample of each source to check options that depend on the structure of samples.

    Raises:
        ValueError, KeyError: options for fields that samples do not have, or a field with the name of the mask.
    """
    source, marks, collation = build.source, build.marks, build.collation
    if not (marks or collation.ways or isinstance(source, MixtureSource)):
        return
    first = source.first_positions if isinstance(source, MixtureSource) else np.zeros(1, np.int64)
    try:
        batch = source.read(first)
    except Exception:
        if build.on_error == "raise":
            raise
        return
    collation.check_names(batch)
    if marks and isinstance(batch, dict) and VALID in batch:
        raise ValueError(
            f"batches have {VALID!r} already, the name of the mask of repeated rows: rename that field, or pass "
            'uneven="drop" or "allow"'
        )


def threads_of(
    workers: int | None, build: BatchBuilder, batch_size: int, *, processes: int, transfers_ahead: bool
) -> int:
    """Worker threads: `workers`; for None 0 with processes, or where a batch is a small copy from memory, else some."""
    if workers is not None:
        return integer("workers", workers, 0, MOST_COUNT)
    width = build.source.sample_bytes
    is_cheap = width is not None and width * batch_size <= _CHEAP
    does_nothing = build.transform is None and build.collation.does_nothing and not transfers_ahead
    return 0 if processes or (is_cheap and does_nothing) else min(thread_count(), _MOST_THREADS)
