"""Two loaders with worker processes at once: those of the second are forked while the first has its own."""

import sys

from tests import warm

CODE = """
from contextlib import closing

import numpy as np

import warmstore as ws

pipe = ws.Pipeline(range(100)).step(np.asarray)


def loader():
    return closing(pipe.loader(batch_size=16, workers=1, start_method="fork"))


with loader() as one, loader() as other:
    for _ in range(2):
        for each in (one, other):
            assert sum(map(len, each)) == 100
"""


def test_the_workers_of_one_live_on_when_those_of_another_are_forked() -> None:
    done = warm.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
