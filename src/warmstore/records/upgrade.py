"""What a writer does to a store before it writes: it becomes one of the present format, with every copy in place."""

from dataclasses import replace
from pathlib import Path

from warmstore.records.checksums import generation_seed
from warmstore.records.edit_lock import edit_lock
from warmstore.records.files import Files
from warmstore.records.log import Log
from warmstore.records.manifest import FORMAT, is_damaged, read_manifest, write_manifest


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
            seed = generation_seed(manifest.id, manifest.generation)
            log = Log(path / manifest.generation_folder / "log", files, seed, write=True)
            try:
                log.mend_copy()
            finally:
                log.close()
            # No earlier version can read what is written from here on.
            write_manifest(path, replace(manifest, format=FORMAT), files)
        return held
