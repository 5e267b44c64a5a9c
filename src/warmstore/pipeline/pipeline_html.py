"""A pipeline as HTML for notebooks: its steps and filters, in order."""

from collections.abc import Mapping
from typing import Any

from warmstore.display.html import Html, card, faint, note, shortened, table
from warmstore.pipeline.filters.filtered_chain import FilteredChain
from warmstore.pipeline.steps import Step, name_of

_STEPS = 60


def pipeline_html(filtered: FilteredChain) -> str:
    """The HTML of a pipeline. Evaluates no filter and runs no step."""
    base = filtered.base
    rows: list[tuple[object, ...]] = [_row(number, step, base.cacheable) for number, step in enumerate(base.steps)]
    for each in reversed(filtered.filters):
        predicate = each.predicate
        rows.insert(each.after, ("filter", predicate.name, name_of(predicate.function), _given(predicate), ""))
    parts = [table((">", "step", "function", "arguments", "results"), rows[:_STEPS])] if rows else [note("no steps")]
    if len(rows) > _STEPS:
        parts.append(note(f"and {len(rows) - _STEPS:,} more steps"))
    source = f"{filtered.count_text()} samples of {_kind_of(base.source)}"
    return card("Pipeline", source, *parts)


def _row(number: int, step: Step, cacheable: int) -> tuple[object, ...]:
    if number >= cacheable:
        kept = "random: differ in every epoch" if step.random else "come after a random step"
    else:
        kept = {"auto": "may be cached", "never": "are not cached"}.get(step.cache, f"cached in {step.cache}")
    return faint(number + 1), step.name, name_of(step.function), _given(step), faint(kept)


def _given(step: Step) -> Html:
    arguments: Mapping[str, Any] = step.arguments
    return shortened(", ".join(f"{name}={value!r:.60}" for name, value in arguments.items()))


def _kind_of(source: Any) -> str:
    return type(source).__qualname__
