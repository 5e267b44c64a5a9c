"""What must hold of training runs, whatever the trainer."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.compiling.programs import run_to_end
from tests.interop.ranks import EPOCHS, PHASES, VALIDATION, Run
from tests.slow import is_long

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "KERAS_BACKEND": "torch",
    "TOKENIZERS_PARALLELISM": "false",
}


def run_loop(name: str, folder: Path) -> Path:
    """The runs of `loops/NAME.py`, or some of them in the short run; what they have seen is in the folder then."""
    command = [sys.executable, "-m", "tests.interop.ranks", name, str(folder), "long" if is_long() else "short"]
    done = run_to_end(command, env=ENVIRONMENT, cwd=folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return folder


def runs_of(folder: Path, way: str, world: int) -> dict[str, list[Run]]:
    """What every rank has seen, by phase."""
    return {phase: [run_of(folder, way, world, phase, rank) for rank in range(world)] for phase in PHASES}


def run_of(folder: Path, way: str, world: int, phase: str, rank: int) -> Run:
    """What one rank of a run has seen. A test of a run that only the long run of tests has is skipped."""
    path = Run.path(folder, way, world, phase, rank)
    if not path.exists() and not is_long():
        pytest.skip("a long loop; run with --slow")
    return Run(**json.loads(path.read_text()), folder=folder)


def check(folder: Path, way: str, world: int, *, shared: bool = False) -> None:
    """Every sample once an epoch, over all ranks, in another order each time, and the same after a resume.

    Args:
        folder, way, world: which runs.
        shared: the trainer shards: every rank has noted what all ranks together had. Which rows it repeats, and so the
            weights, depends on where it was resumed.
    """
    runs = runs_of(folder, way, world)
    if shared:
        runs = {phase: ranks[:1] for phase, ranks in runs.items()}
    whole, stopped, resumed = (runs[phase] for phase in PHASES)
    for ranks in zip(whole, stopped, resumed, strict=True):
        _check_resume(*ranks, exact=not shared)
    for rank in whole:
        assert [epoch for epoch, _, _ in rank.train] == [epoch for epoch in range(EPOCHS) for _ in range(rank.steps)]
    epochs = [[numbers(rank, epoch) for rank in whole] for epoch in range(EPOCHS)]
    for epoch in epochs:
        assert sorted(number for rank in epoch for number in rank) == list(range(whole[0].samples))
    for epoch in range(1, EPOCHS):
        assert epochs[epoch] != epochs[epoch - 1]
    for phase, count in (("whole", EPOCHS), ("stopped", 1), ("resumed", EPOCHS - 1)):
        if whole[0].extra or phase == "whole":  # a trainer may validate the first epoch before or after a checkpoint
            check_validations([rank.validations for rank in runs[phase]], count)


def _check_resume(whole: Run, stopped: Run, resumed: Run, exact: bool) -> None:
    """The checkpoint is in the middle of an epoch, and what follows is what follows in a run that was not stopped."""
    assert stopped.checkpoint == stopped.middle
    assert len(stopped.train) == stopped.middle + 1
    assert stopped.train == whole.train[: stopped.middle + 1]
    assert resumed.train == whole.train[stopped.middle :]
    if exact:
        assert resumed.weights == whole.weights != []


def check_validations(ranks: list[list[list[int]]], count: int) -> None:
    """Every pass sees every sample once."""
    for passes in ranks:
        assert len(passes) == count
    for at in range(count):
        assert sorted(number for passes in ranks for number in passes[at]) == list(range(VALIDATION))


def numbers(run: Run, epoch: int) -> list[int]:
    """What one rank has seen of an epoch, without repeated rows."""
    return [number for at, batch, _ in run.train if at == epoch for number in batch]
