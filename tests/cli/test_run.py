"""`warmstore run`, and `warmstore compiled warmup` and `doctor`."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
import jax
x = jax.numpy.arange(10.0)
assert jax.jit(lambda x: jax.numpy.cumsum(x * x))(x)[9] == 285
assert os.environ["JAX_COMPILATION_CACHE_DIR"].startswith(sys.argv[1])
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if find_spec("jax") is None:
        pytest.skip("needs jax")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def warmstore(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "warmstore", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


def test_a_program_runs_unchanged_and_its_job_is_remembered(program: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("print('hidden, and run')")
    path = os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])
    run = ("run", "--job", "squares", "--dir", store, "--", sys.executable, program, store)
    first = warmstore(*run, 0, PYTHONPATH=path)
    assert (first.returncode, first.stdout) == (0, "hidden, and run\n" * 2), first.stderr
    ready = warmstore("compiled", "warmup", "squares", "--dir", store)
    assert ready.returncode == 0
    assert "squares: " in ready.stdout
    second = warmstore(*run, 3)
    assert second.returncode == 3, second.stderr
    report = warmstore("compiled", "doctor", "--dir", store, COLUMNS="200")
    assert report.returncode == 0, report.stdout
    assert "last run of squares" in report.stdout


def test_an_unknown_job_is_not_ready(tmp_path: Path) -> None:
    done = warmstore("compiled", "warmup", "nobody", "--dir", tmp_path / "store")
    assert (done.returncode, done.stdout) == (1, "nobody: 0 of 0 ready\n")


@pytest.mark.parametrize(("options", "profile"), [((), "portable"), (("--profile", "fast"), "fast")])
def test_the_profile_of_the_environment_holds_without_the_option(options: tuple[str, ...], profile: str) -> None:
    program = "import os; print(os.environ['WARMSTORE_PROFILE'])"
    done = warmstore("run", *options, "--", sys.executable, "-c", program, WARMSTORE_PROFILE="portable")
    assert (done.returncode, done.stdout) == (0, f"{profile}\n"), done.stderr


def test_the_cache_lies_in_the_home_folder_as_for_other_commands(tmp_path: Path) -> None:
    program = "import os; print(os.environ['WARMSTORE_CACHE_DIR'])"
    done = warmstore("run", "--dir=~/cache", "--", sys.executable, "-c", program, HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'cache'}\n"), done.stderr


def test_commands_run_with_stdout_closed(tmp_path: Path) -> None:
    for command in (["ls", tmp_path], ["run", "--", "true"]):
        line = shlex.join([sys.executable, "-m", "warmstore", *map(str, command)])
        done = subprocess.run(["sh", "-c", f"{line} >&-"], stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_bad_settings_are_told_before_anything_runs(tmp_path: Path) -> None:
    done = warmstore("run", "--profile", "quick", "--", "touch", tmp_path / "ran")
    assert done.returncode == 2
    assert "--profile 'quick' is not known" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o777)
    store.chmod(0o777)
    done = warmstore("compiled", "doctor", "--dir", store, COLUMNS="300", PATH="/nowhere", CXX="no-compiler")
    assert done.returncode == 1
    assert "chmod go-w" in done.stdout
    assert "no g++" in done.stdout
