"""The output of `warmstore store inspect`: a store as plain data, and this data as tables."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from warmstore.cli.tables import print_table, table
from warmstore.errors import Damaged
from warmstore.records.format.fields import field_text, fields_to_json
from warmstore.records.maintenance.chunk_states import chunk_states, field_bytes
from warmstore.records.maintenance.verify import Report
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.humanize import format_size

_CHUNKS_SHOWN = 12
_CHARACTERS = 60  # of a sample value, at most
_ITEMS = 6


def description(path: Path, samples: int) -> dict[str, Any]:
    """A store as JSON data.

    Raises:
        NotAStore, Damaged, NewerFormat: as when the store is opened.
    """
    with RecordStore.open(path) as store:
        chunks = chunk_states(store.path)
        described = fields_to_json(store.fields)
        cache = None
        if "structure" in store.metadata:
            from warmstore.cli.features_view import cache_description  # needs torch

            cache = cache_description(store)
        taken = field_bytes(store)
        return {
            "path": str(path),
            "records": len(store),
            "bytes": allocated_bytes(store.path),
            "generation": store._manifest.generation,
            "id": store._manifest.id,
            "writers": sum(chunk.writing for chunk in chunks),
            "fields": [
                {**entry, "says": field_text(store.fields[entry["name"]]), "bytes": taken[entry["name"]]}
                for entry in described
            ],
            "chunks": [vars(chunk) for chunk in chunks],
            "metadata": store.metadata,
            "cache": cache,
            "samples": _samples(store, min(samples, len(store))),
        }


def show(found: dict[str, Any], console: Console) -> None:
    """Print a description as tables."""
    console.print(Text(found["path"], "bold"), soft_wrap=True)
    parts = [f"{found['records']:,} records", format_size(found["bytes"]), f"generation {found['generation']}"]
    parts.append(f"{found['writers'] or 'no'} live writer{'s' if found['writers'] != 1 else ''}")
    console.print(", ".join(parts) + "\n")

    if found["cache"]:
        from warmstore.cli.features_view import show_cache

        show_cache(found["cache"], time.time(), console)
    fields = table("Fields", "name", "type", ">bytes", ">a record")
    for field in found["fields"]:
        each = format_size(field["bytes"] / found["records"]) if found["records"] else ""
        fields.add_row(Text(field["name"]), Text(field["says"]), format_size(field["bytes"]), each)
    print_table(fields, console)

    chunks = table("Chunks", "file", ">records", ">batches", ">size", "state")
    # The last chunks are those that change.
    shown = found["chunks"] if len(found["chunks"]) <= _CHUNKS_SHOWN else found["chunks"][-_CHUNKS_SHOWN:]
    for chunk in shown:
        state = chunk["state"] + (", being written" if chunk["writing"] else "")
        style = {"missing": "bold red", "sealed": "dim"}.get(chunk["state"], "")
        numbers = (f"{chunk['records']:,}", f"{chunk['batches']:,}", format_size(chunk["nbytes"]))
        chunks.add_row(chunk["name"], *numbers, state, style=style)
    print_table(chunks, console)
    if len(shown) < len(found["chunks"]):
        console.print(f"{len(found['chunks']) - len(shown):,} earlier chunks are not shown; --json has all.\n")

    if found["samples"]:
        samples = table("First records", "", *(str(number) for number in range(len(found["samples"]))), wrap=True)
        for field in found["fields"]:
            name = field["name"]
            samples.add_row(Text(name), *(Text(sample[name]) for sample in found["samples"]))
        print_table(samples, console)
    if found["metadata"] and not found["cache"]:
        console.print(Text("Metadata", "bold"))
        for name, value in found["metadata"].items():
            text = converted(value) if name == "converted" and isinstance(value, dict) else _plain(value)
            console.print(Text(f" {name}: {_shortened(text, 3 * _CHARACTERS)}"))


def repairs(before: Report, repaired: Report) -> list[str]:
    """The actions of a repair, one line each.

    Args:
        before: damage before the store was opened for writing, which restores files, too.
        repaired: the report of `verify(repair=True)` after that.
    """
    how = "restored" if not repaired.lost else "replaced"  # if edits are lost, the store is rewritten
    lines = [f"{how}: {name}" for name in dict.fromkeys((*before.files, *repaired.files))]
    for problem in repaired.problems:
        if problem.field:
            lines.append(
                f"absent now: {len(problem.positions):,} of field {problem.field!r}, which were in {problem.chunk}"
            )
        else:
            lines.append(f"rewritten: {problem.chunk}, without loss")
    lines += [f"left out: {edit}" for edit in repaired.lost]
    return [*lines, "repaired: everything else was kept"]


def converted(made_from: dict[str, Any]) -> str:
    """The source of a converted store, and whether the conversion is complete."""
    source = made_from.get("source")
    where = f" {', '.join(source)}" if isinstance(source, list) else ""
    return f"from {made_from.get('format')}{where}, {'complete' if made_from.get('complete') else 'not finished'}"


def rendered(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, np.ndarray) and value.ndim:
        items = ", ".join(f"{item}" for item in value.reshape(-1)[:_ITEMS].tolist())
        more = ", ..." if value.size > _ITEMS else ""
        return _shortened(f"{list(value.shape)} {items}{more}")
    if isinstance(value, np.generic | np.ndarray):
        return _shortened(str(value))
    if isinstance(value, memoryview):
        return _shortened(f"{len(value):,} B {bytes(value[:16])!r}" + ("..." if len(value) > 16 else ""))
    return _shortened(repr(value) if isinstance(value, str) else _plain(value))


def _samples(store: RecordStore, count: int) -> list[dict[str, str]]:
    if not count:
        return []
    columns = {}
    for name in store.fields:
        try:
            columns[name] = [rendered(value) for value in store.gather(slice(0, count), [name])[name]]
        except Damaged:
            columns[name] = ["damaged"] * count  # the other fields are shown
    return [{name: values[at] for name, values in columns.items()} for at in range(count)]


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shortened(text: str, characters: int = _CHARACTERS) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."
