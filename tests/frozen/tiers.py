"""Writes specimens of disk tiers in the present format: `python -m tests.frozen.tiers`, once per format."""

import shutil
import tempfile
from pathlib import Path

from tests.frozen.specimens import PIPELINES, plan_for

from warmstore.pipeline.tiers.tier_about import FORMAT

HERE = Path(__file__).parent
NAMES = ("words", "images", "uneven")
"""The pipelines of `PIPELINES` whose samples have the same keys on every machine."""


def tier_of(version: int, name: str) -> Path:
    """The frozen folder that was given to a pipeline's plan."""
    return HERE / f"tiers-{version}" / name


def write(target: Path) -> None:
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            pipe = PIPELINES[name]()
            with pipe.loader(plan_for(name, pipe, Path(folder) / name), 4, workers=0) as loader:
                list(loader)
            for path in Path(folder).rglob("*.lock"):
                path.unlink()
            shutil.copytree(Path(folder) / name, target / name)


if __name__ == "__main__":
    made = HERE / f"tiers-{FORMAT}"
    made.mkdir()  # what was frozen stays as it is
    write(made)
    print(f"{made}: {sum(path.stat().st_size for path in made.rglob('*') if path.is_file()):,} bytes")
