"""The output of `warmstore features`, and of `warmstore store inspect` for feature caches."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from warmstore.cli.tables import print_table, table
from warmstore.errors import Damaged
from warmstore.features.cache_inspection import CacheState, duplicates, read_state
from warmstore.features.keyed.cache_store import is_cache
from warmstore.features.keyed.cache_versions import Fingerprint, digest, id_name, version_paths
from warmstore.features.outputs.output_schema import OutputSchema
from warmstore.records.format.fields import field_text
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.humanize import format_duration, format_size
from warmstore.tree.spec import TreeSpec, children_of, keys_of


def show_states(states: Sequence[CacheState], now: float, console: Console) -> None:
    """Print one line per version. `now` is in seconds since 1970."""
    shown = table(
        f"Feature caches in {states[0].path.absolute().parent}",
        "cache", ">entries", ">size", ">hit rate", ">saved", ">age", ">written\nago",
    )  # fmt: skip
    shown.columns[0].no_wrap = False  # ids may be long; numbers must be whole
    for state in states:
        looked_up = state.usage.hits + state.usage.misses
        shown.add_row(
            Text(label(state)),
            f"{state.entries:,}",
            format_size(state.bytes),
            f"{state.usage.hit_rate:.1%}" if looked_up else "-",
            format_duration(state.seconds_saved) if looked_up else "-",
            format_duration(now - state.created),
            "now" if state.writers else format_duration(now - state.written),
        )
    print_table(shown, console)
    if len(states) > 1:
        saved = format_duration(sum(state.seconds_saved for state in states))
        console.print(f"Total: {format_size(sum(state.bytes for state in states))}, {saved} of computing saved.")
    if any(id_name(state.path) != state.path.name for state in states):
        console.print("[dim]@: a version for another module, or other arguments.[/]")


def label(state: CacheState) -> str:
    """A cache's id, with the digest of its version if it is not the first."""
    digest = state.path.name.removeprefix(id_name(state.path))
    return state.id + (f" {digest[:9]}" if digest else "")


def state_as_json(state: CacheState) -> dict[str, Any]:
    """The state of a version as JSON data."""
    return {
        "path": str(state.path),
        "id": state.id,
        "version": state.path.name,
        "entries": state.entries,
        "bytes": state.bytes,
        "hits": state.usage.hits,
        "misses": state.usage.misses,
        "hit_rate": state.usage.hit_rate,
        "computed": state.usage.samples,
        "computed_seconds": state.usage.seconds,
        "seconds_saved": state.seconds_saved,
        "created": state.created,
        "written": state.written,
        "writers": state.writers,
        "fingerprint": state.fingerprint,
    }


def cache_description(store: RecordStore) -> dict[str, Any] | None:
    """The entries that `inspect` adds for a feature cache; None for another store."""
    if not is_cache(store):
        return None
    path = store.path
    state = read_state(path)
    try:
        repeated: int | None = duplicates(store)
    except Damaged:
        repeated = None
    return {
        **state_as_json(state),
        "output": rendered_structure(state.schema),
        "duplicates": repeated,
        "versions": [version.name for version in version_paths(path.parent, id_name(path))],
    }


def show_cache(found: dict[str, Any], now: float, console: Console) -> None:
    """Print a `cache_description`."""
    used = "not used yet"
    if found["hits"] + found["misses"]:
        used = f"{found['hits']:,} hits, {found['misses']:,} misses: {found['hit_rate']:.1%}; "
        used += f"{format_duration(found['seconds_saved'])} of computing saved"
    repeated = found["duplicates"]
    duplicated = "not known: some are damaged" if repeated is None else f"{repeated:,}"
    lines = {
        "Feature cache": found["id"],
        "Output": found["output"],
        "Used": used,
        "Age": f"{format_duration(now - found['created'])}, written {format_duration(now - found['written'])} ago",
        "Duplicates": duplicated + (": the last entry of each key counts" if repeated else ""),
        "Fingerprint": _fingerprint(found["fingerprint"]),
        "Versions": ", ".join(found["versions"]),
    }
    shown = table("", "", "", wrap=True)
    shown.show_header = False
    for name, text in lines.items():
        shown.add_row(Text(name, "bold"), Text(text))
    print_table(shown, console)


def rendered_structure(schema: OutputSchema) -> str:
    """The output of a cached module in one line: `{"y": float32 [3], "names": [Json per sample]}`."""
    return _rendered(schema.structure, "", schema)


def _rendered(node: TreeSpec, path: str, schema: OutputSchema) -> str:
    kind = node["node"]
    if kind == "pickled":
        return "pickled"
    if kind in ("tensor", "ndarray", "values"):
        field = field_text(schema.fields[path or "output"])
        return f"{field}, samples in dimension {node['dim']}" if "dim" in node else field
    if kind == "constant":
        return f"{node['array']['dtype']} {node['array']['shape']} for all" if "array" in node else repr(node["value"])
    if kind == "items":
        return f"[{_rendered(node['item'], path, schema)} per sample]"
    keys = keys_of(node)
    parts = [_rendered(child, below, schema) for below, child in children_of(node, path)]
    if kind in ("namedtuple", "dataclass"):
        inside = ", ".join(f"{key}={part}" for key, part in zip(keys, parts, strict=True))
        return f"{node['type'][1].rsplit('.', 1)[-1]}({inside})"
    if kind == "dict":
        return "{" + ", ".join(f"{json.dumps(key)}: {part}" for key, part in zip(keys, parts, strict=True)) + "}"
    return f"[{', '.join(parts)}]" if kind == "list" else f"({', '.join(parts)})"


def _fingerprint(fingerprint: Fingerprint | None) -> str:
    if fingerprint is None:
        return "none: filled by put_batch alone"
    if "rules" not in fingerprint:
        parts = ", ".join(f"{part} {str(value)[:12]}" for part, value in fingerprint.items() if value)
        return f"by other identity rules: {parts}"
    return f"{digest(fingerprint)}, of {len(fingerprint['facts']):,} facts"
