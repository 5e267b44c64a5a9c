"""Jobs of an array: shards that fill one cache, from the command line too."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import warm

import warmstore as ws

PROGRAM = """
    import time
    import torch
    import warmstore as ws

    class Slow(torch.nn.Module):
        def forward(self, x, y):
            time.sleep({seconds})
            return x + y

    def job():
        return ws.FillJob({cache!r}, "sum", Slow(), "samples", ids="name", batch_size=10, block_size=20)
"""
ROWS = 230


@pytest.fixture(params=["folder", "URL"])
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fields = {"name": ws.Text(), "x": ws.Array("float32", (3,)), "y": ws.Array("float32", (3,))}
    with ws.RecordStore.create("samples", fields) as store:
        x = np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)
        store.extend({"name": [f"sample {at}" for at in range(ROWS)], "x": x, "y": x})
    if request.param == "URL":
        pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
        return f"file://{tmp_path}/team"
    return str(tmp_path / "caches")


def program(cache: str, seconds: float = 0.0) -> None:
    Path("fill_sums.py").write_text(textwrap.dedent(PROGRAM).format(cache=cache, seconds=seconds))


def shard(number: int, count: int) -> "subprocess.Popen[str]":
    main = "from warmstore.cli import main; main()"
    command = [sys.executable, "-c", main, "features", "fill", "fill_sums:job", "--shard", f"{number}/{count}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return warm.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(task: "subprocess.Popen[str]") -> str:
    out, err = task.communicate(timeout=300)
    assert task.returncode == 0, err
    return out


def check(cache: str, tmp_path: Path) -> None:
    with ws.FeatureCache(cache, "sum", **({"cache_dir": tmp_path / "reader"} if "://" in cache else {})) as opened:
        values, missing = opened.get_batch([f"sample {at}" for at in range(ROWS)])
    assert not len(missing)
    assert torch.equal(values, 2 * torch.arange(3.0 * ROWS).reshape(ROWS, 3))


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["URL"], indirect=True)
def test_shards_from_the_command_line_and_one_that_is_killed_goes_on(cache: str, tmp_path: Path) -> None:
    program(cache, 0.1)
    tasks = [shard(number, 2) for number in range(2)]
    while not list(tmp_path.glob("team/**/chunks/*")):
        time.sleep(0.02)
        assert tasks[1].poll() is None
    tasks[1].send_signal(signal.SIGKILL)
    tasks[1].communicate()
    assert "shard 0/2: 1" in finished(tasks[0])
    counts = [finished(shard(number, 2)) for number in range(2)]
    assert "shard 0/2: 0 samples computed" in counts[0]
    check(cache, tmp_path)


def test_shards_in_python(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    def call(batch):
        return (torch.from_numpy(np.array(batch["x"])),), {}

    job = ws.FillJob(cache, "sum", Sum(), "samples", ids="name", call=call, batch_size=7, block_size=50)
    results = [job.run(number, 4) for number in range(4)]
    assert sum(result.computed for result in results) == ROWS
    assert job.run(progress=False) == ws.FillResult(5, 0, ROWS)
    check(cache, tmp_path)
    with pytest.raises(ValueError, match="shards are 0 to 3"):
        job.run(4, 4)
    with pytest.raises(ValueError, match="no field 'id'"):
        ws.FillJob(cache, "sum", Sum(), "samples").run()
