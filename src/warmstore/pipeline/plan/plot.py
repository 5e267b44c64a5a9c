"""A plan as a plot: a row per step with its time, bytes and cached share, and the epochs below."""

import statistics
from pathlib import Path
from typing import IO, Any

from warmstore.extras import not_installed
from warmstore.pipeline.plan.plan_figures import PlanFigures, other_reason
from warmstore.storage.humanize import format_duration, format_size

_INK, _SOFT, _LINE, _TRACK = "#1f2933", "#6b7785", "#d9dee4", "#f1f3f5"
_TIME, _BYTES = "#5b6f8f", "#a3b1c6"
_TIERS = {"memory": "#0f8b8d", "disk": "#ec9a29"}
_BAR = 0.56  # of a row
_ROW = 0.46  # inches


def draw(plan: PlanFigures, path: Path) -> Path:
    """Write the plot as PNG, SVG or PDF, by the suffix of the path.

    Raises:
        NotInstalled: matplotlib is not installed.
        ValueError: matplotlib does not know the suffix.
    """
    path = Path(path)
    save(plan, path)
    return path


def save(plan: PlanFigures, file: Path | IO[bytes], format: str | None = None) -> None:
    """Write the plot to a file. `format` is needed where the file has no suffix; see `draw`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise not_installed("plotting a plan", error, "matplotlib") from None
    epochs = _epochs(plan)
    stages = len(plan.profile.stages)
    rows, below = stages * _ROW, len(epochs) * 0.36
    height = 1.3 + rows + 0.85 + below + 0.25
    figure = Figure(figsize=(11, height), facecolor="white")
    FigureCanvasAgg(figure)

    def axes(left: float, width: float, top: float, tall: float) -> Any:
        return figure.add_axes((left, 1 - (top + tall) / height, width, tall / height))

    _titles(figure, plan, height)
    _times(axes(0.155, 0.215, 1.3, rows), plan)
    _bytes(axes(0.40, 0.215, 1.3, rows), plan)
    _kept(axes(0.645, 0.32, 1.3, rows), plan)
    _draw_epochs(axes(0.155, 0.81, 1.3 + rows + 0.85, below), epochs, plan)
    figure.savefig(file, dpi=160, format=format)


def _titles(figure: Any, plan: PlanFigures, height: float) -> None:
    faster = plan.uncached_seconds / max(plan.epoch_seconds, 1e-9)
    figure.text(0.025, 1 - 0.38 / height, f"{faster:.1f} times faster epochs", size=17, weight="bold", color=_INK)
    used = []
    if plan.memory:
        used.append(f"{format_size(plan.memory_used + plan.worker_bytes)} of {format_size(plan.memory)} memory")
    if plan.disk:
        used.append(f"{format_size(plan.disk_used)} of {format_size(plan.disk)} disk")
    workers = f"{plan.workers or 'no'} worker{'' if plan.workers == 1 else 's'}"
    subtitle = "  ·  ".join([f"{plan.samples:,} samples", *used, workers, plan.strategy])
    figure.text(0.025, 1 - 0.70 / height, subtitle, size=10, color=_SOFT)


def _times(axes: Any, plan: PlanFigures) -> None:
    values = [plan.mean(stage.seconds) + plan.mean(stage.wait) for stage in plan.profile.stages]
    spreads = [stage.spread for stage in plan.profile.stages]
    _rows(axes, plan, "step time per sample")
    axes.barh(range(len(values)), values, _BAR, color=_TIME)
    end = max([*values, 1e-9])
    for row, (value, spread) in enumerate(zip(values, spreads, strict=True)):
        text = format_duration(value) + (f" ± {format_duration(spread)}" if spread > 0.05 * value > 0.005 * end else "")
        _beside(axes, row, value, end, text)
    axes.set_xlim(0, end * 1.75)
    axes.set_yticks(range(len(values)), [stage.name for stage in plan.profile.stages], size=10.5, color=_INK)


def _bytes(axes: Any, plan: PlanFigures) -> None:
    stages = plan.profile.stages
    values = [plan.mean(stage.nbytes) for stage in stages]
    _rows(axes, plan, "result size per sample")
    axes.barh(range(len(values)), values, _BAR, color=_BYTES)
    end = max([*values, 1.0])
    for row, (stage, value) in enumerate(zip(stages, values, strict=True)):
        label = format_size(value)
        if squeezed := stage.stored.get("zstd"):
            small = plan.mean(squeezed.nbytes)
            axes.plot([small, small], [row - _BAR / 2, row + _BAR / 2], color=_INK, linewidth=1.4)
            label += f", zstd {small / max(value, 1):.0%}"
        _beside(axes, row, value, end, label)
    axes.set_xlim(0, end * 1.75)
    axes.set_yticks([])


def _kept(axes: Any, plan: PlanFigures) -> None:
    _rows(axes, plan, "cached share")
    _legend(axes)
    for row in range(len(plan.profile.stages)):
        axes.barh(row, 1.0, _BAR, color=_TRACK)
        if not any(place.step == row for place in plan.placements):
            reason = plan.reasons[row] if row < len(plan.reasons) else ""
            reason = reason.partition(":")[0] or other_reason(plan)
            axes.text(0.015, row, reason if len(reason) < 52 else reason[:50] + "…", va="center", size=8.5, color=_SOFT)
    for row in {place.step for place in plan.placements}:
        _segments(axes, plan, row)
    rest = 1 - sum(map(plan.samples_in, range(len(plan.placements)))) / max(plan.samples, 1)
    if rest > 0.0005:
        below = len(plan.profile.stages) - 0.25
        axes.text(0.0, below, f"{rest:.0%} of all samples computed in every epoch", size=9, color=_INK, va="center")
    axes.set_xlim(0, 1)
    axes.set_yticks([])


def _segments(axes: Any, plan: PlanFigures, row: int) -> None:
    """One bar of a step's cached shares by tier. Labels that do not fit into a segment stand behind the bar."""
    numbers = [number for number, place in enumerate(plan.placements) if place.step == row]
    left, behind = 0.0, []
    for number in sorted(numbers, key=lambda number: plan.placements[number].tier, reverse=True):
        place, share = plan.placements[number], plan.samples_in(number) / max(plan.samples, 1)
        colour, hatch = _TIERS[place.tier], "////" if place.codec != "raw" else None
        axes.barh(row, share, _BAR, left=left, color=colour, hatch=hatch, edgecolor="white")
        label = f"{share:.0%}" if share >= 0.01 else "<1%"
        if share >= 0.09:
            inside = axes.text(left + share / 2, row, label, ha="center", va="center", size=9, color="white")
            inside.set_weight("bold")
            if hatch:
                inside.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 1.5})
        else:
            behind.append((label, colour))
        left += share
    for label, colour in behind:
        axes.text(left + 0.012, row, label, va="center", size=9, weight="bold", color=colour)
        left += 0.03 + 0.022 * len(label)


def _legend(axes: Any) -> None:
    """The legend of tiers and codecs, right of the panel's title."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=tier) for tier, colour in _TIERS.items()]
    handles.append(Patch(facecolor=_SOFT, edgecolor="white", hatch="////", label="zstd"))
    axes.legend(
        handles=handles, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9,
        labelcolor=_SOFT, handlelength=1.1, handleheight=0.9, columnspacing=1.2, handletextpad=0.5, borderaxespad=0.15,
    )  # fmt: skip


def _epochs(plan: PlanFigures) -> list[tuple[str, float, str, str]]:
    """Rows of the lower panel: a name, seconds, a colour and a label."""
    rows = [("uncached", plan.uncached_seconds, _LINE, format_duration(plan.uncached_seconds))]
    first = plan.uncached_seconds + plan.build_seconds
    rows.append(("first epoch", first, _LINE, f"{format_duration(first)}, filling the tiers"))
    label = f"{format_duration(plan.epoch_seconds)}, bounded by {plan.bound}"
    rows.append(("predicted", plan.epoch_seconds, _TIME, label))
    if plan.measured:
        took = statistics.median(plan.measured)
        off = took / max(plan.epoch_seconds, 1e-9) - 1
        rows.append(("measured", took, _INK, f"{format_duration(took)}, {off:+.0%}"))
    return rows


def _draw_epochs(axes: Any, epochs: list[tuple[str, float, str, str]], plan: PlanFigures) -> None:
    end = max(seconds for _, seconds, _, _ in epochs)
    for row, (_, seconds, colour, label) in enumerate(epochs):
        axes.barh(row, seconds, 0.6, color=colour)
        axes.text(seconds + 0.008 * end, row, label, va="center", size=9, color=_INK)
    axes.set_yticks(range(len(epochs)), [name for name, _, _, _ in epochs], size=10.5, color=_INK)
    axes.set_xlim(0, end * 1.3)
    _plain(axes, len(epochs), "an epoch")


def _rows(axes: Any, plan: PlanFigures, title: str) -> None:
    _plain(axes, len(plan.profile.stages), title)


def _plain(axes: Any, rows: int, title: str) -> None:
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_title(title, loc="left", size=9.5, color=_SOFT, pad=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(_LINE)


def _beside(axes: Any, row: int, value: float, end: float, label: str) -> None:
    axes.text(value + 0.02 * end, row, label, va="center", size=9, color=_INK)
