"""The table of `warmstore top`, and its JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from warmstore.cli.tables import table
from warmstore.storage.humanize import format_duration, format_size

if TYPE_CHECKING:
    from warmstore.report.live import CacheUse

_AROUND = 8  # lines of the screen that are not rows


def use_table(uses: Sequence["CacheUse"], now: float, height: int | None = None) -> Group:
    """A line per cache, and a line with totals.

    Args:
        now: seconds since 1970. height: lines of the screen; None shows all caches.
    """
    shown = table(
        "Caches", "cache", "kind", ">hit rate", ">samples/s", ">saved", ">read", ">entries", ">on disk", ">recorded",
    )  # fmt: skip
    shown.columns[0].no_wrap = False
    most = len(uses) if height is None else max(height - _AROUND, 1)
    for use in uses[:most]:
        rate = use.hit_rate
        is_live = use.in_use or use.processes > 0
        shown.add_row(
            Text(use.name, "bold" if is_live else ""),
            Text(use.kind),
            "-" if rate is None else f"{rate:.1%}",
            f"{use.samples_per_second:,.0f}" if use.samples_per_second else "-",
            _signed(use.total_saved),
            format_size(use.bytes_read) if use.bytes_read else "-",
            "-" if use.entries is None else f"{use.entries:,}",
            format_size(use.nbytes),
            "-" if not use.at else "now" if now - use.at < 1 else f"{format_duration(now - use.at)} ago",
        )
    live = sum(use.in_use or use.processes > 0 for use in uses)
    said = (
        f"{live:,} of {len(uses):,} caches in use; {_signed(sum(use.total_saved for use in uses))} saved, "
        f"{format_size(sum(use.nbytes for use in uses))} on the disk."
    )
    if len(uses) > most:
        said += f" {len(uses) - most:,} are below the screen."
    return Group(shown, Text(said))


def use_as_json(use: "CacheUse") -> dict[str, Any]:
    """A use as JSON data."""
    content = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(use).items()}
    return {**content, "hit_rate": use.hit_rate}


def _signed(seconds: float) -> str:
    text = format_duration(abs(seconds))
    return f"-{text}" if seconds < 0 and text != "0 s" else text
