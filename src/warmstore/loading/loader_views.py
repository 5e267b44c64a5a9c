"""A loader as one line of text, and as HTML for notebooks."""

from typing import Any

from warmstore.display.html import Html, card, figures, meter, shortened
from warmstore.loading.batch_sizes import BatchSize


def loader_text(loader: Any) -> str:
    """The `repr` of a `Loader`."""
    cursor = loader._cursor
    return (
        f"Loader({_samples(loader)}, {loader._order!r:.200}, {loader._shard}, epoch {cursor.epoch:,}, "
        f"place {cursor.place:,}, {loader.workers} workers)"
    )


def loader_html(loader: Any) -> str:
    """The HTML of a `Loader`: what it reads, in which order, and where it is."""
    cursor, shard, build = loader._cursor, loader._shard, loader._build
    size = loader._size
    batches = _batches(loader)
    pairs = {
        "samples": _samples(loader).removesuffix(" samples"),
        "batch size": repr(size) if isinstance(size, BatchSize) else f"{size:,}",
        "batches in an epoch": None if batches is None else f"{batches:,}",
        "sampler": shortened(repr(loader._order), 120),
        "rank": f"{shard.rank:,} of {shard.world_size:,}, uneven={shard.uneven!r}" if shard.world_size > 1 else None,
        "transform": None if build.transform is None else shortened(_name_of(build.transform)),
        "workers": _workers(loader),
        "position": _position(cursor),
        "skipped samples": f"{loader.skipped:,}" if loader.skipped else None,
    }
    return card("Loader", "closed" if loader.closed else "", figures(pairs))


def _samples(loader: Any) -> str:
    samples = loader._cursor.samples
    return "an iterable" if samples is None else f"{samples:,} samples"


def _batches(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # the iterable has no length
        return None


def _workers(loader: Any) -> str:
    producer = loader._producer
    if producer.processes:
        return f"{producer.processes:,} processes"
    return f"{producer.threads:,} threads" if producer.threads else "none: the caller's thread"


def _position(cursor: Any) -> Html | str:
    places = cursor.places() if cursor.samples else None
    if not places:
        return f"epoch {cursor.epoch:,}, place {cursor.place:,}"
    return meter(cursor.place / places, f"epoch {cursor.epoch:,}, sample {cursor.place:,} of {places:,}")


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
