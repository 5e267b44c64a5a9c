"""The logs of lookups, one for the last run of each job."""

import os
from pathlib import Path

import pytest

from warmstore.compiling.misses import lookup_log
from warmstore.compiling.misses.lookup_log import FOLDER, Lookup, read, write
from warmstore.storage.files import PLAIN


def test_the_oldest_logs_go_where_each_run_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_log, "_MOST", 3)
    for number in range(6):
        write(tmp_path, PLAIN, f"run-{number}", [Lookup("key", hit=True)], 0)
        os.utime(tmp_path / FOLDER / f"run-{number}.0.json", (number, number))
    assert [job for job, _ in read(tmp_path)] == ["run-3", "run-4", "run-5"]
    write(tmp_path, PLAIN, "run-3", [Lookup("key", hit=False)], 0)
    assert [job for job, _ in read(tmp_path)] == ["run-3", "run-4", "run-5"]
