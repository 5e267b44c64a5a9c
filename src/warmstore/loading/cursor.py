"""How far the samples have been walked through: an epoch and a place in it, and the state that brings one back there.

Both numbers are those of the one order that all ranks share, so a state knows nothing of ranks, workers or batch
sizes: any rank's state of the same step is everybody's.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from warmstore.errors import BadState
from warmstore.loading.samplers.batched_indices import batched_indices
from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64
from warmstore.loading.samplers.samplers import Sampler
from warmstore.loading.shard import Shard, Step

FORMAT = 1


class EpochCursor:
    """One rank's way through the epochs of `samples` samples.

    epoch, place: where it stands: places are counted over all ranks. identity: what tells the data from other data of
    the same length, as JSON has it, or None. extra: what else must be the same, by name.
    """

    def __init__(self, sampler: Sampler, samples: int, shard: Shard, identity: Any, extra: dict[str, Any]) -> None:
        self.sampler = sampler
        self.samples = samples
        self.shard = shard
        self.length = sampler.length(samples)
        self.epoch = 0
        self.place = 0
        self._identity = identity
        self._extra = extra

    def steps(self, epoch: int, place: int) -> Iterator[tuple[Step, Int64]]:
        """This rank's steps of one epoch from a place on, each with the positions of its samples, int64 [batch]."""
        spans = ((step.first, step.last) for step in self.shard.steps(self.length, place))
        # One after the other: a walk takes its spans ahead.
        for step, positions in zip(
            self.shard.steps(self.length, place), batched_indices(self.sampler, spans, self.samples, epoch), strict=True
        ):
            first, last = step.fill
            if last > first:
                again = self.sampler.at(np.arange(first, last) % self.length, self.samples, epoch)
                yield step, np.concatenate((positions, again))
            else:
                yield step, positions

    def state(self, epoch: int, place: int) -> dict[str, Any]:
        """Where that is, for `load`: a small dict of what JSON can say."""
        return {
            "format": FORMAT,
            "epoch": epoch,
            "place": place,
            "samples": self.samples,
            "sampler": self.sampler.describe(),
            "identity": self._identity,
            **self._extra,
        }

    def load(self, state: Any, *, check_identity: bool = True) -> None:
        """Stand where a state was taken.

        Raises:
            BadState: it is no state, or of other samples, another order or a newer format; nothing has changed.
        """
        own = self.state(0, 0)
        _check_form(state, own)
        if state["samples"] != self.samples:
            raise BadState(f"the state is of {state['samples']:,} samples; here there are {self.samples:,}")
        names = ["sampler", *self._extra, *(["identity"] if check_identity else [])]
        for name in names:
            theirs, ours = _as_json(state[name]), _as_json(own[name])
            if name == "identity" and not _differ(theirs, ours):
                continue
            if theirs != ours:
                advice = "; pass check_identity=False if they hold the same samples" if name == "identity" else ""
                raise BadState(f"the state has the {name} {theirs!r:.300}; here it is {ours!r:.300}{advice}")
        epoch, place = state["epoch"], state["place"]
        if not (_is_count(epoch, MOST_SEED) and _is_count(place, self.length)):
            raise BadState(
                f"the state stands at place {place!r} of epoch {epoch!r}; an epoch has {self.length:,} places"
            )
        self.epoch, self.place = epoch, place


def _check_form(state: Any, own: dict[str, Any]) -> None:
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise BadState(f"this is no state of a loader: {state!r:.100}")
    if state["format"] > FORMAT:
        raise BadState(f"the state has format {state['format']}; this warmstore reads up to {FORMAT}. Upgrade it")
    missing = [name for name in own if name not in state]
    if missing:
        raise BadState(f"the state lacks {missing}; it has {list(state)}")


def _differ(one: Any, other: Any) -> bool:
    """Whether two identities contradict each other; an unknown one contradicts none."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(_differ(one[name], other[name]) for name in one)
    return one is not None and other is not None and bool(one != other)


def _as_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        raise BadState(f"the state holds what no loader writes: {value!r:.100}") from None


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
