"""Atomic replacement of a file: readers see the old content or the new content, never a part of either.

The new content is written to a draft beside the file, and the draft is renamed over it. A kill in between leaves the
old file and a draft. An error removes the draft.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from warmstore.storage.files import PLAIN, Files, write_whole


@contextlib.contextmanager
def draft_of(path: Path, *, draft: Path | None = None, files: Files = PLAIN) -> Iterator[Path]:
    """Yield the path of a draft, which the block writes. If the block ends without an error, the draft replaces `path`.

    Nothing is fsynced.

    Args:
        draft: its path, on the file system of `path`, for callers that find the draft of a killed process by its name.
            By default a new name beside `path`, "NAME.<8 hexadecimal digits>.tmp".
    """
    if draft is None:
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield draft
        files.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(draft)
        raise


def replace_file(path: Path, data: bytes, *, durable: bool, draft: Path | None = None, files: Files = PLAIN) -> None:
    """Replace the content of a file, or create it. Its folder must exist.

    Args:
        durable: fsync the draft before the rename and the folder after it, so that the new content survives a power
            failure once this returns. Without it a power failure may leave an empty file, which is fine for content
            that is checked when it is read and can be computed again.
        draft: As `draft_of` takes it.
    """
    with draft_of(path, draft=draft, files=files) as draft:
        write_whole(files, draft, data, sync=durable)
    if durable:
        files.sync_folder(path.parent)
