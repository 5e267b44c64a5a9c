"""A training script as people write it: started again, on a disk that may only be read, with no network, and killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import argparse, json
import torch
from torch import nn
import warmstore as ws

parser = argparse.ArgumentParser()
parser.add_argument("store")
parser.add_argument("--remote")
parser.add_argument("--plain", action="store_true")
args = parser.parse_args()

cache = ws.compile_cache.init(args.store, job="training", remote=args.remote)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mix(self.norm(x))


model = nn.Sequential(nn.Linear(16, 32), Block(32), Block(32), nn.Linear(32, 4))
compiled = (torch.compile if args.plain else ws.compile)(model)
data = [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(6)]
held_out = [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(2)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for epoch in range(3):
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses += [nn.functional.cross_entropy(compiled(x), y).item() for x, y in held_out]
from torch._dynamo.utils import counters
lookups = ws.compile_cache.lookups()
print(json.dumps({
    "losses": losses,
    "traced": counters["frames"]["total"],
    "packages": [one.hit for one in lookups if one.key.startswith("package/")],
    "active": cache.active,
}))
cache.close()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "train.py"
    path.write_text(SCRIPT)
    return path


def start(
    script: Path, store: Path, *options: str, before: tuple[str, ...] = (), **env: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*before, sys.executable, str(script), str(store), *options],
        env={**os.environ, "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", **env},
        cwd=script.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def eager(script: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a process in which nothing is compiled."""
    found: list[float] = said(
        start(script, tmp_path_factory.mktemp("eager") / "store", "--plain", TORCH_COMPILE_DISABLE="1")
    )["losses"]
    return found


@pytest.fixture(scope="module")
def filled(script: Path, eager: list[float], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with what the script compiles."""
    store = tmp_path_factory.mktemp("filled") / "store"
    cold = said(start(script, store))
    assert cold["losses"] == pytest.approx(eager, abs=1e-4)
    assert cold["traced"] > 0
    assert not any(cold["packages"])
    return store


def test_a_second_start_traces_nothing(script: Path, filled: Path, eager: list[float]) -> None:
    warm = said(start(script, filled))
    assert warm["losses"] == pytest.approx(eager, abs=1e-4)
    assert (warm["traced"], all(warm["packages"])) == (0, True)
    assert len(warm["packages"]) == 2  # training and validation


def test_a_disk_that_may_only_be_read(script: Path, filled: Path, eager: list[float]) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    before = {path: path.stat().st_mtime_ns for path in filled.rglob("*") if path.is_file()}
    mounted = f'mount --bind {filled} {filled} && mount -o remount,ro,bind {filled} && exec "$@"'
    warm = said(start(script, filled, before=("unshare", "-m", "sh", "-c", mounted, "sh")))
    assert warm["losses"] == pytest.approx(eager, abs=1e-4)
    assert (warm["traced"], all(warm["packages"])) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in filled.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("offline", ["", "1"])
def test_a_remote_that_cannot_be_reached(script: Path, filled: Path, eager: list[float], offline: str) -> None:
    """The local store is enough, whether the job was told to touch no network or has to find out."""
    env = {"WARMSTORE_SIGNING_KEY": "hmac:" + "5a" * 32, "WARMSTORE_OFFLINE": offline}
    warm = said(start(script, filled, "--remote", "https://127.0.0.1:9/cache", **env))
    assert warm["losses"] == pytest.approx(eager, abs=1e-4)
    assert (warm["traced"], all(warm["packages"])) == (0, True)


def test_three_cold_processes_of_which_one_is_killed_as_it_writes(
    script: Path, eager: list[float], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    processes = [start(script, store) for _ in range(3)]
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not any((store / "blobs").glob("*/*")):
        time.sleep(0.02)
    assert processes[0].poll() is None
    processes[0].send_signal(signal.SIGKILL)
    processes[0].communicate()
    for one in processes[1:]:
        assert said(one)["losses"] == pytest.approx(eager, abs=1e-4)
    warm = said(start(script, store))
    assert warm["losses"] == pytest.approx(eager, abs=1e-4)
    assert (warm["traced"], all(warm["packages"])) == (0, True)
    warmstore = [sys.executable, "-m", "warmstore", "compiled", "verify", "--dir", str(store)]
    checked = subprocess.run(warmstore, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shutil.rmtree(store)
