from pathlib import Path

from benchmarks.__main__ import main
from benchmarks.report import load


def test_the_quick_orders_are_right_and_have_their_bars(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", "orders", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / "orders.json")
    assert status == 0, report.broken
    assert all("warmstore" in [row[0] for row in table.rows] for table in report.tables)
    assert [bar.figure is not None for bar in report.bars] == [True] * 3


def test_the_quick_gather_has_the_limit_warmstore_and_a_ratio(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", "gather", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    report = load(tmp_path / "gather.json")
    assert status == 0, report.broken
    assert list((tmp_path / "data").iterdir()) == []  # nothing is left behind
    columns = report.tables[0].columns
    rows = {row[0]: dict(zip(columns, row, strict=True)) for row in report.tables[0].rows}
    assert rows["torch.index_select in RAM"]["x limit"] == 1
    for name in ("warmstore", "warmstore, first read", "numpy memmap, rows.take"):
        assert rows[name]["median µs"] > 0
        assert rows[name]["x limit"] > 0
    assert rows["LMDB"]["median µs"] or "not installed" in rows["LMDB"]["note"]
    assert report.bars[0].figure == rows["warmstore"]["x limit"]
    assert report.run["sizes"] == "quick"
