"""One run of the demo's job in its own process, and the comparison of several runs.

Losses are sent as hexadecimal floats, which are exact. Two runs are equal if the losses of all steps, all test
accuracies and the hash of the trained weights are equal.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PHASES = {
    "plan": "profile + plan",
    "decode": "decode + resize",
    "features": "frozen features",
    "compile": "compile the head",
    "training": "training",
}

ENVIRONMENT = {
    # By default, rounding in MKL may depend on the alignment of an array.
    "MKL_CBWR": "COMPATIBLE",
    "MKL_DYNAMIC": "FALSE",
    # Spinning threads make the encoder up to ten times slower on a busy machine, which would exaggerate the speedup.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Testing the compiler and precompiling headers take far longer than compiling the head.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


@dataclass(frozen=True)
class CacheCounts:
    """One cache after a run: entries and bytes on disk, and the hits and misses of this run."""

    name: str
    entries: int
    bytes: int
    hits: int
    misses: int


@dataclass(frozen=True)
class DemoRun:
    """Seconds and results (hexadecimal floats, a SHA-256) of one run, and whether its head was compiled."""

    name: str
    start_to_exit: float
    epochs: tuple[dict[str, float], ...]
    losses: tuple[str, ...]
    accuracies: tuple[str, ...]
    weights: str
    compiled: bool
    caches: tuple[CacheCounts, ...]

    @property
    def seconds(self) -> float:
        return sum(sum(phases.values()) for phases in self.epochs)


def run_job(name: str, arguments: Sequence[str], listen: Callable[[dict[str, Any]], None]) -> DemoRun:
    """Run `python -m warmstore.demo.digits train` to its end; `listen` gets each of its messages.

    Raises `subprocess.CalledProcessError`, with what the job wrote to stderr, if it fails.
    """
    start = time.perf_counter()
    epochs: list[dict[str, float]] = []
    result: dict[str, Any] = {}

    def read(line: str) -> None:
        message = json.loads(line)
        if message["kind"] == "epoch":
            epochs.append(message["seconds"])
        elif message["kind"] == "result":
            result.update(message)
        listen(message)

    call_digits(["train", *arguments], read)
    return DemoRun(
        name=name,
        start_to_exit=time.perf_counter() - start,
        epochs=tuple(epochs),
        losses=tuple(result["losses"]),
        accuracies=tuple(result["accuracies"]),
        weights=result["weights"],
        compiled=bool(result["compiled"]),
        caches=tuple(CacheCounts(**cache) for cache in result["caches"]),
    )


def call_digits(arguments: Sequence[str], read: Callable[[str], None] = lambda line: None) -> None:
    """Call `warmstore.demo.digits` in a fresh process, and pass each line of its stdout to `read`."""
    command = [sys.executable, "-m", "warmstore.demo.digits", *arguments]
    environment = {**os.environ, **ENVIRONMENT}
    # stderr goes to a file: a second pipe without a reader could fill up and block the job.
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    read(line)
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        written = errors.read()
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=written)
    sys.stderr.write(written)  # warnings


def differences(runs: Sequence[DemoRun]) -> list[str]:
    """The differences of the results from those of the first run; empty if all are equal bit for bit."""
    found = []
    first = runs[0]
    for run in runs[1:]:
        for what, expected, actual in (
            ("loss", first.losses, run.losses),
            ("test accuracy", first.accuracies, run.accuracies),
            ("weights", (first.weights[:16],), (run.weights[:16],)),
        ):
            if len(expected) != len(actual):
                found.append(f"{what}: {len(expected)} of {first.name}, {len(actual)} of {run.name}")
            unequal = [i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b]
            if unequal:
                i = unequal[0]
                where = f"{what} {i + 1} of {len(expected)}" if len(expected) > 1 else what
                more = f", and {len(unequal) - 1} more" if len(unequal) > 1 else ""
                found.append(f"{where}: {expected[i]} with {first.name}, {actual[i]} with {run.name}{more}")
    return found
