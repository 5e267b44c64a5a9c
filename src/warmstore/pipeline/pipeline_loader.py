"""Makes a `Loader` of a pipeline's source."""

import multiprocessing
import pickle
from collections.abc import Sequence
from typing import Any

from warmstore.errors import NotPicklable
from warmstore.loading.loader import Loader
from warmstore.loading.prefetch.sent_objects import main_can_be_imported
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.samplers.shuffle import Shuffle
from warmstore.loading.validation import integer
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.pipeline.steps import Step


def loader_of(
    source: PipelineSource,
    batch_size: int,
    *,
    workers: int,
    filled_workers: int | None = None,
    seed: int = 0,
    sampler: Sampler | None = None,
    start_method: str | None = None,
    **options: Any,
) -> Loader:
    """A loader that releases the source when it is closed; see `Pipeline.loader`.

    Args:
        workers: processes that make batches while cached samples are missing. filled_workers: thereafter; None for as
            many.
    """
    source.filled_workers = filled_workers
    if workers:
        source.cached.close()  # every worker opens its own
    try:
        loader = Loader(
            source,
            batch_size,
            sampler if sampler is not None else Shuffle(seed=seed),
            workers=0,
            processes=workers,
            start_method=start_method,
            **options,
        )
    except BaseException:
        source.release()
        raise
    loader._register()  # closed at exit, which removes the memory tier
    return loader


def checked_workers(steps: Sequence[Step], workers: int, start_method: str | None) -> int:
    """The validated number of workers.

    Raises:
        ValueError: it is out of range.
        NotPicklable: a step or an encoder cannot be sent to workers that are not forked.
    """
    workers = integer("workers", workers, 0, 2**16)
    if workers and (start_method or multiprocessing.get_start_method()) != "fork":
        check_sent(steps)
    return workers


def check_sent(steps: Sequence[Step]) -> None:
    """Check that steps and the encoders can be sent to worker processes that are not forked.

    Raises:
        NotPicklable: one of them cannot.
    """
    for step in steps:
        _check_sent(f"step {step.name!r}", (step.function, step.arguments, step.on_error))
    for encoder in REGISTRY.registered():
        _check_sent(f"the encoder of {encoder.name}", encoder)


def _check_sent(what: str, content: Any) -> None:
    try:
        pickled = pickle.dumps(content)
        if b"__main__" in pickled and not main_can_be_imported():
            raise NotPicklable("no other process can import what a notebook or a prompt defines")
    except Exception as error:  # pickling runs code of all kinds
        raise NotPicklable(
            f"{what} cannot be sent to worker processes: {error}. Define its function at the top of a module, fork the "
            "workers (start_method='fork', multiprocessing_context='fork' of a DataLoader), or use no workers"
        ) from error
