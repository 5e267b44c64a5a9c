"""EpochCursor: the position in the epochs, and the state that restores it.

A position is an epoch and a place in the order that all ranks share. So a state has no ranks, workers or batch sizes,
and the states of all ranks after the same step are equal.
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
    """One rank's position in the epochs of `samples` samples.

    epoch, place: of the next batch; places are counted over all ranks. finished: completed epochs. is_loaded: the
    position is a loaded state in the middle of an epoch, and no batch was handed out since.

    Args:
        steps: the steps of this rank.
        samples: the number of samples; None if unknown.
        identity: returns a JSON value that tells the data from other data of the same length.
        extra: further values that must be equal to load a state, by name.
        resume_partial: resume an epoch after a break.
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
        self.is_loaded = False
        self._named: int | None = None  # the epoch to begin after the running one, set by `set_epoch`
        self._samples_now = samples  # of the running epoch; fewer if the data grew after the loaded state

    def count(self, steps: EpochSteps | None = None) -> int:
        """Batches of this rank, or of other `steps`, in the whole epoch `next_epoch`."""
        samples = self._samples_now if self._named is None else self.samples
        return (steps or self.steps).count(samples, self.next_epoch)

    def places(self) -> int | None:
        """Places of the epoch of `place`, of all ranks; None if unknown."""
        return self.steps.places(self._samples_now)

    def rows(self) -> int:
        """Rows of this rank in that epoch, with repeated rows."""
        return self.steps.rows(self.samples, self.next_epoch)

    def positions(self) -> Iterator[int]:
        """The positions of these rows."""
        for _, positions in self.steps.steps(self.samples, self.next_epoch, 0):
            yield from positions.tolist()

    @property
    def next_epoch(self) -> int:
        """The epoch of the next batch, or the epoch set by `set_epoch`."""
        return self.epoch if self._named is None else self._named

    def begin(self) -> tuple[int, int, int | None]:
        """The start of an iteration: epoch, place, and the number of samples of that epoch.

        A loaded state, and with `resume_partial` any position, is resumed in the middle of an epoch. Otherwise an epoch
        begins: the one that was set; after a break the next one, or the same one if all epochs are equal.
        """
        if self._named is not None:
            self._move(self._named)
        elif self.place and not (self.is_loaded or self._resume_partial):
            self._move(self.epoch + self.steps.shuffles)
        elif self.place and self.steps.is_over(self._samples_now, self.epoch, self.place):
            self.end(self.epoch)  # with these ranks and batch size no step is left
        return self.epoch, self.place, self._samples_now

    def hand_out(self, epoch: int, step: RankStep, *, is_stream: bool = False) -> None:
        """Count a batch that is handed out now.

        Args:
            is_stream: the same iteration continues with the next epoch, so an epoch that was set waits for the next
                iteration.
        """
        if step.is_last and is_stream:
            self._move(epoch + 1, finished=self.finished + 1, named=self._named)
        elif step.is_last:
            self.end(epoch)
        else:
            self.epoch, self.place, self.is_loaded = epoch, step.after, False

    def end(self, epoch: int) -> None:
        """Count a completed epoch, and move to the next one."""
        self._move(epoch + 1 if self._named is None else self._named, finished=self.finished + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next. A state loaded from the middle of the same epoch stays."""
        if epoch == self.epoch and self.place and (self.is_loaded or self._resume_partial):
            self._named = None
            return
        if self.place and not self.is_loaded:
            self._named = epoch
        elif epoch != self.epoch or self.place:
            self._move(epoch)

    def _move(
        self,
        epoch: int,
        place: int = 0,
        *,
        finished: int | None = None,
        samples: int | None = None,
        named: int | None = None,
    ) -> None:
        """Move to a place of an epoch; into the middle of one, by a loaded state. One statement, so that an interrupt
        comes before or after it."""
        self.epoch, self.place, self.finished, self._samples_now, self._named, self.is_loaded = (
            epoch,
            place,
            self.finished if finished is None else finished,
            samples if place else self.samples,
            named,
            place > 0,
        )

    def with_steps(self, steps: EpochSteps) -> "EpochCursor":
        """A copy at the same position with other steps."""
        other = copy(self)
        other.steps = steps
        return other

    def state(self) -> dict[str, Any]:
        """The position, for `load`: a small JSON-serialisable dict."""
        return self.state_at(self.epoch, self.place, self.finished)

    def state_at(self, epoch: int, place: int, finished: int) -> dict[str, Any]:
        """The state of another position."""
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
        """Move to the position of a state; the cursor is unchanged on errors.

        If the store has only grown, the epoch is finished over its first samples, and the next epoch is over all.

        Args:
            strict: refuse a state of other data or another order; False begins its epoch again.
            check_identity: see `Loader.load_state_dict`.

        Raises:
            BadState: no state, or a state of another format; or with `strict` a state of other data.
        """
        own = self.state_at(0, 0, 0)
        _check_form(state)
        for name, most in {"epoch": MOST_SEED, "finished": MOST_SEED, "place": MOST_SAMPLES}.items():
            if not _is_count(state[name], most):
                raise BadState(f"the state has the {name} {state[name]!r}, which no loader writes")
        epoch, place, finished, samples = (state[name] for name in ("epoch", "place", "finished", "samples"))
        contradiction = self._contradiction(state, own, check_identity=check_identity)
        if contradiction and strict:
            raise BadState(f"{contradiction}. Pass strict=False to begin epoch {epoch:,} again")
        if contradiction:
            place = 0
        places = self.steps.places(samples) if place else None
        if places is not None and place > places:
            raise BadState(f"the state is at place {place:,} of epoch {epoch:,}, which has {places:,} places")
        self._move(epoch, place, finished=finished, samples=samples)

    def _contradiction(self, state: dict[str, Any], own: dict[str, Any], *, check_identity: bool) -> str:
        """How the data or the order of a state differs from this cursor's; "" if they agree."""
        identity, own_identity = _as_json(state["identity"]), _as_json(own["identity"])
        old_samples, samples = state["samples"], own["samples"]
        has_grown = _is_count(old_samples, MOST_SAMPLES) and old_samples < (samples or 0)
        if old_samples != samples and not (has_grown and _may_grow(identity) and _may_grow(own_identity)):
            return f"the state is of {_number(old_samples)} samples; here there are {_number(samples)}"
        for name in (*self.steps.describe(), *self._extra):
            old, new = _as_json(state.get(name)), _as_json(own[name])
            if old != new:
                return f"the state has the {name} {old!r:.300}; here it is {new!r:.300}"
        if check_identity and _differ(identity, own_identity):
            return (
                f"the state has the identity {identity!r:.300}; here it is {own_identity!r:.300}; "
                "pass check_identity=False if they hold the same samples in the same places"
            )
        return ""


def _check_form(state: Any) -> None:
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise BadState(f"this is no state of a loader: {state!r:.100}")
    if state["format"] > FORMAT:
        raise BadState(f"the state has format {state['format']}; this warmstore reads up to {FORMAT}. Upgrade it")
    if state["format"] < FORMAT:
        raise BadState(f"the state has format {state['format']} of an early release, which is no longer read")
    missing = [name for name in _ALWAYS if name not in state]
    if missing:
        raise BadState(f"the state lacks {missing}; it has {list(state)}")


def _differ(old: Any, new: Any) -> bool:
    """Whether two identities contradict each other. None, an unknown identity, contradicts no other."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() != new.keys() or any(_differ(old[name], new[name]) for name in old)
    return old is not None and new is not None and bool(old != new)


def _may_grow(identity: Any) -> bool:
    """Whether samples keep their positions when more are added, as in record stores."""
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
        raise BadState(f"the state holds a value that no loader writes: {value!r:.100}") from None


def _number(samples: Any) -> str:
    return f"{samples:,}" if isinstance(samples, int) else f"{samples!r:.30}"


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
