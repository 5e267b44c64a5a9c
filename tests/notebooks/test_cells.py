"""What cells define counts by what it does: an edited cell is never answered from a cache, an equal one always is."""

import os
from pathlib import Path

import pytest
from tests.notebooks.conftest import Opening
from tests.notebooks.kernels import Kernel, kernel
from tests.slow import thinned

import warmstore as ws

SETUP = """
import importlib, torch, numpy as np, warmstore as ws
from pathlib import Path
from torch import nn
from tests.pipeline.making import plan_of
"""

# Every number is one that an edit of the cell changes.
CELL = """
SCALE = 2

def helper(x):
    return x * SCALE + 10

class Model:
    bias = 100
    def __init__(self):
        self.weight = 3
    def run(self, x):
        return helper(x) * self.weight + self.bias + 1000

model = Model()
shift = (lambda k: lambda x: x + k)(5)

@ws.cached("results")
def result(x, power=1):
    "Doc."
    return model.run(shift(x)) ** power
"""
ASK = "print(result(4), result.__wrapped__(4), result.cache.stats().misses)"

EDITS = {
    "a global": ("SCALE = 2", "SCALE = 7"),
    "a function": ("+ 10", "+ 11"),
    "a class attribute": ("bias = 100", "bias = 101"),
    "an attribute of an object": ("weight = 3", "weight = 4"),
    "a method": ("+ 1000", "+ 1001"),
    "a closure": (")(5)", ")(6)"),
    "a default": ("power=1", "power=2"),
    "the function itself": ("** power", "** power - 1"),
}
NEUTRAL = {
    "nothing": ("", ""),
    "a comment": ("SCALE = 2", "SCALE = 2  # of the samples\n"),
    "a docstring": ("Doc.", "Another."),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def notebook(in_folder: Opening, folder: Path) -> Kernel:
    return in_folder(folder, SETUP + CELL)


def ask(notebook: Kernel) -> tuple[int, int, int]:
    """The result, what it should be, and the calls so far that were computed."""
    found, expected, misses = map(int, notebook.check(ASK).text.split())
    return found, expected, misses


@pytest.mark.parametrize("edit", thinned(3, EDITS))
def test_an_edited_cell_is_computed_again(notebook: Kernel, edit: str) -> None:
    notebook.check(CELL)
    before, _, _ = ask(notebook)
    edited = CELL.replace(*EDITS[edit])
    assert edited != CELL
    notebook.check(edited)
    found, expected, _ = ask(notebook)
    assert found == expected != before


@pytest.mark.parametrize("edit", NEUTRAL)
def test_a_cell_that_is_run_again_is_not(notebook: Kernel, edit: str) -> None:
    notebook.check(CELL)
    ask(notebook)
    notebook.check(CELL.replace(*NEUTRAL[edit]))
    first = ask(notebook)
    assert first[0] == first[1]
    notebook.check(CELL)
    assert ask(notebook)[2] == 0  # of a new cached function


def test_an_edit_in_another_cell_is_seen(notebook: Kernel) -> None:
    notebook.check(CELL)
    before = ask(notebook)
    notebook.check("def helper(x):\n    return x * SCALE + 77")
    found = ask(notebook)
    assert found[0] == found[1] != before[0]
    notebook.check("model.weight = 55")
    again = ask(notebook)
    assert again[0] == again[1] != found[0]


def test_a_new_kernel_finds_what_the_last_one_computed(notebook: Kernel, folder: Path, tmp_path: Path) -> None:
    notebook.check(CELL)
    expected = ask(notebook)[0]
    notebook.check("result.cache.flush()")  # results wait until they took 20 ms together
    (tmp_path / "results").symlink_to(folder / "results")
    with kernel(tmp_path) as other:
        other.check(SETUP)
        other.check("1 + 1")  # cells have other numbers
        other.check(CELL)
        assert ask(other) == (expected, expected, 0)


NET = """
class Net(nn.Module):
    def forward(self, x):
        return x * 2
net = Net().eval()
"""


def test_outputs_of_an_edited_module_are_stale(notebook: Kernel) -> None:
    call = "print(ws.CachedModule(net, cache)(torch.ones(2, 1), cache_ids=[1, 2]).tolist(), cache.stats().misses)"
    notebook.check("cache = ws.FeatureCache('features', 'net')")
    for _ in range(2):
        notebook.check(NET)
        assert notebook.check(call).text == "[[2.0], [2.0]] 2\n"
    notebook.check(NET.replace("* 2", "* 3"))
    assert notebook.run(call).error == ws.StaleCache.__name__
    notebook.check(NET)
    assert notebook.check(call).text == "[[2.0], [2.0]] 2\n"


def test_samples_of_an_edited_step_are_computed_again(notebook: Kernel) -> None:
    cell = (
        "def step(x):\n    return np.full(9, x + 1)\n"
        "pipe = ws.Pipeline(range(6)).step(step)\n"
        "plan = plan_of(pipe, [(1, 'disk', 'raw')], [6], folder=Path('samples'))\n"
        "print(pipe.fill(plan, workers=0, progress=False))\n"
        "with pipe.loader(plan, 6, workers=0) as loader:\n    print(sorted(next(iter(loader))[:, 0].tolist()))"
    )
    assert notebook.check(cell).text == "FillResult(batches=1, computed=6, found=0)\n[1, 2, 3, 4, 5, 6]\n"
    assert notebook.check(cell).text == "FillResult(batches=0, computed=0, found=6)\n[1, 2, 3, 4, 5, 6]\n"
    edited = cell.replace("x + 1", "x + 2")
    text = notebook.check(edited).text
    assert text.endswith("FillResult(batches=1, computed=6, found=0)\n[2, 3, 4, 5, 6, 7]\n")
    assert "the code of `step` was edited: its constants were 9, 1, are 9, 2" in text


@pytest.mark.parametrize("way", ["%autoreload 2", "importlib.reload"])
def test_a_module_that_is_loaded_again_is_seen(notebook: Kernel, folder: Path, way: str) -> None:
    name = f"steps_{'auto' if way[0] == '%' else 'plain'}"
    file = folder / f"{name}.py"

    def write(number: int) -> None:
        file.write_text(f"NUMBER = {number}\ndef shifted(x):\n    return x + NUMBER * {number}\n")
        os.utime(file, (number, number))  # another time, which the reloading looks at

    write(1)
    if way[0] == "%":
        notebook.check("%load_ext autoreload")
        notebook.check(way)
    notebook.check(
        f"import sys; sys.dont_write_bytecode = True\nimport {name}\nfrom {name} import shifted\n"
        f"@ws.cached('results')\ndef result(x):\n    return {name}.shifted(x) + shifted(x)"
    )
    assert ask(notebook)[:2] == (10, 10)
    write(2)
    if way[0] == "%":
        notebook.check("1 + 1")
    else:
        notebook.check(f"{way}({name})\nfrom {name} import shifted")
    assert ask(notebook)[:2] == (16, 16)
