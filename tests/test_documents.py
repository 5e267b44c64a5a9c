"""The code in the README, the docs and the examples runs as it stands."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm
from torch import nn

import warmstore as ws

ROOT = Path(__file__).parent.parent
SCRIPT = "# train.py"  # a block that is a program of its own


def _blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def _names() -> dict[str, Any]:
    """What the documents take for granted."""
    rng = np.random.default_rng(0)
    batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,)), [f"{at}-{i}" for i in range(4)]) for at in range(3)]
    return {
        "ws": ws,
        "backbone": nn.Linear(8, 6).requires_grad_(False),
        "head": nn.Linear(6, 3),
        "criterion": nn.CrossEntropyLoss(),
        "loader": batches,
        "images": rng.integers(0, 255, (10, 96, 96), dtype=np.uint8),
        "labels": np.arange(10),
        "points": [np.ones((at, 3), np.float32) for at in range(10)],
        "jpegs": [b"\xff\xd8" * at for at in range(10)],
        "np": np,
        "torch": torch,
    }


def _run(name: str) -> None:
    names = _names()
    blocks = [block for block in _blocks(name) if not block.startswith(SCRIPT)]
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    if "store" in names:
        names["store"].close()


@pytest.mark.parametrize("name", ["docs/fleet.md", "docs/pipeline.md", "docs/records.md"])
def test_code_in_documents_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run(name)


_EACH = """
import os, runpy, sys
import torch, warmstore  # once for all: each script is a child of this process

for number, folder in enumerate(sys.argv[1:]):
    child = os.fork()
    if not child:
        os.chdir(folder)
        sys.argv = ["train.py"]
        runpy.run_path("train.py", run_name="__main__")
        break  # and end as a script does
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"script {number}: {status}", flush=True)
"""


_FRAMEWORKS = {"accelerate", "datasets", "grain", "ignite", "jax", "keras", "lightning", "torchdata", "transformers"}


@pytest.mark.parametrize("frameworks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_code_on_loading_runs_as_scripts(frameworks: bool, tmp_path: Path) -> None:
    """Each in a process and an empty folder of its own, with nothing but what the page says."""
    folders = []
    for number, block in enumerate(_blocks("docs/loading.md")):
        packages = set(re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE))
        if frameworks == bool(packages & _FRAMEWORKS) and all(map(find_spec, packages)):
            folders.append(tmp_path / f"{number}")
            folders[-1].mkdir()
            (folders[-1] / "train.py").write_text(block)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _EACH, *folders]
    done = warm.run(command, capture_output=True, text=True, check=False, env=environment)
    statuses = re.findall(r"^script \d+: (-?\d+)$", done.stdout, re.MULTILINE)
    assert statuses == ["0"] * len(folders), done.stderr
    assert len(folders) > 5


def test_code_on_compiling_runs(tmp_path: Path) -> None:
    # In a process of its own: the compile cache is one a process.
    command = [sys.executable, __file__, "docs/compile.md"]
    env = {**os.environ, "WARMSTORE_CACHE_DIR": f"{tmp_path}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr


def test_code_on_stores_at_a_remote_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("obstore") is None:
        pytest.skip("needs obstore")
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in _blocks("docs/remote.md") if "push" in block or "there" in block]
    assert len(blocks) == 4
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", f"hmac:{'5a' * 32}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = {**_names(), "os": os}
    for block in blocks:
        exec(compile(block, "docs/remote.md", "exec"), names)
    names["there"].close()
    names["copy"].close()


def test_the_readme_runs_as_it_is_pasted(tmp_path: Path) -> None:
    """The first block in an empty folder, once more, and then all blocks, one after the other."""
    blocks = _blocks("README.md")
    for name, code in (("first.py", blocks[0]), ("all.py", "\n".join(blocks))):
        (tmp_path / name).write_text(code)
    for name in ("first.py", "first.py", "all.py"):
        done = warm.run([sys.executable, name], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^epoch (\d): ", done.stdout, re.MULTILINE) == ["0", "1", "2"]
    with ws.FeatureCache(tmp_path / "cache", "backbone_v1") as cache:
        assert len(cache) == 512  # each sample was computed once


@pytest.mark.slow
def test_example_computes_nothing_the_second_time(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "cache_a_module.py", tmp_path]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first.splitlines() == ["epoch 0: 0 read, 2000 computed", "epoch 1: 2000 read, 0 computed"]
    assert second.splitlines() == ["epoch 0: 2000 read, 0 computed", "epoch 1: 2000 read, 0 computed"]


@pytest.mark.parametrize("name", ["docs/features.md", "docs/cached.md"])
def test_code_on_features_and_functions_runs_as_a_script(name: str, tmp_path: Path) -> None:
    """One block after the other, and nothing else: they need nothing that is not there."""
    blocks = (block for block in _blocks(name) if not block.startswith(SCRIPT))
    (tmp_path / "script.py").write_text("\n".join(blocks))
    command = [sys.executable, "-W", "error", "script.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", _blocks("docs/identity.md"), ids=lambda block: block.splitlines()[0])
def test_code_on_identity_runs_as_a_script(block: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(block)
    command = [sys.executable, "-W", "error", "script.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for promised in re.findall(r"# .*?`(.*?)` was", block):
        assert promised in done.stdout


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")
def test_trainer_script_of_pipelines_runs(tmp_path: Path) -> None:
    (script,) = (block for block in _blocks("docs/pipeline.md") if block.startswith(SCRIPT))
    (tmp_path / "train.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "OMP_NUM_THREADS": "1"}
    done = warm.run(
        [sys.executable, "train.py"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "repeat themselves" not in done.stderr


@pytest.mark.slow
def test_distributed_script_in_documents_runs(tmp_path: Path) -> None:
    (script,) = (block for block in _blocks("docs/features.md") if block.startswith(SCRIPT))
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert sum(map(int, re.findall(r"computed (\d+)", done.stdout))) == 100


@pytest.mark.parametrize(("name", "count"), [("records", 17), ("loading", 19), ("features", 16), ("pipeline", 19)])
def test_every_promise_names_tests_that_exist(name: str, count: int) -> None:
    text = (ROOT / f"docs/{name}.md").read_text()
    rows = re.findall(r"^\| ((?:[A-Z]\d+(?:, )?)+) \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    promised = [promise for promises, _ in rows for promise in promises.split(", ")]
    assert promised == [f"{name[0].upper()}{number}" for number in range(1, count + 1)]
    _, _, tables = text.partition("## What is promised")
    named = re.findall(r"`([\w/]+(?:\.py)?/?)(?:::(\w+))?`", tables)
    assert len(named) >= len(rows)
    for file, test in named:
        path = ROOT / "tests" / file
        if path.exists():
            assert not test or re.search(rf"^(class|def) {test}\b", path.read_text(), re.MULTILINE), (file, test)
        else:
            assert "/" not in file, file  # a name of the library, such as `drop_last`


@pytest.mark.slow
def test_flax_training_resumes_exactly(tmp_path: Path) -> None:
    for package in ("jax", "flax", "optax"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    command = [sys.executable, ROOT / "examples" / "flax_training.py", tmp_path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith("24 steps, loss ")
    assert said[1] == "resumed after 11 steps: the same losses"


if __name__ == "__main__":
    _run(sys.argv[1])
