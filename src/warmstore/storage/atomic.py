"""Atomic replacement of a file: readers see the old or the new content, and never a part.

The new content is written to a draft, which is renamed over the file. A kill in between leaves the old file and a
draft. An error removes the draft.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from warmstore.storage.files import PLAIN, Files, write_whole


@contextlib.contextmanager
def draft_of(path: Path, *, draft: Path | None = None, files: Files = PLAIN) -> Iterator[Path]:
    """Yield the path of a draft, which the block writes. If the block ends without an error, the draft replaces `path`.

    Nothing is fsynced. `draft`: the path of the draft, on the file system of `path`, for callers that look for drafts
    of killed processes. Default: "NAME.<8 hexadecimal digits>.tmp" beside `path`.
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
            failure. Otherwise a power failure may leave an empty file, which content that is checked can tolerate.
        draft: As for `draft_of`.
    """
    with draft_of(path, draft=draft, files=files) as draft:
        write_whole(files, draft, data, sync=durable)
    if durable:
        files.sync_folder(path.parent)
