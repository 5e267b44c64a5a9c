"""EpochCursor: how far the samples have been handed out, and the state that brings one back there.

An epoch and a place in it are those of the one order that all ranks share. So a state knows nothing of ranks, workers
or batch sizes: any rank's state of the same step is everybody's.
"""

import json
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from warmstore.errors import BadState
from warmstore.loading.samplers.counter_rng import MOST_SEED
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.shard import RankStep
from warmstore.loading.validation import MOST_SAMPLES

FORMAT = 2
MOST_EPOCH = MOST_SEED - 1
_ALWAYS = ("epoch", "place", "finished", "samples", "identity")


class EpochCursor:
    """One rank's place in the epochs of `samples` samples.

    epoch, place: of the next batch; places are counted over all ranks. finished: epochs handed out to their end.

    Args:
        steps: which samples are whose, step by step.
        samples: how many there are; None where nobody knows.
        identity: what tells the data from other data of the same length, called when a state is asked for.
        extra: what else must be the same, by name.
        resume_partial: an epoch that was left is gone on with.
    """

    def __init__(
        self,
        steps: EpochSteps,
        samples: int | None,
        identity: Callable[[], Any],
        extra: dict[str, Any],
        *,
        resume_partial: bool = False,
    ) -> None:
        self.steps = steps
        self.samples = samples
        self.epoch = 0
        self.place = 0
        self.finished = 0
        self._identity = identity
        self._extra = extra
        self._resume_partial = resume_partial
        self.is_loaded = False  # a state from the middle of an epoch, and no batch was handed out since
        self._named: int | None = None  # the epoch that is to come after one that has begun
        self._samples_now = samples  # of the epoch it stands in: fewer where a state is of before the data grew

    def count(self, steps: EpochSteps | None = None) -> int:
        """Batches of this rank, or of other steps, in the epoch it stands in or that was named, from its beginning."""
        samples = self._samples_now if self._named is None else self.samples
        return (steps or self.steps).count(samples, self.next_epoch)

    def rows(self) -> int:
        """Rows of this rank in that epoch, repeated ones included."""
        return self.steps.rows(self.samples, self.next_epoch)

    def positions(self) -> Iterator[int]:
        """The positions of these rows, one by one."""
        for _, positions in self.steps.steps(self.samples, self.next_epoch, 0):
            yield from positions.tolist()

    @property
    def next_epoch(self) -> int:
        """The epoch of the next batch; or the one that was named since."""
        return self.epoch if self._named is None else self._named

    def begin(self) -> tuple[int, int, int | None]:
        """Where an iteration that begins now starts: epoch, place, and the number of samples of that epoch.

        At the beginning of an epoch: the one that was named, else the next one after an epoch that was left, or the
        same one where all are alike. Only a state that was loaded is gone on with in the middle.
        """
        goes_on = self.is_loaded or self._resume_partial
        if self._named is not None:
            self._stand(self._named)
        elif self.place and not goes_on:
            self._stand(self.epoch + self.steps.shuffles)
        elif self.place and self.steps.is_over(self._samples_now, self.place):
            self.end(self.epoch)  # other ranks or batch sizes have no step for what is left
        return self.epoch, self.place, self._samples_now

    def hand_out(self, epoch: int, step: RankStep, *, goes_on: bool = False) -> None:
        """Count a batch that is handed out now.

        Args:
            goes_on: the same iteration goes on with the next epoch: one that was named waits for the next iteration.
        """
        self.is_loaded = False
        if step.is_last and goes_on:
            named = self._named
            self.finished += 1
            self._stand(epoch + 1)
            self._named = named
        elif step.is_last:
            self.end(epoch)
        else:
            self.epoch, self.place = epoch, step.after

    def end(self, epoch: int) -> None:
        """Stand before the epoch after this one, which was handed out whole."""
        self.finished += 1
        self._stand(epoch + 1 if self._named is None else self._named)

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that begins next. A state loaded from the middle of that very epoch stays."""
        if epoch == self.epoch and self.place and (self.is_loaded or self._resume_partial):
            self._named = None
            return
        if self.place and not self.is_loaded:
            self._named = epoch
        elif epoch != self.epoch or self.place:
            self._stand(epoch)

    def _stand(self, epoch: int) -> None:
        self.epoch, self.place, self._named = epoch, 0, None
        self._samples_now = self.samples
        self.is_loaded = False

    def moved(self, steps: EpochSteps) -> "EpochCursor":
        """A cursor of its own at the same place, over the steps of another rank."""
        other = copy(self)
        other.steps = steps
        return other

    def state(self) -> dict[str, Any]:
        """Where it stands, for `load`: a small dict of what JSON can say."""
        return self.state_at(self.epoch, self.place, self.finished)

    def state_at(self, epoch: int, place: int, finished: int) -> dict[str, Any]:
        """The state of another place."""
        return {
            "format": FORMAT,
            "epoch": epoch,
            "place": place,
            "finished": finished,
            "samples": self._samples_now if place else self.samples,
            "identity": self._identity(),
            **self.steps.describe(),
            **self._extra,
        }

    def load(self, state: Any, *, strict: bool = True, check_identity: bool = True) -> None:
        """Stand where a state was taken.

        A state of a store that has only grown since is mapped: the epoch it stands in is finished over the samples it
        was begun with, and the next one is over all.

        Args:
            strict: refuse a state of other data or another order; False begins its epoch anew then.
            check_identity: see `Loader.load_state_dict`.

        Raises:
            BadState: it is no state, or one of a newer format; or of other data, with `strict`. Nothing has changed.
        """
        own = self.state_at(0, 0, 0)
        _check_form(state)
        epoch, place, finished, samples = (state[name] for name in ("epoch", "place", "finished", "samples"))
        for name, value, most in (
            ("epoch", epoch, MOST_SEED),
            ("finished", finished, MOST_SEED),
            ("place", place, MOST_SAMPLES),
        ):
            if not _is_count(value, most):
                raise BadState(f"the state has the {name} {value!r}, which no loader writes")
        contradiction = self._contradiction(state, own, check_identity=check_identity)
        if contradiction and strict:
            raise BadState(f"{contradiction}. Pass strict=False to begin epoch {epoch:,} anew")
        if contradiction:
            place = 0
        places = self.steps.places(samples) if place else None
        if places is not None and place > places:
            raise BadState(f"the state stands at place {place:,} of epoch {epoch:,}; it has {places:,} places")
        self._stand(epoch)
        self.place, self.finished = place, finished
        self._samples_now = samples if place else self.samples
        self.is_loaded = bool(place)

    def _contradiction(self, state: dict[str, Any], own: dict[str, Any], *, check_identity: bool) -> str:
        """What tells the data or the order of a state from ours; "" if nothing does."""
        identity = _as_json(state["identity"])
        there, here = state["samples"], own["samples"]
        grew = _is_count(there, MOST_SAMPLES) and there < (here or 0)
        if there != here and not (grew and _may_grow(identity) and _may_grow(own["identity"])):
            return f"the state is of {_number(there)} samples; here there are {_number(here)}"
        for name in (*self.steps.describe(), *self._extra):
            theirs, ours = _as_json(state.get(name)), _as_json(own[name])
            if theirs != ours:
                return f"the state has the {name} {theirs!r:.300}; here it is {ours!r:.300}"
        if check_identity and _differ(identity, ours := _as_json(own["identity"])):
            return (
                f"the state has the identity {identity!r:.300}; here it is {ours!r:.300}; "
                "pass check_identity=False if they hold the same samples in the same places"
            )
        return ""


def _check_form(state: Any) -> None:
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise BadState(f"this is no state of a loader: {state!r:.100}")
    if state["format"] > FORMAT:
        raise BadState(f"the state has format {state['format']}; this warmstore reads up to {FORMAT}. Upgrade it")
    if state["format"] < FORMAT:
        raise BadState(f"the state has format {state['format']}, of before epochs ended with their last batch")
    missing = [name for name in _ALWAYS if name not in state]
    if missing:
        raise BadState(f"the state lacks {missing}; it has {list(state)}")


def _differ(one: Any, other: Any) -> bool:
    """Whether two identities contradict each other; an unknown one contradicts none."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(_differ(one[name], other[name]) for name in one)
    return one is not None and other is not None and bool(one != other)


def _may_grow(identity: Any) -> bool:
    """Whether data of this identity keep their places when more are added, as records do."""
    if not isinstance(identity, dict):
        return False
    if identity.get("kind") == "store":
        return True
    members = identity.get("sources")
    return (
        isinstance(members, dict | list)
        and bool(members)
        and all(map(_may_grow, members.values() if isinstance(members, dict) else members))
    )


def _as_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        raise BadState(f"the state holds what no loader writes: {value!r:.100}") from None


def _number(samples: Any) -> str:
    return f"{samples:,}" if isinstance(samples, int) else f"{samples!r:.30}"


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
