"""An interrupt in the middle of a cell leaves every object usable in the next cell, and no process behind."""

import json
from pathlib import Path

import psutil
import pytest
from tests.notebooks.conftest import Opening
from tests.notebooks.kernels import Kernel, kernel

import warmstore as ws

SETUP = """
import os, threading, time
from pathlib import Path
from tests.pipeline.making import plan_of
import numpy as np, psutil, torch, warmstore as ws
from torch import nn

def spin():
    print("now", flush=True)
    while True:
        time.sleep(0.001)

def when(path):
    "Print that the interrupt may come once a file is there."
    def watch():
        while not Path(path).exists():
            time.sleep(0.001)
        print("now", flush=True)
    threading.Thread(target=watch, daemon=True).start()

class Squares:
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, at): return np.full(3, at * at)

def slow(batch):
    time.sleep(0.01)
    return batch

def children():
    return [each for each in psutil.Process().children(recursive=True) if each.is_running()]
"""


@pytest.fixture(scope="module")
def notebook(in_folder: Opening, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return in_folder(tmp_path_factory.mktemp("notebook"), SETUP)


@pytest.mark.parametrize("workers", ["workers=0", "workers=2", "processes=2, start_method='fork'"])
def test_a_loader_goes_on_after_an_interrupt(notebook: Kernel, workers: str) -> None:
    notebook.check(f"loader = ws.Loader(Squares(40), 4, ws.Shuffle(seed=0), transform=slow, {workers})")
    for at in range(2):
        notebook.interrupted("for at, batch in enumerate(loader.stream()):\n    if at == 2: print('now', flush=True)")
        cell = notebook.check(
            "print(sorted(int(x) for batch in loader for x in batch[:, 0]) == [x * x for x in range(40)])"
        )
        assert cell.text == "True\n", at
    cell = notebook.check("print(len(loader), loader.epoch); loader.close(); print(children())")
    assert cell.text.endswith("[]\n")


def test_a_fill_is_resumed(notebook: Kernel) -> None:
    notebook.check(
        "def batches(pause):\n"
        "    for at in range(6):\n"
        "        if at == 3 and pause: spin()\n"
        "        yield torch.arange(4.) + 4 * at, list(range(4 * at, 4 * at + 4))\n"
        "cache = ws.FeatureCache('caches', 'net', flush_every=4)\n"
        "net = nn.Identity()"
    )
    notebook.interrupted("cache.fill(net, batches(True))")
    cell = notebook.check("print(cache.fill(net, batches(False), progress=False))\ncache.flush(); print(len(cache))")
    assert cell.text == "FillResult(batches=6, computed=12, found=12)\n24\n"


def test_a_pipeline_goes_on_after_interrupts(notebook: Kernel) -> None:
    """In the middle of a profile, of a fill with workers, and of an epoch."""
    notebook.check(
        "import contextlib\n"
        "def slow_step(x):\n"
        "    with contextlib.suppress(FileExistsError): os.mkdir(f'{FOLDER}/begun')\n"
        "    time.sleep(0.01)\n"
        "    return np.full(100, x)\n"
        "FOLDER = os.getcwd()\n"
        "pipe = ws.Pipeline(range(60)).step(slow_step)\n"
        "plan = plan_of(pipe, [(1, 'disk', 'raw')], [60], folder=Path('plan'))"
    )
    notebook.interrupted("when('begun')\npipe.profile(seconds=60, folder='plan', progress=False)")
    notebook.check("os.rmdir('begun')")
    notebook.interrupted("when('begun')\npipe.fill(plan, batch_size=2, workers=2, start_method='fork', progress=False)")
    cell = notebook.check(
        "result = pipe.fill(plan, batch_size=2, workers=2, start_method='fork', progress=False)\n"
        "print(result.computed + result.found, len(children()))"
    )
    assert cell.text == "60 0\n"
    notebook.interrupted(
        "loader = pipe.loader(plan, 4, workers=2, start_method='fork')\n"
        "for at, batch in enumerate(loader.stream()):\n"
        "    if at == 2: print('now', flush=True)"
    )
    cell = notebook.check(
        "print(sorted(int(x) for batch in loader for x in batch[:, 0]) == list(range(60)))\n"
        "loader.close(); pipe.close(); print(children())"
    )
    assert cell.text == "True\n[]\n"


def test_a_conversion_is_begun_again(notebook: Kernel) -> None:
    notebook.check(
        "def rows(pause):\n    for at in range(100):\n        if at == 50 and pause: spin()\n        yield {'x': at}\n"
    )
    notebook.interrupted("ws.convert(rows(True), 'converted')")
    cell = notebook.check(
        "print(len(ws.convert(rows(False), 'converted', progress=False)), os.listdir('converted') != [])"
    )
    assert cell.text == "100 True\n"


def test_a_cache_that_is_opened_again_without_a_close(notebook: Kernel) -> None:
    notebook.check("cache = ws.FeatureCache('again', 'net')\ncache.put_batch([1, 2], np.ones((2, 3)))")
    cell = notebook.check(
        "cache = ws.FeatureCache('again', 'net')\ncache.put_batch([3], np.zeros((1, 3)))\ncache.flush()\n"
        "print(sorted(at for at in (1, 2, 3) if at in cache), len(cache))"
    )
    assert cell.text == "[1, 2, 3] 3\n"


def test_workers_find_what_a_cell_defines_or_the_error_says_what_to_do(notebook: Kernel) -> None:
    make = "ws.Loader(Squares(8), 4, processes=2, start_method={!r})"
    cell = notebook.check(
        f"with {make.format('fork')} as loader:\n    print([batch[:, 0].tolist() for batch in loader])"
    )
    assert cell.text == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n"
    cell = notebook.run(f"next(iter({make.format('spawn')}))")
    assert cell.error == "NotPicklable"
    assert "Squares is defined in a notebook" in cell.trace.replace("\x1b[39m", "")
    cell = notebook.run(
        "def double(x): return 2 * x\npipe = ws.Pipeline(range(6)).step(double)\n"
        "list(pipe.loader(None, 4, workers=1, start_method='spawn'))"
    )
    assert cell.error == "NotPicklable"


@pytest.mark.slow
def test_a_killed_kernel_loses_no_committed_row_and_leaves_no_process(tmp_path: Path) -> None:
    with kernel(tmp_path) as killed:
        killed.check(SETUP)
        cell = killed.check(
            "loader = ws.Loader(Squares(400), 4, transform=slow, processes=2, start_method='fork')\n"
            "stream = loader.stream(); next(stream)\n"
            "store = ws.RecordStore.create('store', {'x': ws.Array('int64')})\n"
            "store.extend({'x': np.arange(100)}); store.flush(); store.append({'x': 100})\n"
            "print([each.pid for each in children()])"
        )
        workers = [psutil.Process(pid) for pid in json.loads(cell.text)]
        assert len(workers) == 2
        killed.kill()
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive
    with ws.RecordStore.open(tmp_path / "store", "a") as store:
        assert store["x"][:].tolist() == list(range(100))
        store.append({"x": 100})
        assert not store.verify(progress=False).problems
