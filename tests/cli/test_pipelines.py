import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.runner import runner
from tests.cli.test_features import run
from tests.pipeline.making import plan_of
from tests.slow import thinned

import warmstore as ws
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
    done = runner().invoke(app, ["pipelines", "plan", "broken_under_test:pipeline"])
    assert isinstance(done.exception, AttributeError)
    assert "not_there" in str(done.exception)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"trained_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("name", thinned(2, ["pipeline", pytest.param("made", marks=pytest.mark.slow)]))
def test_a_plan_is_printed_and_drawn(module: str, name: str, tmp_path: Path) -> None:
    told = ["--memory", "100MB", "--workers", "0", "--seconds", "0.5", "--plot", "plan.png"]
    done = runner().invoke(app, ["pipelines", "plan", f"{module}:{name}", *told], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    assert "1 work" in done.output
    assert "in memory" in done.output
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"
    assert len(list((tmp_path / "cache").glob("profile-*.json"))) == 1


def test_the_folder_of_a_plan_is_no_markup(module: str) -> None:
    told = ["--disk", "100MB", "--folder", "runs[/b]", "--workers", "0", "--seconds", "0.1"]
    done = runner().invoke(app, ["pipelines", "plan", f"{module}:pipeline", *told], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    assert "runs[/b]." in done.output


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{}", "must be MODULE:NAME"),
        ("./{}.py:pipeline", "must be MODULE:NAME, such as train:pipeline, with the module as it is imported"),
        ("{}:missing", "has no 'missing'"),
        ("nowhere_to_be_found:x", "no module 'nowhere_to_be_found'"),
        ("{}:number", "is a int"),
    ],
)
def test_what_is_no_pipeline_is_named(module: str, name: str, says: str) -> None:
    done = runner().invoke(app, ["pipelines", "plan", name.format(module)])
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# The commands of folders

PROGRAM = """
import numpy as np

import warmstore as ws


def decoded(index, size):
    return np.full(size, index)


def made():
    return ws.Pipeline(range(30)).step(decoded, size=100)
"""


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ws.Pipeline:
    """A pipeline of the module `shared_NAME`, whose 30 samples are in the folder `one`."""
    name = f"shared_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    pipe: ws.Pipeline = importlib.import_module(name).made()
    pipe.fill(disk_plan(pipe, tmp_path / "one"), workers=0, progress=False)
    pipe.close()
    return pipe


def widened(value: Any) -> Any:
    return np.zeros(2000) + value.size


def disk_plan(pipe: Any, folder: Path) -> Any:
    return plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=folder)


def test_versions_are_listed_and_shown(samples: ws.Pipeline, tmp_path: Path) -> None:
    code, said, _ = run("pipelines", "ls", tmp_path / "one", columns=120)
    assert code == 0
    line = next(line for line in said.splitlines() if "1-raw-" in line)
    assert line.split()[1:3] == ["decoded", "30"]
    (listed,) = json.loads(run("pipelines", "ls", tmp_path / "one", "--json")[1])
    assert (listed["samples"], listed["others"], listed["steps"], listed["in_use"]) == (30, 0, ["decoded"], False)
    code, said, _ = run("pipelines", "show", tmp_path / "one", "1-raw", columns=120)
    assert code == 0
    assert "int64 [100]" in said
    assert "Step decoded" in said
    (shown,) = json.loads(run("pipelines", "show", tmp_path / "one", "--json")[1])
    assert shown["steps"][0]["name"] == "decoded"
    assert shown["schema"]["fields"]
    with samples.loader(disk_plan(samples, tmp_path / "one"), 8, workers=0):
        (listed,) = json.loads(run("pipelines", "ls", tmp_path / "one", "--json")[1])
        assert listed["in_use"]


def test_clear_removes_what_nobody_uses(samples: ws.Pipeline, tmp_path: Path) -> None:
    tier = tmp_path / "one" / "warmstore-samples"
    (tier / "notes").mkdir()
    (tier / "notes" / "mine.txt").write_text("not warmstore's")
    with samples.loader(disk_plan(samples, tmp_path / "one"), 8, workers=0):
        code, said, _ = run("pipelines", "clear", tmp_path / "one", "--yes")
        assert code == 0
        assert "A process uses 1" in said
        assert list(tier.glob("1-raw-*/about.json"))
    assert run("pipelines", "clear", tmp_path / "one", answer="n\n")[0] == 1
    assert list(tier.glob("1-raw-*/about.json"))
    code, _, error = run("pipelines", "clear", tmp_path / "one", "", "--yes")
    assert (code, "an argument is empty" in error) == (2, True)
    code, said, _ = run("pipelines", "clear", tmp_path / "one", "2-raw", "--yes")
    assert code == 2
    code, said, _ = run("pipelines", "clear", tmp_path / "one", "1-raw", "--yes", "--json")
    assert code == 0
    assert len(json.loads(said)["removed"]) == 1
    assert not list(tier.glob("1-raw-*/about.json"))
    assert (tier / "notes" / "mine.txt").exists()
    assert "Removed 0 B" in run("pipelines", "clear", tmp_path / "one", "--yes")[1]


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "warmstore-samples" / "1-raw-0123456789abcdef"
    other.mkdir(parents=True)
    (other / "about.json").write_text("{}")
    (other.parent / "1-raw-0123456789abcdef.lock").touch()
    for command in ("ls", "show", "clear"):
        code, _, error = run("pipelines", command, tmp_path, *(["--yes"] if command == "clear" else []))
        assert code == 1
        assert "has no samples of pipelines" in error
    assert (other / "about.json").exists()


def test_samples_are_pushed_and_pulled(samples: ws.Pipeline, tmp_path: Path) -> None:
    remote, module = tmp_path / "remote", next(tmp_path.glob("shared_*.py")).stem
    code, said, _ = run("pipelines", "push", tmp_path / "one", remote, "--no-progress")
    assert code == 0
    assert " 1 chunks sent" in said
    (again,) = json.loads(run("pipelines", "push", tmp_path / "one", remote, "--json", "--no-progress")[1]).values()
    assert (again["chunks"], again["present"]) == (0, 1)
    code, said, error = run("pipelines", "pull", remote, tmp_path / "two", "--disk", "10MB", "--no-progress")
    assert code == 0, error
    assert "30 records" in said
    assert samples.fill(disk_plan(samples, tmp_path / "two"), workers=0, progress=False).computed == 0
    named = ("--pipeline", f"{module}:made", "--no-progress", "--json")
    (pulled,) = json.loads(run("pipelines", "pull", remote, tmp_path / "three", "--disk", "10MB", *named)[1]).values()
    assert pulled["records"] == 30
    assert samples.fill(disk_plan(samples, tmp_path / "three"), workers=0, progress=False).computed == 0
    code, said, _ = run("pipelines", "pull", tmp_path / "nothing", tmp_path / "four", "--disk", "1MB")
    assert code == 0
    assert "holds no samples" in said


def test_a_push_without_samples_says_so(samples: ws.Pipeline, tmp_path: Path) -> None:
    run("pipelines", "clear", tmp_path / "one", "--yes")
    code, said, _ = run("pipelines", "push", tmp_path / "one", tmp_path / "remote", "--no-progress")
    assert (code, said) == (0, f"{tmp_path / 'one'} holds no samples.\n")
    assert json.loads(run("pipelines", "push", tmp_path / "one", tmp_path / "remote", "--json")[1]) == {}


def test_a_pull_without_a_pipeline_removes_nothing(samples: ws.Pipeline, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    run("pipelines", "push", tmp_path / "one", remote, "--no-progress")
    large = ws.Pipeline(range(40)).step(np.zeros, args={"dtype": np.float64}, name="large").step(widened)
    plan = plan_of(large, [(2, "disk", "raw")], [40], folder=tmp_path / "two", disk=400_000)
    large.fill(plan, workers=0, progress=False)
    large.close()
    (before,) = json.loads(run("pipelines", "ls", tmp_path / "two", "--json")[1])
    options = ("--disk", "400kB", "--no-progress", "--json")
    (pulled,) = json.loads(run("pipelines", "pull", remote, tmp_path / "two", *options)[1]).values()
    assert pulled["records"] == 0
    (*_, after) = json.loads(run("pipelines", "ls", tmp_path / "two", "--json")[1])
    assert after["samples"] == before["samples"] > 0
    module = next(tmp_path.glob("shared_*.py")).stem
    named = (*options, "--pipeline", f"{module}:made")
    (pulled,) = json.loads(run("pipelines", "pull", remote, tmp_path / "two", *named)[1]).values()
    assert pulled["records"] == 30


def test_a_version_without_its_lock_file_is_removed(samples: ws.Pipeline, tmp_path: Path) -> None:
    """As after a copy of the folder that left the lock files out."""
    (lock,) = (tmp_path / "one" / "warmstore-samples").glob("1-raw-*.lock")
    lock.unlink()
    code, said, _ = run("pipelines", "clear", tmp_path / "one", "1-raw", "--yes")
    assert code == 0
    assert "Removed 0 B" not in said
    assert not lock.with_suffix("").exists()


def test_a_version_that_cannot_be_removed_is_said_so(samples: ws.Pipeline, tmp_path: Path) -> None:
    (lock,) = (tmp_path / "one" / "warmstore-samples").glob("1-raw-*.lock")
    lock.unlink()
    lock.symlink_to("elsewhere")  # a link is never followed
    code, said, error = run("pipelines", "clear", tmp_path / "one", "1-raw", "--yes")
    assert (code, "A process uses" in said) == (1, False)
    assert error.startswith("Error: ")
    assert lock.with_suffix("").exists()
