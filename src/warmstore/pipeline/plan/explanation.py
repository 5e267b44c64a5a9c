"""The explanation of an epoch: its measurements beside the prediction, term by term."""

from collections.abc import Iterator

from warmstore.pipeline.metering.epoch_meter import TERMS, TIER_TERMS
from warmstore.pipeline.metering.epoch_observer import MeasuredEpoch
from warmstore.pipeline.plan.plan_figures import PlanFigures
from warmstore.storage.humanize import format_duration

_NOTABLE = 0.05  # share of an epoch from which on a term is named as off
_DRIFT = 0.05  # change of the pace from which on it is told


def explanation(plan: PlanFigures) -> str:
    """See `Plan.explain`."""
    if not plan.epochs_run:
        raise ValueError("no steady epoch has been run with this plan; run two whole epochs of a loader first")
    epoch = plan.epochs_run[-1]
    made = epoch.times.seconds - epoch.times.outside
    off = epoch.times.seconds / max(plan.epoch_seconds, 1e-9) - 1
    low, high = plan.band
    within = "within" if low <= epoch.times.seconds <= high else "outside"
    lines = [
        f"The epoch took {format_duration(epoch.times.seconds)}, {off:+.0%} of the predicted "
        f"{format_duration(plan.epoch_seconds)}: {within} {format_duration(low)} to {format_duration(high)}.",
        f"{'':16}{'predicted':>11}{'measured':>11}{'difference':>12}",
    ]
    predicted, measured = predicted_terms(plan, epoch), measured_terms(epoch)
    lines += [
        f"{term:16}{format_duration(predicted[term]):>11}{format_duration(measured[term]):>11}"
        f"{_signed(measured[term] - predicted[term]):>12}"
        for term in predicted
    ]
    lines.append(f"These are CPU seconds of {_makers(epoch)} together, {made and _busy(epoch) / made:.1f} at once.")
    return "\n".join([*lines, *_findings(plan, epoch, predicted, measured)])


def predicted_terms(plan: PlanFigures, epoch: MeasuredEpoch) -> dict[str, float]:
    """Seconds by term, as the profile predicts them for the samples of an epoch."""
    profile, stages = plan.profile, plan.profile.stages
    found: dict[str, float] = dict.fromkeys(TERMS, 0.0)
    rest = list(profile.counts)
    for number, place in enumerate(plan.placements):
        stored = stages[place.step].stored[place.codec]
        for bucket, count in enumerate(plan.counts[number]):
            rest[bucket] -= count
            found[TIER_TERMS[place.tier]] += count * stored.read[bucket]
            found["steps"] += count * sum(stage.seconds[bucket] for stage in stages[place.step + 1 :])
    for bucket, count in enumerate(rest):
        found["source reads"] += count * stages[0].seconds[bucket]
        found["steps"] += count * sum(stage.seconds[bucket] for stage in stages[1:])
    found["batches"] = plan.samples * (profile.overhead if epoch.workers else profile.alone)
    share = epoch.reading.samples / max(plan.samples, 1)  # of this rank
    if epoch.workers:
        found["delivery"] = plan.samples * profile.delivery
    return {term: share * seconds for term, seconds in found.items()}


def measured_terms(epoch: MeasuredEpoch) -> dict[str, float]:
    """Seconds by term, as they were measured."""
    found = {**epoch.reading.cpu}
    if epoch.workers:
        found["delivery"] = epoch.times.cpu
    return found


def _findings(
    plan: PlanFigures, epoch: MeasuredEpoch, predicted: dict[str, float], measured: dict[str, float]
) -> Iterator[str]:
    """What explains the difference, in sentences."""
    difference = {term: measured[term] - seconds for term, seconds in predicted.items()}
    most = max(difference, key=lambda term: abs(difference[term]))
    work = max(sum(predicted.values()), 1e-9)
    if abs(difference[most]) > _NOTABLE * work:
        more = "more" if difference[most] > 0 else "less"
        yield f"Most is due to {most}: {format_duration(abs(difference[most]))} {more} than predicted."
    else:
        yield "All terms are as predicted."
    planned = sum(map(plan.samples_in, range(len(plan.placements))))
    missing = round(epoch.reading.computed - (plan.samples - planned) * epoch.reading.samples / max(plan.samples, 1))
    if missing > 0:
        yield f"{missing:,} of the samples that the plan caches were computed: a tier is full, or samples have changed."
    if epoch.workers != plan.workers:
        yield f"The loader has {epoch.workers} workers, and the plan {plan.workers}."
    if epoch.times.outside > _NOTABLE * epoch.times.seconds:
        yield (
            f"The program spent {format_duration(epoch.times.outside)} of the epoch between batches; "
            "step_seconds= tells the plan."
        )
    if epoch.reading.waits > _NOTABLE * _busy(epoch):
        yield f"Batches waited {format_duration(epoch.reading.waits)} in all, for disks, networks or cores."
    if plan.profile.pace and abs(drift(plan, epoch)) > _DRIFT:
        change = drift(plan, epoch)
        yield f"The machine is {abs(change):.0%} {'slower' if change > 0 else 'faster'} than when it was profiled."


def drift(plan: PlanFigures, epoch: MeasuredEpoch) -> float:
    """The relative change of the seconds of a fixed piece of work since the profile."""
    return epoch.pace / plan.profile.pace - 1 if plan.profile.pace else 0.0


def _busy(epoch: MeasuredEpoch) -> float:
    return max(epoch.reading.seconds, 1e-9)


def _makers(epoch: MeasuredEpoch) -> str:
    return f"{epoch.workers} worker{'s' if epoch.workers > 1 else ''}" if epoch.workers else "the main process"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{format_duration(abs(seconds))}"
