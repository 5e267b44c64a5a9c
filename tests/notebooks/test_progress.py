"""Bars and texts in a real kernel, whose streams are no terminals."""

import pytest
from tests.notebooks.conftest import Opening
from tests.notebooks.kernels import Kernel

SETUP = """
import sys
import numpy as np, warmstore as ws
store = ws.RecordStore.create("store", {"x": ws.Array("int64")})
store.extend({"x": np.arange(1000)})
def double(value):
    return np.full(64, value * 2)
pipe = ws.Pipeline(range(20)).step(double)
"""
FORGET = """
for name in ("tqdm.auto", "tqdm.autonotebook", "tqdm.notebook"):
    sys.modules.pop(name, None)
"""
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def notebook(in_folder: Opening, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return in_folder(tmp_path_factory.mktemp("notebook"), SETUP)


def test_a_bar_is_a_widget(notebook: Kernel) -> None:
    cell = notebook.check("store.rebalance()")
    assert next(data["text/plain"] for data in cell.shown if WIDGET in data).startswith("rebalance:")
    assert not cell.text


def test_without_widgets_a_bar_is_text_and_nothing_warns(notebook: Kernel) -> None:
    cell = notebook.check(f"{FORGET}\nsys.modules['ipywidgets'] = None\nstore.rebalance()")
    assert "rebalance: 100%" in cell.text
    assert "Warning" not in cell.text
    assert "IProgress" not in cell.text
    notebook.check(f"del sys.modules['ipywidgets']\n{FORGET}")


@pytest.mark.parametrize("call", ["store.rebalance(progress=False)", "store.verify(progress=False)"])
def test_bars_can_be_turned_off(notebook: Kernel, call: str) -> None:
    cell = notebook.check(f"{call};")
    assert not cell.text
    assert not [data for data in cell.shown if WIDGET in data]


def test_a_plan_shows_its_profile_and_prints(notebook: Kernel) -> None:
    few = "pipe.profile(seconds=0.1, samples=4, max_workers=1, folder='plan', refresh=True, progress={})"
    cell = notebook.check(few.format(False) + ";")
    assert not cell.shown
    cell = notebook.check("plan = pipe.plan(memory='100MB', folder='plan')\nprint(plan)")
    assert cell.text.startswith("Plan for 20 samples")
    assert "1 double" in cell.text
    assert "it is unknown" not in cell.text  # the kernel's own changes of Python are no changes of the step
    cell = notebook.check(few.format(None) + ";")
    assert next(data["text/plain"] for data in cell.shown if WIDGET in data).startswith("profiling")
    cell = notebook.check("plan")
    assert "<img" in cell.html
    assert cell.shown[-1]["text/plain"].startswith("Plan(20 samples")


@pytest.mark.parametrize("value", ["store", "pipe", "ws.Loader(store, 2)", "store['x']"])
def test_objects_are_shown_as_html(notebook: Kernel, value: str) -> None:
    (data,) = notebook.check(value).shown
    assert data["text/html"].startswith("<div")
    assert data["text/plain"]
