"""`warmstore report`: one page of what is cached, and where the seconds of earlier runs went."""

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

from warmstore.cli.across import Folders
from warmstore.cli.options import Json
from warmstore.cli.tables import answer
from warmstore.storage.humanize import format_size


def report(
    folder: Folders = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", dir_okay=False, help="The page. An existing file is replaced, a pipe is written to."
        ),
    ] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page that shows where the seconds went, hit rates, space on the disk, plans, misses and refusals."""
    from warmstore.report.page import page
    from warmstore.report.report_data import collect
    from warmstore.storage.atomic import replace_file

    file = Path(os.path.realpath(output))  # a link stays, such as /dev/stdout where it is that of a file
    is_stream = output.exists() and not output.is_file()
    if not is_stream and not file.parent.is_dir():
        why = "there is no such folder for the page; make it first"
        raise FileNotFoundError(errno.ENOENT, why, str(file.parent))
    data = collect(folder or ())
    content = page(data).encode()
    if is_stream:
        output.write_bytes(content)  # a pipe or a device, which other programs have too
    else:
        replace_file(file, content, durable=False)
    text = (
        f"{output}: {format_size(len(content))}, with {len(data.caches):,} caches that have a history and "
        f"{len(data.folders):,} folders on the disk"
    )
    figures = {"caches": len(data.caches), "folders": len(data.folders)}
    answer({"path": str(output), "bytes": len(content), **figures}, text, as_json=as_json)
