"""`warmstore store`: make, show, check, mend, export and share record stores. Feature caches are stores too."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from warmstore.cli import replicas
from warmstore.cli.command_group import noun
from warmstore.cli.options import Json, Progress
from warmstore.cli.tables import answer, console, echo, print_json
from warmstore.converting.known_formats import OF_FILES
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.humanize import format_size

Fields = Annotated[
    list[str] | None,
    typer.Option("--field", "-f", metavar="NAME", help="Take this field only; repeatable.", show_default="all"),
]

app = noun("Make, show, check, export and share record stores.")


@app.command()
def convert(
    source: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files, a folder, or patterns such as 'train-{000..099}.tar'.")
    ],
    store: Annotated[Path, typer.Argument(help="The new store's folder. An interrupted run is resumed.")],
    format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help=f"One of {', '.join(OF_FILES)}.", show_default="by the files' names"),
    ] = None,
    field: Fields = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode images to uint8, height x width x 3.")] = False,
    size: Annotated[
        str | None, typer.Option(metavar="HxW", help='Resize decoded images to this, such as "224x224".')
    ] = None,
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Make a store from files in another format."""
    from warmstore.converting.conversion import convert as convert_records

    paths: Any = source if len(source) > 1 else source[0]
    made = convert_records(
        paths, store, format=format, fields=field, decode=decode, size=_pixels(size), progress=progress
    )
    with made:
        records, taken = len(made), allocated_bytes(store)
    data = {"path": str(store), "records": records, "bytes": taken}
    answer(data, f"{store}: {records:,} records, {format_size(taken)}", as_json=as_json)


@app.command()
def export(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    target: Annotated[Path, typer.Argument(help="A .npy, .arrow or .parquet file, or a folder of .npy files.")],
    format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="npy, arrow or parquet.", show_default="by the target's name")
    ] = None,
    field: Fields = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file, or a folder of .npy files alone.")
    ] = False,
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Write a store's records to files that other programs read."""
    from warmstore.converting.export import export as export_records

    made = export_records(store, target, format=format, fields=field, overwrite=overwrite, progress=progress)
    taken = allocated_bytes(made)
    answer({"path": str(made), "bytes": taken}, f"{made}: {format_size(taken)}", as_json=as_json)


@app.command()
def inspect(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    samples: Annotated[int, typer.Option(min=0, help="How many of the first records to show.")] = 3,
    as_json: Json = False,
) -> None:
    """Show fields, chunks, bytes, writers and the first records of a store or cache."""
    from warmstore.cli.store_view import description, show

    found = description(store, samples)
    if as_json:
        print_json(found)
    else:
        show(found, console())


@app.command()
def verify(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Restore files from their copies; make other damaged values absent, and keep the rest."
        ),
    ] = False,
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Check every record against its checksums. Exits with 1 if damage is found and not repaired."""
    from warmstore.cli.store_view import repairs
    from warmstore.errors import Damaged
    from warmstore.replicate.record_store import RecordStore

    try:
        opened, refusal = RecordStore.open(store), None
    except Damaged as error:
        opened, refusal = RecordStore.open(store, salvage=True), error
    with opened:
        report = opened.verify(progress=progress)
    whole = report.ok and refusal is None
    lines = [f"{store}: {str(report).replace('repair=True', '--repair')}"]
    if refusal is not None:
        lines.append(f"  it opens only with salvage=True, without the edits that are not applied: {refusal}")
    if not whole and not repair:
        lines.append("  warmstore store verify --repair repairs what can be repaired")
    if not as_json:
        echo("\n".join(lines))
    done: list[str] = []
    if not whole and repair:
        with RecordStore.open(store, "a", salvage=True) as opened:
            repaired = opened.verify(repair=True, progress=progress)
        done = repairs(report, repaired)
    if as_json:
        found = {"path": str(store), "ok": report.ok, **asdict(report), "opens": refusal is None}
        print_json({**found, "repaired": bool(done), "repairs": done})
    else:
        for line in done:
            echo(f"  {line}")
    if not whole and not repair:
        raise typer.Exit(1)


@app.command()
def seal(store: Annotated[Path, typer.Argument(help="The store's folder.")], as_json: Json = False) -> None:
    """Write the missing footers of chunks from dead writers, so that any Arrow reader can open them."""
    from warmstore.records.maintenance.sealing import seal_abandoned
    from warmstore.replicate.record_store import RecordStore

    with RecordStore.open(store, "a") as opened:
        result = seal_abandoned(opened)
    count = len(result.sealed)
    lines = [f"{store}: {count} chunk{'' if count == 1 else 's'} sealed"]
    lines += [
        f"  {name} is being written; its writer seals it when it closes the store" for name in result.being_written
    ]
    answer({"path": str(store), **asdict(result)}, "\n".join(lines), as_json=as_json)
    for name in result.refused:
        echo(f"  {name} cannot be sealed; warmstore store rebalance rewrites its records", err=True)
    if result.refused:
        raise typer.Exit(1)


@app.command()
def rebalance(
    store: Annotated[Path, typer.Argument(help="The store's folder.")], progress: Progress = None, as_json: Json = False
) -> None:
    """Rewrite a store's live records densely, and free the bytes of updated and deleted ones.

    Of each sample of a cache the last record stays.
    """
    from warmstore.features.cache_inspection import rebalance_folder

    done = rebalance_folder(store, progress=progress)
    answer({"path": str(store), **asdict(done)}, f"{store}: {done}", as_json=as_json)


for command in (replicas.push, replicas.pull, replicas.sync):
    app.command()(command)


def _pixels(size: str | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, _, width = size.lower().partition("x")
    if not height.isdigit() or not (width or height).isdigit():
        raise ValueError(f'--size is {size!r}; it must be pixels, such as "224" or "224x320" (height x width)')
    return int(height), int(width or height)
