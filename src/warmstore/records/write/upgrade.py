"""The upgrade of a store to the current format, before its first write. It also creates missing copies of files."""

from dataclasses import replace
from pathlib import Path

from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import FORMAT, is_damaged, read_manifest, write_manifest
from warmstore.records.write.edit_lock import edit_lock
from warmstore.storage.files import Files


def upgrade(path: Path, files: Files, *, wait: bool = True) -> bool:
    """Upgrade a store to the current format, and restore a damaged store.json. Rows are not rewritten.

    Args:
        wait: for the edit lock. Without it the result is False if another process holds the lock.
    """
    if read_manifest(path, files).format >= FORMAT and not is_damaged(path, files):
        return True
    with edit_lock(path, files, wait=wait) as held:
        if held:
            manifest = read_manifest(path, files)
            with open_log(path, manifest, files, write=True) as log:
                log.mend_copy()
            # No earlier version can read what is written from here on.
            write_manifest(path, replace(manifest, format=FORMAT), files)
        return held
