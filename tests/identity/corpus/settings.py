"""Settings of a training run, read as `settings.NAME` by other modules."""

import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import SimpleNamespace

SIZE = 6
SCALE = 0.5
OFFSETS = [0.1, 0.2, 0.3]
BATCH_SIZE = 32
SEED = int(os.environ.get("TRAINING_SEED", "1"))
AUGMENT = {"flip": True, "noise": {"std": 0.05, "clip": 3.0}}
OPTIMIZER = SimpleNamespace(name="sgd", rate=0.1, momentum=SimpleNamespace(value=0.9, nesterov=False))
ROOT = PurePosixPath("/data/pictures")


@dataclass(frozen=True)
class Schedule:
    steps: tuple = (3, 6)
    decay: float = 0.1
    warmup: int = 2

    def factor(self, step):
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.decay ** sum(step >= at for at in self.steps)


SCHEDULE = Schedule()


def scaled(value):
    return value * SCALE
