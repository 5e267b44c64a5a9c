"""Writes specimens of what lies at a remote, in the present formats: `python -m tests.frozen.remotes`, once per format.

A record store that was pushed twice, a feature cache of nine hosts whose log was folded, with one part more behind the
fold, and the disk tiers of a pipeline.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from tests.frozen.make import CACHE, FINGERPRINT, IDS, KINDS, Story, opened_cache, put, start
from tests.frozen.specimens import PIPELINES, plan_for

from warmstore.remote import segment_log
from warmstore.replicate.parts import FORMAT

HERE = Path(__file__).parent
TIERS = "words"
"""The pipeline whose tiers are there."""


def remote_of(version: int) -> Path:
    """The frozen folder that was pushed to."""
    return HERE / f"remote-{version}"


def store(folder: Path, remote: Path) -> Story:
    """Records that were pushed, edited and pushed again."""
    story = start(folder, KINDS)
    story.extend(range(6))
    story.store.push(remote)
    story.update([1, 4], [11, 14], "points", "text")
    story.delete([0])
    story.extend(range(6, 8))
    story.store.push(remote)
    return story.close()


def caches(folder: Path, remote: Path) -> None:
    """Hosts that pushed one sample each, under one name."""
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(segment_log, "_PACKED", 300)  # bytes of a head before the next one is begun
        for at in range(len(IDS)):
            with opened_cache(folder / f"host {at}") as cache:
                cache._bind(FINGERPRINT)
                put(cache, [at])
                cache.push(remote)


def tiers(folder: Path, remote: Path) -> None:
    pipe = PIPELINES[TIERS]()
    plan = plan_for(TIERS, pipe, folder)
    pipe.fill(plan, workers=0, progress=False)
    pipe.push(remote, plan)


def write(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store(folder / "store", target / "store")
        caches(folder / CACHE, target)
        tiers(folder / "tiers", target / "tiers")


if __name__ == "__main__":
    made = remote_of(FORMAT)
    made.mkdir()  # what was frozen stays as it is
    write(made)
    for empty in [path for path in made.rglob("*") if path.is_dir() and not any(path.iterdir())]:
        shutil.rmtree(empty)
    print(f"{made}: {sum(path.stat().st_size for path in made.rglob('*') if path.is_file()):,} bytes")
