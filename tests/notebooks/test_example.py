"""The example notebook runs as it stands, and shows what it was committed with."""

from pathlib import Path
from typing import Any

import pytest
from tests.notebooks.conftest import Opening

nbformat = pytest.importorskip("nbformat")
FILLED = ["FillResult(batches=4, computed=200, found=0)", "FillResult(batches=4, computed=0, found=200)"]
NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"


@pytest.fixture
def notebook() -> Any:
    read = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(read)
    return read


def shown_by(cell: Any) -> list[str]:
    """The class of what a cell shows, by its HTML, and the lines that it prints."""
    html = ["".join(output.get("data", {}).get("text/html", "")) for output in cell.outputs]
    titles = [text.partition("<b>")[2].partition("</b>")[0] for text in html if text]
    printed = "".join(output["text"] for output in cell.outputs if output.get("name") == "stdout")
    return [*titles, *printed.splitlines()]


def test_it_was_committed_with_its_outputs(notebook: Any) -> None:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [shown_by(cell) for cell in cells] == [
        [],
        ["RecordStore"],
        ["FeatureCache", *FILLED],
        ["Pipeline"],
        ["Plan"],
        ["Loader"],
        [],
    ]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "/tmp" not in NOTEBOOK.read_text()
    assert NOTEBOOK.stat().st_size < 300_000


def test_its_cells_run_in_order_and_again(notebook: Any, in_folder: Opening, tmp_path: Path) -> None:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kernel = in_folder(tmp_path, "")
    for cell in cells:
        ran = kernel.check(cell.source)
        for title in shown_by(cell):
            assert title in ran.html + ran.text
    for cell in cells[:3]:
        kernel.check(cell.source)


@pytest.mark.slow
def test_nbclient_runs_it(notebook: Any, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient").NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    expected = [shown_by(cell) for cell in notebook.cells if cell.cell_type == "code"]
    client.execute()
    assert [shown_by(cell) for cell in notebook.cells if cell.cell_type == "code"] == expected
