"""A plan: how many samples a pipeline caches after each step, in memory and on disk. `assignment` says which."""

import os
from pathlib import Path
from typing import final

from warmstore.display.html import html_method
from warmstore.pipeline.plan.plan_figures import PlanFigures
from warmstore.pipeline.plan.plan_html import plan_html
from warmstore.pipeline.plan.plan_recorder import PlanRecorder
from warmstore.storage.cached_property import cached_property
from warmstore.storage.user_paths import user_path


@final
class Plan(PlanFigures):
    """A plan; see `PlanFigures`. Make one with `Pipeline.plan`; `print` it, or `plot` it."""

    @cached_property
    def _recorder(self) -> PlanRecorder:
        """Writes the epochs of loaders of this plan into the history in its folder."""
        return PlanRecorder(self)

    def __repr__(self) -> str:
        places = ", ".join(
            f"{self.samples_in(number):,} after step {place.step} in {place.tier} ({place.codec})"
            for number, place in enumerate(self.placements)
        )
        return f"Plan({self.samples:,} samples: {places or 'none cached'}; {self.workers} workers)"

    def __str__(self) -> str:
        from warmstore.pipeline.plan.plan_table import as_text  # only printing pays for rich

        return as_text(self)

    _repr_html_ = html_method(plan_html)

    def explain(self) -> str:
        """The last steady epoch beside the prediction, term by term: which one was off, and whether the machine's pace
        has changed since the profile.

        Raises:
            ValueError: no loader has run a steady epoch of this plan.
        """
        from warmstore.pipeline.plan.explanation import explanation

        return explanation(self)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Plot the plan to a PNG, SVG or PDF file: a row per step with its time, bytes and cached share.

        Raises:
            NotInstalled: matplotlib is not installed.
        """
        from warmstore.pipeline.plan.plot import draw

        return draw(self, user_path(path))
