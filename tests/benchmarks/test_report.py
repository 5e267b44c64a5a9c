import io
from pathlib import Path

import numpy as np
from benchmarks.report import Bar, Report, Table, broken_rows, load, page, show, timings
from benchmarks.side_by_side import Row
from rich.console import Console

ROWS = (
    Row("limit", "limit", (1e-5, 2e-5, 3e-5), 1.0),
    Row("rows[i] | memmap", "peer", (4e-5, 4e-5, 4e-5), 2.0, "by hand"),
    Row("absent", "peer", trouble="not installed (absent)"),
    Row("warmstore", "warmstore", trouble="wrong values in call 1"),
)
REPORT = Report(
    "gather",
    "How fast?",
    (timings("one", ROWS, megabytes=4.0),),
    (Bar.at_most("ratio", 1.5, 1.6), Bar.at_most("without a figure", None, 1.0), Bar.at_least("rate", 0.5, 0.6)),
    ("a note",),
    broken_rows(ROWS),
    {"run on": "a day"},
)


def test_the_table_has_medians_and_says_what_is_missing() -> None:
    assert REPORT.tables[0].columns == ("", "median µs", "mean µs", "p99 µs", "x limit", "MB/s", "note")
    limit, _, absent, _ = REPORT.tables[0].rows
    assert limit[1:4] == (2e-5 * 1e6, np.mean([1e-5, 2e-5, 3e-5]) * 1e6, np.percentile([1e-5, 2e-5, 3e-5], 99) * 1e6)
    assert absent == ("absent", None, None, None, None, None, "not installed (absent)")
    assert REPORT.broken == ("warmstore: wrong values in call 1",)


def test_rates_are_of_bytes_or_of_rows() -> None:
    table = timings("one", ROWS, unit="ms", records=200)
    assert table.columns == ("", "median ms", "mean ms", "p99 ms", "x limit", "rows/s", "note")
    assert table.rows[1][5] == 200 / 4e-5
    assert table.rows[2] == ("absent", None, None, None, None, None, "not installed (absent)")


def test_a_bar_without_a_figure_is_missed() -> None:
    assert [bar.passed for bar in REPORT.bars] == [True, False, False]


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    REPORT.save(tmp_path)
    assert load(tmp_path / "gather.json") == REPORT


def test_the_page_and_the_terminal_show_every_row_bar_and_note() -> None:
    text = page([REPORT], {"CPU": "a fast one"})
    assert "| rows[i] \\| memmap | 40 | 40 | 40 | 2 | 100,000 | by hand |" in text
    assert "| ratio | 1.5 | 1.6 | pass |" in text
    assert "| without a figure | – | 1 | **miss** |" in text
    assert "`python -m benchmarks --only gather` (run on: a day)" in text
    console = Console(width=200, record=True, file=io.StringIO())
    show(REPORT, console)
    shown = console.export_text()
    for expected in ("rows[i] | memmap", "pass ratio: 1.5", "MISS rate", "a note", "run on: a day"):
        assert expected in shown


def test_plain_tables_print_as_they_are() -> None:
    table = Table("", ("rows", "MiB"), ((1_024, 1.5), ("slope", None)))
    assert "| 1,024 | 1.5 |\n| slope | – |" in page([Report("r", "q", (table,))], {})
