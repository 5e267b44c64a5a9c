"""jax.jit in fresh processes."""

import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.compiling.programs import SQUARES, START, launch, run
from tests.slow import thinned

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")


@pytest.mark.parametrize(
    "before", thinned(2, ["", "import jax; jax.jit(lambda x: x + 1)(1)\n"]), ids=["init first", "jax first"]
)
def test_a_fresh_process_in_another_place_finds_everything(tmp_path: Path, before: str) -> None:
    first = run(SQUARES, tmp_path / "store", start=before + START)
    assert first.right
    assert first.kept
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "tmp").mkdir()
    second = run(SQUARES, tmp_path / "moved", start=before + START, env={"TMPDIR": str(tmp_path / "tmp")})
    assert second.right
    assert second.hits
    assert second.misses == []


@pytest.mark.slow
def test_a_script_that_ends_without_a_word_keeps_what_it_compiled(tmp_path: Path) -> None:
    process = launch(SQUARES, tmp_path / "store", end="\nimport sys; sys.exit(3)\n")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 3, err
    assert run(SQUARES, tmp_path / "store").misses == []


@pytest.mark.slow
def test_killed_while_it_compiles_the_next_is_right(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    process = launch(SQUARES + "import time; time.sleep(600)\n", folder)
    while not list(folder.glob("live/live-*/jax/*-cache")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    report = run(SQUARES, folder)
    assert report.right
    assert not list((folder / "live").iterdir())
    assert run(SQUARES, folder).misses == []


def test_what_is_compiled_is_kept_while_the_program_runs(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    process = launch(SQUARES + "print('compiled', flush=True); input()\n", folder)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "compiled\n"
    while not (report := run(SQUARES, folder)).hits:
        assert report.right
    process.communicate("\n", timeout=300)
    assert process.returncode == 0
