"""A feature cache and its figures as HTML for notebooks."""

from typing import Any

from warmstore.display.html import Html, card, faint, figures, heading, meter, note, table
from warmstore.features.keyed.cache_versions import CacheVersion, digest
from warmstore.storage.humanize import format_duration, format_size

_VERSIONS = 10


def cache_html(cache: Any) -> str:
    """The HTML of a `FeatureCache`."""
    if cache.closed:
        return card("FeatureCache", f"{cache.id}, {cache.path}, closed")
    state = "" if cache.writes else ", only read"
    return card("FeatureCache", f"{cache.id}, {cache.path}{state}", _figures(cache.stats()))


def stats_html(stats: Any) -> str:
    """The HTML of a `CacheStats`."""
    return card("CacheStats", "", _figures(stats))


def _figures(stats: Any) -> Html:
    looked_up = stats.hits + stats.misses
    full: object = None
    if stats.max_size is not None:
        share = stats.bytes / stats.max_size
        full = meter(share, f"{format_size(stats.bytes)} of {format_size(stats.max_size)}, {share:.0%}")
    pairs = {
        "entries": f"{stats.entries:,}" + (f" and {stats.pending:,} pending" if stats.pending else ""),
        "hits": meter(stats.hit_rate, f"{stats.hits:,} of {looked_up:,}, {stats.hit_rate:.0%}") if looked_up else None,
        "damaged": f"{stats.damaged:,}" if stats.damaged else None,
        "evicted": f"{stats.evicted:,}" if stats.evicted else None,
        "seconds saved": format_duration(stats.seconds_saved) if stats.hits else None,
        "seconds computed": format_duration(stats.computed_seconds) if stats.misses else None,
        "read": format_size(stats.bytes_read) if stats.bytes_read else None,
        "hot tier": f"{stats.hot_hits:,} hits, {format_size(stats.hot_bytes)}" if stats.hot_bytes else None,
        "full" if full is not None else "size": full or format_size(stats.bytes),
    }
    return Html(figures(pairs) + _versions(stats.versions))


def _versions(versions: tuple[CacheVersion, ...]) -> Html:
    if not versions:
        return note("Nothing is on the disk yet.")
    rows = [
        (version.name, f"{version.entries:,}", format_size(version.bytes), _fingerprint(version))
        for version in versions[:_VERSIONS]
    ]
    more = len(versions) - len(rows)
    return Html(
        heading("Versions on the disk")
        + table(("folder", ">entries", ">size", "fingerprint"), rows)
        + (note(f"and {more:,} more versions") if more else "")
    )


def _fingerprint(version: CacheVersion) -> Html:
    return faint("none: put_batch filled it" if version.fingerprint is None else digest(version.fingerprint))
