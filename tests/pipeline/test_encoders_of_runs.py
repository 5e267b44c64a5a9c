"""Encoders over several runs of a program, each in a process of its own: found again, edited, left out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm

PROGRAM = """
import json
import sys
import warnings
from pathlib import Path

import numpy as np

import warmstore as ws
from tests.pipeline.making import plan_of
from tests.slow import thinned

SCALE = {scale}


class Track:
    def __init__(self, sound):
        self.sound = sound


def encode(track):
    return [track.sound * SCALE]


def decode(parts):
    return Track({decoded})


def compute(index):
    print("COMPUTED", file=sys.stderr, flush=True)
    made = Track(np.arange(index, index + 4.0))
    return made if {is_alike} or index % 2 else [made, index]


def look(value):
    track = value[0] if isinstance(value, list) else value
    return track.sound * 1000


if {is_registered}:
    ws.register_encoder(Track, encode, decode)

if __name__ == "__main__":
    pipe = ws.Pipeline(range(8)).step(compute, version="1").step(look)
    plan = plan_of(pipe, [(1, "disk", "raw")], [8], folder=Path("cache"))
    with (
        warnings.catch_warnings(record=True) as caught,
        pipe.loader(plan, 8, workers=2, start_method="{method}") as loader,
    ):
        warnings.simplefilter("always")
        first, second = (np.concatenate(list(loader)) for _ in range(2))
    wanted = np.arange(8.0)[:, None] + np.arange(4.0)
    right = all(np.array_equal(np.sort(each, axis=0), wanted * 1000) for each in (first, second))
    notes = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    print(json.dumps([right, notes]))
"""


def run(
    folder: Path, *, scale: int = 1, decoded: str = "parts[0] / SCALE", fresh: bool = False, **options: Any
) -> tuple[bool, int, Any]:
    """Run two epochs of the program: whether its batches are right, how often it computed a sample, and its notes.

    fresh: in an interpreter of its own, with another seed of hashes.
    """
    given = {"is_alike": True, "is_registered": True, "method": "fork", **options}
    path = folder / "program.py"
    path.write_text(PROGRAM.format(scale=scale, decoded=decoded, **given))
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(folder)}
    command = [sys.executable, str(path)]
    done = (subprocess.run if fresh else warm.run)(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    right, notes = json.loads(done.stdout.splitlines()[-1])
    return right, done.stderr.split().count("COMPUTED"), notes


@pytest.mark.slow
@pytest.mark.parametrize(("is_alike", "method"), [(True, "fork"), (False, "fork"), (False, "spawn")])
def test_kept_samples_are_those_of_the_encoder_of_now(tmp_path: Path, is_alike: bool, method: str) -> None:
    kinds: dict[str, Any] = {"is_alike": is_alike, "method": method}
    right, computed, notes = run(tmp_path, **kinds)
    assert (right, notes) == (True, [])
    assert 8 <= computed <= 16  # and the examples of a new store
    assert run(tmp_path, fresh=is_alike, **kinds) == (True, 0, [])  # found again
    for edit in ({"scale": 2}, {"scale": 2, "decoded": "parts[0] * (1 / SCALE)"}):  # a global, and code
        right, computed, _ = run(tmp_path, **edit, **kinds)
        assert right
        assert 8 <= computed <= 16
        assert run(tmp_path, **edit, **kinds) == (True, 0, [])


def test_samples_of_an_encoder_that_is_not_registered_are_computed(tmp_path: Path) -> None:
    run(tmp_path)
    right, computed, notes = run(tmp_path, is_registered=False)
    assert right
    assert computed >= 16
    assert "Track" in notes[0]
    assert "cannot be stored" in notes[0]
