"""A plan as HTML for notebooks: its picture, its notes and its table."""

import base64
import io

from warmstore.display.html import card, folded, note
from warmstore.errors import NotInstalled
from warmstore.pipeline.plan.plan_figures import PlanFigures

_WIDTH = 880  # pixels of the picture; 11 inches
_STAGES = 40  # of the picture; longer chains are shown as a table
_NOTES = 10


def plan_html(plan: PlanFigures) -> str:
    """The HTML of a plan. Without matplotlib its table stands in for the picture."""
    from warmstore.pipeline.plan.plan_table import as_text

    title = f"{plan.samples:,} samples, {len(plan.steps):,} steps"
    text = as_text(plan)
    picture = _picture(plan) if len(plan.profile.stages) <= _STAGES else None
    if picture is None:
        return card("Plan", title, folded("table", text).replace("<details>", "<details open>"))
    return card("Plan", title, picture, *(note(text) for text in plan.notes[:_NOTES]), folded("table", text))


def _picture(plan: PlanFigures) -> str | None:
    """The plot as an image on a white ground; None without matplotlib."""
    from warmstore.pipeline.plan.plot import save

    drawn = io.BytesIO()
    try:
        save(plan, drawn, "png")
    except NotInstalled:
        return None
    encoded = base64.b64encode(drawn.getvalue()).decode()
    return (
        f'<img src="data:image/png;base64,{encoded}" width="{_WIDTH}" alt="Picture of the plan" '
        f'style="width:{_WIDTH}px;max-width:100%;height:auto;background:#fff;border-radius:6px;margin:4px 0">'
    )
