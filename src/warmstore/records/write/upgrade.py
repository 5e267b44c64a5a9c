"""What a writer does to a store before it writes: it becomes one of the present format, with every copy in place."""

from dataclasses import replace
from pathlib import Path

from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import FORMAT, is_damaged, read_manifest, write_manifest
from warmstore.records.write.edit_lock import edit_lock
from warmstore.storage.files import Files


def upgrade(path: Path, files: Files, *, wait: bool = True) -> bool:
    """Have a store be of the present format, and store.json be whole. Nothing that stands in it is written anew.

    Args:
        wait: for somebody who edits the store; without, False says that there is one.
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
