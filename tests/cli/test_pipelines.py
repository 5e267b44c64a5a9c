from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmstore.cli import app

CODE = """
import time

import numpy as np

import warmstore as ws


def work(value):
    until = time.process_time() + 0.002
    while time.process_time() < until:
        pass
    return np.full(100, value)


pipeline = ws.Pipeline(range(40)).step(work)


def made():
    return pipeline


number = 3
"""


def test_an_error_of_the_module_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_under_test.py").write_text("import numpy\npipeline = numpy.not_there()")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(app, ["plan", "broken_under_test:pipeline"])
    assert isinstance(done.exception, AttributeError)
    assert "not_there" in str(done.exception)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"trained_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("name", ["pipeline", pytest.param("made", marks=pytest.mark.slow)])
def test_a_plan_is_printed_and_drawn(module: str, name: str, tmp_path: Path) -> None:
    told = ["--memory", "100MB", "--workers", "0", "--seconds", "0.5", "--plot", "plan.png"]
    done = CliRunner().invoke(app, ["plan", f"{module}:{name}", *told], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    assert "1 work" in done.output
    assert "in memory" in done.output
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"
    assert len(list((tmp_path / "cache").glob("profile-*.json"))) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{}", "must be MODULE:NAME"),
        ("{}:missing", "has no 'missing'"),
        ("nowhere_to_be_found:x", "no module 'nowhere_to_be_found'"),
        ("{}:number", "is a int"),
    ],
)
def test_what_is_no_pipeline_is_named(module: str, name: str, says: str) -> None:
    done = CliRunner().invoke(app, ["plan", name.format(module)])
    assert done.exit_code == 1
    assert says in done.output
    assert "Traceback" not in done.output
