from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from benchmarks.__main__ import main
from benchmarks.editors import deleted
from benchmarks.feeders import BATCH, LIMIT
from benchmarks.loader import check_epoch
from benchmarks.record_keepers import Values
from benchmarks.report import load
from benchmarks.side_by_side import WrongValuesError

from warmstore.storage.registry import registered


@pytest.mark.slow
def test_the_quick_samplers_are_right_and_have_their_bars(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", "samplers", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / "samplers.json")
    assert status == 0, report.broken
    assert all("warmstore" in [row[0] for row in table.rows] for table in report.tables)
    assert [bar.figure is not None for bar in report.bars] == [True] * 6


@pytest.mark.slow
def test_the_quick_gather_has_the_limit_warmstore_and_a_ratio(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", "gather", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / "gather.json")
    assert status == 0, report.broken
    assert list((tmp_path / "data").iterdir()) == []  # nothing is left behind
    loop, rows = (
        {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows} for table in report.tables[:2]
    )
    assert rows["torch.index_select in RAM"]["x limit"] == 1
    for name in ("warmstore", "warmstore, first read", "numpy memmap, rows.take"):
        assert rows[name]["median µs"] > 0
        assert rows[name]["x limit"] > 0
    assert rows["LMDB"]["median µs"] or "not installed" in rows["LMDB"]["note"]
    assert report.bars[0].figure == loop["warmstore"]["x limit"]
    assert report.run["sizes"] == "quick"


@pytest.mark.slow
@pytest.mark.usefixtures("memory_cgroup")
def test_the_quick_rows_that_memory_cannot_hold_have_their_limit(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    arguments = ["--only", "small_memory", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"]
    assert main(["--quick", *arguments]) == 0
    report = load(tmp_path / "small_memory.json")
    assert {"warmstore", "numpy memmap, rows.take"} <= {row[0] for row in report.tables[0].rows}
    assert len(report.bars) >= 2
    assert all(bar.figure for bar in report.bars)


@pytest.mark.parametrize(
    ("name", "tables", "bars"),
    [
        pytest.param("records", 3, 4, marks=pytest.mark.slow),
        pytest.param("labels", 3, 3, marks=pytest.mark.slow),
        pytest.param(
            "cold",
            1,
            1 + sum(find_spec(peer) is not None for peer in ("lmdb", "lance", "vortex")),
            marks=pytest.mark.slow,
        ),
        pytest.param("features", 4, 7, marks=pytest.mark.slow),
        pytest.param("cached_functions", 10, 16, marks=pytest.mark.slow),
        pytest.param("edits", 5, 5, marks=pytest.mark.slow),
        pytest.param("keys", 4, 22, marks=pytest.mark.slow),
        pytest.param("starts", 1, 2, marks=pytest.mark.slow),
        pytest.param("listing", 1, 2, marks=pytest.mark.slow),
        ("artifacts", 3, 3),
    ],
)
def test_the_quick_benchmark_has_a_figure_for_each_bar(name: str, tables: int, bars: int, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", name, "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / f"{name}.json")
    assert status == 0, report.broken
    assert list((tmp_path / "data").iterdir()) == []
    assert not [entry for entry in registered() if entry.path.is_relative_to(tmp_path)]
    assert (len(report.tables), len(report.bars)) == (tables, bars)
    assert all(bar.figure is not None and bar.figure > 0 for bar in report.bars)
    for table in report.tables:  # a peer has a figure, or a note that says why not
        assert all(row[1] or "not installed" in row[-1] for row in table.rows), table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "claim"),
    [("pipelines", "bytes of a tier beyond its budget"), ("pipelines_in_memory", "bytes that a second run adds")],
)
def test_the_quick_pipelines_keep_to_their_budgets(name: str, claim: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    main(["--quick", "--only", name, "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / f"{name}.json")
    assert not report.broken
    assert list((tmp_path / "data").iterdir()) == []
    bars = {bar.claim: bar for bar in report.bars}
    assert bars[claim].passed
    for table in report.tables:
        assert table.rows
        assert all(figure is not None for row in table.rows for figure in row)


@pytest.mark.slow  # compiles for a minute
@pytest.mark.parametrize(("name", "tables", "bars"), [("compiling", 2, 10), ("remote", 2, 6)])
def test_the_quick_starts_are_right_and_have_their_bars(name: str, tables: int, bars: int, tmp_path: Path) -> None:
    if name == "remote":
        pytest.importorskip("moto", reason="moto is not installed: pip install 'warmstore[dev]'")
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", name, "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / f"{name}.json")
    assert status == 0, report.broken
    assert (len(report.tables), len(report.bars)) == (tables, bars)
    assert all(bar.figure is not None for bar in report.bars)


@pytest.mark.slow  # Grain's processes take a minute to start
def test_the_quick_loader_is_right_and_every_peer_has_a_figure_or_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", "loader", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / "loader.json")
    assert status == 0, report.broken
    assert list((tmp_path / "data").iterdir()) == []
    assert (len(report.tables), len(report.bars)) == (7, 9)
    rows = [row for table in report.tables for row in table.rows]
    assert all(row[1] or "not installed" in row[-1] for row in rows)
    missing = any("not installed" in row[-1] for row in rows)
    assert missing or all(bar.figure is not None and bar.figure > 0 for bar in report.bars)


@pytest.mark.parametrize(("numbers", "right"), [([0, 1], True), ([1, 1], False), ([0, 2], False)])
def test_an_epoch_has_every_row_once(numbers: list[int], right: bool) -> None:
    rows = np.repeat(np.arange(2 * BATCH, dtype=np.float32)[:, None], 3, axis=1)
    padded = np.concatenate((rows, rows + 2 * BATCH))  # of which an epoch over `rows` knows nothing
    batches = iter([padded[number * BATCH : (number + 1) * BATCH] for number in numbers])
    with nullcontext() if right else pytest.raises(WrongValuesError):
        check_epoch(LIMIT, batches, rows)


def test_an_epoch_must_end_and_hold_the_values_of_the_source() -> None:
    rows = np.repeat(np.arange(BATCH, dtype=np.float32)[:, None], 3, axis=1)
    with pytest.raises(WrongValuesError, match="after an epoch's end"):
        check_epoch(LIMIT, iter([rows, rows]), rows)
    wrong = rows.copy()
    wrong[5, 1] += 1
    with pytest.raises(WrongValuesError):
        check_epoch(LIMIT, iter([wrong]), rows)


def test_values_know_when_a_result_is_theirs() -> None:
    values = Values.of(np.array([2, 1, 3]), np.arange(6, dtype=np.uint8))
    positions = np.array([2, 0])
    assert values.size(positions) == 5
    assert values.are(positions, [b"\3\4\5", b"\0\1"])
    assert values.are(positions, (np.array([3, 4, 5, 0, 1], np.uint8), np.array([0, 3, 5])))
    assert not values.are(positions, [b"\3\4\5", b"\0\2"])
    assert not values.are(positions, [b"\3\4\5"])


def test_a_delete_fills_its_holes_from_the_end() -> None:
    assert deleted(np.arange(6), np.array([4, 0, 1])).tolist() == [5, 3, 2]
    assert deleted(np.arange(4), np.array([3, 2])).tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remote_reads", "remote_stores"])
def test_the_quick_remotes_have_their_bars(name: str, tmp_path: Path) -> None:
    pytest.importorskip("moto")
    (tmp_path / "data").mkdir()
    folders = ["--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"]
    assert main(["--quick", "--only", name, *folders]) == 0
    report = load(tmp_path / f"{name}.json")
    assert len(report.bars) >= 2
    assert all(bar.figure is not None for bar in report.bars)
    assert list((tmp_path / "data").iterdir()) == []
