"""The demo, small but real: the command in its own process, with the three training processes it starts.

It compiles for half a minute, so `make test-demo` runs this file by itself, and `make test-slow` with all others.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.cli.runner import runner
from tests.compiling.programs import sparing

from warmstore.cli import app, demo
from warmstore.demo.demo_run import CacheCounts, DemoRun, call_digits, differences, run_job

IMAGES, EPOCHS = 100, 2


def command(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = sparing({**os.environ, "COLUMNS": str(columns)})
    return subprocess.run(
        [sys.executable, "-m", "warmstore", *arguments], capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]:
    """One real demo: what it printed, its figures and its folder. Processes that share the tests share it."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    said = folder / "demo.json"
    with FileLock(folder / "demo.lock"):
        if not said.exists():
            options = ("--images", str(IMAGES), "--epochs", str(EPOCHS), "--folder", str(folder / "kept"), "--json")
            done = command("demo", *options)
            said.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    code, printed, errors = json.loads(said.read_text())
    assert code == 0, printed + errors
    return subprocess.CompletedProcess(["demo"], code, printed, errors), json.loads(printed), folder / "kept"


@pytest.fixture
def runs(finished: tuple[Any, dict[str, Any], Any]) -> list[DemoRun]:
    return [
        DemoRun(
            name=run["name"],
            start_to_exit=run["start_to_exit"],
            epochs=tuple(run["epochs"]),
            losses=tuple(run["losses"]),
            accuracies=tuple(run["accuracies"]),
            weights=run["weights"],
            compiled=run["compiled"],
            caches=tuple(CacheCounts(**cache) for cache in run["caches"]),
        )
        for run in finished[1]["runs"]
    ]


@pytest.mark.slow
def test_it_prints_every_phase_and_the_verdict(finished: tuple[Any, Any, Any]) -> None:
    printed = finished[0].stderr
    for run in ("no cache", "cold cache", "warm cache"):
        assert f"\n {run} " in printed
        assert f"\n{run}: training for 2 epochs" in printed  # the progress where there is no terminal
    for phase in (
        "profile + plan",
        "decode + resize",
        "frozen features",
        "compile the head",
        "training",
        "start to exit",
    ):
        assert printed.count(f"\n   {phase} ") == 3
    assert "✔ Same result, bit for bit, in all 3 runs" in printed
    assert "\x1b" not in printed
    paths = ("Images and caches are in", "Where the seconds went: warmstore report")
    assert max(len(line) for line in printed.splitlines() if not line.startswith(paths)) <= 80
    assert printed.startswith("One training job")  # and nothing else is on stderr


@pytest.mark.slow
def test_every_image_is_computed_once_and_then_found(finished: tuple[Any, dict[str, Any], Any]) -> None:
    uncached, cold, warm = finished[1]["runs"]
    assert uncached["caches"] == []
    for cache in cold["caches"][:2]:
        assert (cache["entries"], cache["hits"], cache["misses"]) == (IMAGES, IMAGES * (EPOCHS - 1), IMAGES)
    assert (cold["epochs"][0]["plan"] > 0, uncached["epochs"][0].get("plan")) == (True, None)
    for cache in warm["caches"][:2]:
        assert (cache["entries"], cache["hits"], cache["misses"]) == (IMAGES, IMAGES * EPOCHS, 0)
        assert cache["bytes"] > 0


@pytest.mark.slow
def test_the_head_is_compiled_once_and_then_found(finished: tuple[Any, dict[str, Any], Any]) -> None:
    uncached, cold, warm = finished[1]["runs"]
    assert all(run["compiled"] for run in (uncached, cold, warm))
    made, found = cold["caches"][2], warm["caches"][2]
    assert made["misses"] > 0
    assert found["hits"] > 0
    assert found["misses"] == 0
    assert found["entries"] == made["entries"] > 0
    assert warm["epochs"][0]["compile"] < cold["epochs"][0]["compile"]


@pytest.mark.slow
def test_without_a_compiler_the_head_is_as_it_is(tmp_path: Path) -> None:
    call_digits(["prepare", str(tmp_path / "images"), "--count", "20"])
    arguments = [str(tmp_path / "images"), "--epochs", "1", "--caches", str(tmp_path / "caches")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        run = run_job("cold cache", arguments, lambda message: None)
    assert not run.compiled
    assert len(run.losses) == 1


@pytest.mark.slow
def test_the_figures_agree_with_the_verdict(finished: tuple[Any, dict[str, Any], Any]) -> None:
    figures = finished[1]
    assert figures["identical"] is True
    assert len({tuple(run["losses"]) for run in figures["runs"]}) == 1
    assert all(len(run["epochs"]) == EPOCHS for run in figures["runs"])
    assert len(figures["runs"][0]["losses"]) == 2 * EPOCHS  # 80 images to train on, 64 a batch


@pytest.mark.slow
def test_a_given_folder_is_kept(finished: tuple[Any, Any, Path]) -> None:
    (kept,) = finished[2].iterdir()
    assert len(list((kept / "images").glob("*.png"))) == IMAGES
    assert any((kept / "caches").iterdir())


@pytest.mark.slow
def test_one_changed_bit_of_one_loss_is_found(runs: list[DemoRun]) -> None:
    assert differences(runs) == []
    losses = list(runs[2].losses)
    digit = losses[2].index("p") - 8
    losses[2] = losses[2][:digit] + ("1" if losses[2][digit] != "1" else "2") + losses[2][digit + 1 :]
    (found,) = differences([*runs[:2], replace(runs[2], losses=tuple(losses))])
    assert "loss 3 of 4" in found
    assert losses[2] in found


@pytest.mark.slow
def test_a_missing_loss_and_other_weights_are_found(runs: list[DemoRun]) -> None:
    short = replace(runs[1], losses=runs[1].losses[:-1], weights="0" * 64)
    found = differences([runs[0], short, runs[2]])
    assert [line.split(":")[0] for line in found] == ["loss", "weights"]


@pytest.mark.slow
def test_the_command_fails_when_a_run_differs(runs: list[DemoRun], monkeypatch: pytest.MonkeyPatch) -> None:
    tampered = replace(runs[2], losses=("0x1.8p+0", *runs[2].losses[1:]))
    monkeypatch.setattr(demo, "run_all", lambda *arguments: [*runs[:2], tampered])
    done = runner().invoke(app, ["demo"])
    assert done.exit_code == 1
    assert "NOT the same result" in done.output
    assert "loss 1 of 4" in done.output
    assert "0x1.8p+0 with warm cache" in " ".join(done.output.split())


@pytest.mark.slow
def test_a_failing_job_shows_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Sequence[DemoRun]:
        return [run_job("no cache", [str(tmp_path)], lambda message: None)]

    monkeypatch.setattr(demo, "run_all", fail)
    done = runner().invoke(app, ["demo"])
    assert done.exit_code == 1
    assert "Traceback" in done.stderr
    assert f"no PNG files in {tmp_path}" in done.stderr


def test_missing_extras_are_named_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = runner().invoke(app, ["demo"])
    assert done.exit_code == 1
    missing = "PyTorch and scikit-learn and Pillow and BLAKE3"
    assert done.stderr == f"Error: the demo needs {missing}: pip install 'warmstore[demo]'\n"


def test_the_shell_is_light() -> None:
    program = "import sys, warmstore.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert command("--version").stdout.startswith("warmstore ")
    assert "demo" in command("--help").stdout
