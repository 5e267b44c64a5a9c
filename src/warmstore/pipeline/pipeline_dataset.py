"""A pipeline as a map-style data set: for torch's DataLoader and its samplers, for trainers, and for Grain.

The data set and its copies in worker processes share the number of the epoch, which seeds the random steps.
"""

import importlib.util
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from typing import Any, final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.sources.sequence import InEpoch
from warmstore.loading.steps.cursor import MOST_EPOCH
from warmstore.loading.validation import integer, position
from warmstore.pipeline.pipeline_loader import check_sent
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.records.sample_batch import SampleBatch
from warmstore.storage.lifecycle import Closeable

_SET, _TOLD = 1, 2  # somebody sets epochs; nobody does, and a warning has said so
_UNTOLD = 2  # times that all samples were read in one epoch, after which a warning asks for `set_epoch`


@final
class PipelineDataset(Closeable):
    """The samples of a pipeline by index; see `Pipeline.dataset`.

    Samples that are missing in the tiers of the plan are computed and added by the process that reads them. A worker
    process writes them at the end, or when it reads in another pass: after `set_epoch`, or once as many samples were
    read as there are.

    Raises:
        ValueError: a step skips samples.
    """

    _has_pending = False

    def __init__(self, source: PipelineSource) -> None:
        if source.skipping:
            source.release()
            raise ValueError(
                f"step {source.skipping[0]!r} has on_error='skip', but a map-style data set has a sample at every "
                "index: substitute a value with on_error=fn, leave samples out with filter, or use pipe.loader"
            )
        self._source = source
        self._try_one()
        # The epoch, how many samples were read in it, and whether anybody sets epochs; at how many the next pass over
        # the samples begins, and when the last one did.
        self._shared = _shared_memory(5)
        self.closed = False
        self._register()

    def _try_one(self) -> None:
        """Compute a missing sample. In a thread that makes samples while the program goes on, only what calls were seen
        to change before is taken for their memory."""
        source = self._source
        with source.cached.lock:
            untried = source.cached.untried()
            if len(untried):
                with suppress(Exception):  # reading the sample raises it again
                    deque(source.trials(untried, stored_only=False), maxlen=0)
            source.cached.close()  # every process opens its own stores

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"PipelineDataset({len(self):,} samples, epoch {self.epoch})"

    @property
    def _samples_identity(self) -> Any:
        """See `Source.identity`. It has the seed of random steps."""
        return self._source.identity

    @property
    def epoch(self) -> int:
        """The epoch that random steps are seeded with."""
        return int(self._shared[:1].view(np.uint64)[0])

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: random steps give other results in each. Worker processes learn of it at once.

        accelerate and samplers of warmstore do this. In other loops call it before each epoch, as for a
        `DistributedSampler`; in Lightning from `on_train_epoch_start`.

        Raises:
            ValueError: `epoch` is not an integer from 0 to 2**64 - 2.
        """
        state = [integer("epoch", epoch, 0, MOST_EPOCH), 0, _SET, 0]
        self._shared[:4] = np.array(state, np.uint64).view(np.int64)

    def __getitem__(self, index: int) -> Any:
        """One sample as of the epoch; a negative index counts from the end.

        Raises:
            IndexError: the index is outside the data set.
            Exception: any error of the source or of a step.
        """
        at = position(index, len(self))
        return self.__getitems__([at])[0]

    def __iter__(self) -> Iterator[Any]:
        """Every sample as `data[index]`. Without this method an IndexError of a step would end a `for` silently."""
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Any) -> SampleBatch:
        """Many samples as of the epoch, or as of that of the indices if a sampler of warmstore made them; if a `Loader`
        did, as of its epoch unless `set_epoch` was called.

        `warmstore.collate` makes a batch of the result at no cost, any other collate function at some.

        Raises:
            IndexError: an index is outside the data set.
            Exception: any error of the source or of a step.
        """
        at: Int64 = np.array([position(index, len(self)) for index in indices], np.int64)
        epoch = getattr(indices, "epoch", None)
        if epoch is None or (isinstance(indices, InEpoch) and self._shared[2] == _SET):
            epoch, began = self.epoch, self._count(len(at))
        else:
            began = indices.began
        self._source.begin_pass(began)
        batch = self._source.read_in(epoch, at)
        for note in self._source.notes():
            warnings.warn(note, RuntimeWarning, stacklevel=3)
        return SampleBatch(batch, len(at), indices)

    def close(self) -> None:
        """Write pending samples and release the tiers. Idempotent."""
        if not self.closed:
            self.closed = True
            self._source.release()
            self._unregister()

    def _after_fork(self) -> None:
        """Nothing to do: the source opens its stores again, and the tiers are the parent's."""

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # a DataLoader starts workers that are not forked
            check_sent(self._source.steps)
        return {**vars(self), "_shared": _sendable(self._shared)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._shared = np.asarray(self._shared)
        if not _is_shared(self._shared):  # a pass begins here, since another machine has another clock
            copied, self._shared = self._shared, _shared_memory(len(self._shared))
            self._shared[:3] = copied[:3]

    def _count(self, samples: int) -> int:
        """Count samples that are about to be read; return when their pass began, by `time.monotonic_ns`.

        A pass begins with an epoch, and after as many samples as there are. Warns once if all samples are read again
        and again as of one epoch, so that random steps repeat themselves.
        """
        if self._shared[1] >= self._shared[3]:
            self._shared[4] = time.monotonic_ns()
            self._shared[3] = self._shared[1] + len(self)
        self._shared[1] += samples
        if self._source.has_random_steps and not self._shared[2] and self._shared[1] > _UNTOLD * len(self):
            self._shared[2] = _TOLD
            warnings.warn(
                f"all samples were read {_UNTOLD} times as of epoch {self.epoch}, so random steps repeat themselves: "
                "call set_epoch(epoch) of the data set before each epoch",
                RuntimeWarning,
                stacklevel=4,
            )
        return int(self._shared[4])


def _shared_memory(count: int) -> Int64:
    """int64 [count] of zeros, which worker processes of torch's DataLoader share."""
    if importlib.util.find_spec("torch") is None:
        return np.zeros(count, np.int64)
    import torch

    shared: Int64 = torch.zeros(count, dtype=torch.int64).share_memory_().numpy()
    return shared


def _sendable(shared: Int64) -> Any:
    """The tensor beneath shared memory, which torch sends to other processes without a copy."""
    return shared if shared.base is None else shared.base


def _is_shared(shared: Int64) -> bool:
    """Whether an array is memory of several processes: that of a worker process is, and a pickle is not."""
    is_shared = getattr(shared.base, "is_shared", None)  # of a tensor
    return is_shared is not None and bool(is_shared())
